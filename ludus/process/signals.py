"""Signals that ask a run to leave, in its main process and in the processes that it starts."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Any

# Ctrl-C; kill, schedulers and `ludus stop`; a dropped connection; warnings of batch systems.
_NAMES = ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2")
LEAVE: tuple[signal.Signals, ...] = tuple(
    getattr(signal, name) for name in _NAMES if hasattr(signal, name)
)


def reason_of(number: int) -> str:
    """Why a run ended that a signal ended."""
    usual = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}
    known = signal.Signals(number)
    return usual.get(known, f"terminated by {known.name}")


REASONS = tuple(map(reason_of, LEAVE))


def heeded() -> list[signal.Signals]:
    """Those to be handled here. What was ignored at the start, as SIGHUP by nohup, stays ignored;
    but for Ctrl-C, which a shell ignores for all that it starts in the background."""
    return [s for s in LEAVE if s == signal.SIGINT or signal.getsignal(s) != signal.SIG_IGN]


def ignore_signals() -> None:
    """For a child process. Ctrl-C and batch systems signal the whole group, but the main process
    decides when to leave: it still has a checkpoint to write."""
    for number in LEAVE:
        signal.signal(number, signal.SIG_IGN)


class SignalledError(KeyboardInterrupt):
    """Leave now, without a checkpoint: nothing was learned yet, or it was the second Ctrl-C."""

    def __init__(self, number: int, where: str = "") -> None:
        self.number, self.code, self.reason = number, 128 + number, reason_of(number)
        super().__init__(where)


class HungError(SignalledError):
    """Raised inside a call that did not return after a signal. What was learned can be saved."""


class Signals:
    """The first signal calls `stop(reason)`; a Ctrl-C after it raises SignalledError.

    Other signals may come twice without a meaning: the shell and the system both send SIGHUP, and
    a batch system's warning is followed by SIGTERM. While `stop` is None there is nothing to save,
    and the first signal raises.

    `listen` is the end of a pipe with the numbers of all signals: Python's own handlers wait for
    the main thread, which may be stuck in native code.
    """

    def __init__(self) -> None:
        self.stop: Callable[[str], None] | None = None
        self.number = 0  # of the first signal; the watchdog may hear it before the main thread
        self.listen: int | None = None
        self._can_raise: Callable[[], bool] | None = None
        self._handled = self._abandoned = False
        self._old: dict[int, Any] = {}
        self._old_fd, self._wake = -1, -1
        self._thread = threading.main_thread().ident or 0

    @property
    def code(self) -> int:
        """The exit code, 0 without a signal."""
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
        for number in heeded():
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
        """From another thread: raise HungError in the main thread, if `can_raise` says so there.
        Python code, sleeps and waits are interrupted; native code is not."""
        self._can_raise = can_raise
        self._send_again()

    def abandon(self) -> None:
        """From another thread, which saves and ends the process: the main thread may not go on."""
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
