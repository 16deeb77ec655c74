"""A thread that reports when the main thread does not return from a call of external code.

It reports slow calls, and when they return. It never ends a slow call unless a signal has asked
the process to stop. Then it interrupts the call. If that fails, as in native code, this thread
saves the run and exits the process.
"""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from ludus.process.signals import STOP_SIGNALS, Signals
from ludus.process.supervisor import stack_of

TICK = 1.0  # longest time between checks, in seconds


def _nothing() -> int:
    return 0


@dataclass(frozen=True)
class Call:
    """A call of external code, such as an environment's step."""

    what: Callable[[], str]  # the name of the called object and method
    seconds: float | None = None  # report the call after this time; None: never
    progress: Callable[[], int] = _nothing  # changes while the call makes progress


class Pulse:
    """The current call of the watched thread, which writes it. The watchdog reads it."""

    __slots__ = ("count", "inside")

    def __init__(self) -> None:
        self.inside: Call | None = None
        self.count = 0  # number of calls

    def enter(self, call: Call) -> None:
        self.count += 1
        self.inside = call

    def leave(self) -> None:
        self.inside = None


class Reports(Protocol):
    def stalled(self, what: str, seconds: float, line: str, stack: str) -> None: ...

    def resumed(self, what: str, seconds: float) -> None: ...

    def rescue(self) -> None:
        """Save the run in place of the main thread, before the process exits."""


class Watchdog:
    """Watches the thread that enters this context. `grace`: seconds that a call may take after a
    signal. The watchdog interrupts the call after half of that time, or at once if the call was
    already late. If that fails, it exits the process just before the time is over."""

    def __init__(
        self, pulse: Pulse, signals: Signals, reports: Reports, *, grace: float, tick: float = TICK
    ) -> None:
        self.pulse, self.signals, self.reports = pulse, signals, reports
        self.grace, self.tick = grace, min(tick, grace / 4)
        self._over = threading.Event()
        self._watched = 0
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
        self._seen: tuple[int, int] | None = None  # call number and progress at the newest check
        self._waited = 0.0  # seconds without progress
        self._stalled: Call | None = None  # the reported call
        self._leaving = 0.0  # seconds without progress after a signal
        self._forced = False

    def __enter__(self) -> Watchdog:
        self._watched = threading.get_ident()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        before = time.monotonic()
        while not self._over.is_set():
            self._sleep()
            now = time.monotonic()
            # Do not count time while the whole process was stopped.
            self._look(min(now - before, 2 * self.tick))
            before = now

    def _sleep(self) -> None:
        """Sleep for one tick, or until a signal arrives."""
        call = self.pulse.inside
        limit = call.seconds if call is not None and call.seconds is not None else self.tick
        seconds = max(0.01, min(self.tick, limit / 4))
        listen = self.signals.listen  # None once the old handlers are restored, at any time
        if listen is None:
            self._over.wait(seconds)
            return
        until = time.monotonic() + seconds
        while not self._over.is_set() and (left := until - time.monotonic()) > 0:
            with suppress(OSError):
                if select.select([listen], [], [], min(left, 0.1))[0]:
                    self._record_signals(os.read(listen, 512))
                    return

    def _record_signals(self, numbers: bytes) -> None:
        """Record a stop signal, because the main thread may be unable to run its handler."""
        known = [n for n in numbers if n in STOP_SIGNALS]
        if known and not self.signals.number:
            self.signals.number = known[0]

    def _look(self, seconds: float) -> None:
        call = self.pulse.inside
        seen = None if call is None else (self.pulse.count, call.progress())
        if call is None or seen != self._seen:
            if self._stalled is not None:
                self.reports.resumed(self._stalled.what(), self._waited)
            self._seen, self._waited, self._leaving = seen, 0.0, 0.0
            self._stalled, self._forced = None, False
            return
        self._waited += seconds
        late = call.seconds is not None and self._waited >= call.seconds
        if late and self._stalled is None and not self.signals.number:
            self._stalled = call
            self.reports.stalled(call.what(), self._waited, *stack_of(self._watched))
        if self.signals.number:
            self._leave(seconds)

    def _leave(self, seconds: float) -> None:
        """Interrupt a call that has not returned since a signal arrived."""
        self._leaving += seconds
        if not self._forced:
            if self._stalled is not None or self._leaving >= self.grace / 2:
                self._forced = True
                pulse, count = self.pulse, self.pulse.count
                self.signals.force(lambda: pulse.inside is not None and pulse.count == count)
        elif self._leaving >= self.grace - self.tick:
            self.signals.abandon()
            try:
                self.reports.rescue()
            finally:
                os._exit(self.signals.code)
        else:
            self.signals.remind()
