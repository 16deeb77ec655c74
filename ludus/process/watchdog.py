"""A thread that notices when the main thread does not return from somebody else's code.

It reports the call, and when it returns after all. A slow call is never ended, unless a signal
has asked the process to leave: then the call is interrupted, and if it is native code that cannot
be interrupted, this thread saves what can be saved and ends the process.
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

from ludus.process.health import stack_of
from ludus.process.signals import LEAVE, Signals

TICK = 1.0  # seconds between looks, at most


def _nothing() -> int:
    return 0


@dataclass(frozen=True)
class Call:
    """A call that leaves our code."""

    what: Callable[[], str]  # who is called, and with which method
    seconds: float | None = None  # after which it is reported; None: never
    progress: Callable[[], int] = _nothing  # changes while the call gets on


class Pulse:
    """What the watched thread is at. It writes one attribute per call; the watchdog reads."""

    __slots__ = ("count", "inside")

    def __init__(self) -> None:
        self.inside: Call | None = None
        self.count = 0  # of calls

    def enter(self, call: Call) -> None:
        self.count += 1
        self.inside = call

    def leave(self) -> None:
        self.inside = None


class Reports(Protocol):
    def stalled(self, what: str, seconds: float, line: str, stack: str) -> None: ...

    def resumed(self, what: str, seconds: float) -> None: ...

    def rescue(self) -> None:
        """Save what can be saved, in place of the main thread; the process ends after it."""


class Watchdog:
    """Watches the thread that enters it. `grace`: seconds that a call may take after a signal. It
    is interrupted after half of them, or at once if it was late already; native code that cannot
    be is left just before they are over."""

    def __init__(
        self, pulse: Pulse, signals: Signals, reports: Reports, *, grace: float, tick: float = TICK
    ) -> None:
        self.pulse, self.signals, self.reports = pulse, signals, reports
        self.grace, self.tick = grace, min(tick, grace / 4)
        self._over = threading.Event()
        self._watched = 0
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
        self._seen: tuple[int, int] | None = None  # call and progress in it at the newest look
        self._waited = 0.0  # seconds without progress
        self._stalled: Call | None = None  # that was reported
        self._leaving = 0.0  # of those seconds, the ones after a signal
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
            # Time in which the whole process was stopped makes nobody late.
            self._look(min(now - before, 2 * self.tick))
            before = now

    def _sleep(self) -> None:
        """A tick, or less if a signal comes."""
        call = self.pulse.inside
        limit = call.seconds if call is not None and call.seconds is not None else self.tick
        seconds = max(0.01, min(self.tick, limit / 4))
        listen = self.signals.listen  # None once the handlers are put back, at any moment
        if listen is None:
            self._over.wait(seconds)
            return
        until = time.monotonic() + seconds
        while not self._over.is_set() and (left := until - time.monotonic()) > 0:
            with suppress(OSError):
                if select.select([listen], [], [], min(left, 0.1))[0]:
                    self._hear(os.read(listen, 512))
                    return

    def _hear(self, numbers: bytes) -> None:
        """The main thread may not get to run its handler."""
        known = [n for n in numbers if n in LEAVE]
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
        """A signal came, and the call has not returned since."""
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
