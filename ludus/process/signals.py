"""Handling of the signals that stop a run, in its main process and in its children."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

# Ctrl-C; kill, schedulers and `ludus stop`; a lost connection; warnings of batch systems.
_NAMES = ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2")
STOP_SIGNALS: tuple[signal.Signals, ...] = tuple(
    getattr(signal, name) for name in _NAMES if hasattr(signal, name)
)


def reason_of(number: int) -> str:
    """Return the reason for the end of a run that a signal stopped."""
    usual = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}
    known = signal.Signals(number)
    return usual.get(known, f"terminated by {known.name}")


REASONS = tuple(map(reason_of, STOP_SIGNALS))


def handled_signals() -> list[signal.Signals]:
    """Return the signals to handle. Signals ignored at the start (SIGHUP under nohup) stay ignored,
    except SIGINT, which shells ignore for every background process."""
    return [s for s in STOP_SIGNALS if s == signal.SIGINT or signal.getsignal(s) != signal.SIG_IGN]


def ignore_signals() -> None:
    """Ignore stop signals in a child process. Ctrl-C and batch systems signal the whole group, but
    the main process first writes a checkpoint and then closes its children."""
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)


@contextmanager
def handlers_kept() -> Iterator[None]:
    """Set the handlers of stop signals again after this block: a native library may install its
    own, of which Python knows nothing."""
    before = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            for number, handler in before.items():
                if handler is not None:  # one from native code cannot be set again
                    signal.signal(number, handler)


class SignalledError(KeyboardInterrupt):
    """Exit now, without a checkpoint: nothing was learned yet, or Ctrl-C came twice."""

    def __init__(self, number: int, where: str = "") -> None:
        self.number, self.code, self.reason = number, 128 + number, reason_of(number)
        super().__init__(where)


class HungError(SignalledError):
    """Raised inside a call that did not return after a signal. The run can still be saved."""


class Signals:
    """The first signal calls `stop(reason)`; a Ctrl-C after it raises SignalledError.

    Other signals may be repeated: the shell and the system both send SIGHUP, and batch systems send
    SIGTERM after a warning. While `stop` is None there is nothing to save, and the first signal
    raises.

    `listen` is the read end of a pipe that receives all signal numbers: Python's own handlers wait
    for the main thread, which may be stuck in native code.
    """

    def __init__(self) -> None:
        self.stop: Callable[[str], None] | None = None
        self.number = 0  # of the first signal; the watchdog may set it before the main thread
        self.listen: int | None = None
        self._can_raise: Callable[[], bool] | None = None
        self._handled = self._abandoned = False
        self._old: dict[int, Any] = {}
        self._old_fd, self._wake = -1, -1
        self._thread = threading.main_thread().ident or 0

    @property
    def code(self) -> int:
        """The exit code; 0 without a signal."""
        return 128 + self.number if self.number else 0

    @property
    def reason(self) -> str:
        return reason_of(self.number) if self.number else ""

    def __enter__(self) -> Signals:
        if threading.current_thread() is not threading.main_thread():
            return self
        self.listen, self._wake = os.pipe()
        os.set_blocking(self.listen, False)
        os.set_blocking(self._wake, False)
        self._old_fd = signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
        for number in handled_signals():
            self._old[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._old.items():
            signal.signal(number, handler)
        if self.listen is not None:
            signal.set_wakeup_fd(self._old_fd)
            os.close(self.listen)
            os.close(self._wake)
            self.listen = None

    def force(self, can_raise: Callable[[], bool]) -> None:
        """Raise HungError in the main thread, from another thread, if `can_raise` returns true.
        This interrupts Python code, sleeps and waits, but not native code."""
        self._can_raise = can_raise
        self._send_again()

    def remind(self) -> None:
        """Send the signal of `force` again if nobody has handled it: one that arrives just before
        a sleep begins does not end it."""
        if self._can_raise is not None:
            self._send_again()

    def abandon(self) -> None:
        """Block the main thread, from another thread that saves the run and exits the process."""
        self._abandoned = True
        self._send_again()

    def _send_again(self) -> None:
        with suppress(ProcessLookupError):
            signal.pthread_kill(self._thread, self.number)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._abandoned:
            threading.Event().wait()
        if self._can_raise is not None:
            can_raise, self._can_raise = self._can_raise, None
            if can_raise():
                raise HungError(self.number)
            if self._handled:
                return  # the call has just returned
        again, self._handled = self._handled, True
        self.number = self.number or number
        if self.stop is None or (again and number == signal.SIGINT):
            raise SignalledError(self.number)
        if not again:
            self.stop(self.reason)
