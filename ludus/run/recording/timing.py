"""Where the time of a run goes, and how fast it is. Monotonic clocks only."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

RECENT = 120.0  # seconds that speed is measured over
_APART = 0.5  # seconds; marks that follow sooner take the place of the one before


@dataclass
class Lapse:
    """Whether so many seconds have passed since `restart`; None: never."""

    seconds: float | None
    since: float = 0.0
    count: int = 0  # of the times that it was acted upon

    def restart(self) -> None:
        self.since = time.monotonic()

    def due(self) -> bool:
        return self.seconds is not None and time.monotonic() - self.since >= self.seconds


@dataclass
class Clock:
    """Seconds per activity since the start and since the last look."""

    before: float = 0.0  # seconds of earlier sessions of the same run
    started: float = field(default_factory=time.perf_counter)
    parts: dict[str, float] = field(
        default_factory=lambda: dict.fromkeys(("env", "act", "learn"), 0.0)
    )
    elsewhere: bool = False  # parts are what other processes did, and all of it: shares are of that
    _marks: list[tuple[float, int, int]] = field(default_factory=list)

    def add(self, part: str, seconds: float) -> None:
        self.parts[part] = self.parts.get(part, 0.0) + seconds

    @property
    def seconds(self) -> float:
        return self.before + time.perf_counter() - self.started

    @property
    def session_seconds(self) -> float:
        return time.perf_counter() - self.started

    def split(self) -> dict[str, float]:
        """Shares of this session's time; what is in no part is `other`."""
        if self.elsewhere:
            whole = max(sum(self.parts.values()), 1e-9)
            return {"env": 0.0, "act": 0.0, "learn": 0.0, "other": 0.0} | {
                k: v / whole for k, v in self.parts.items()
            }
        total = max(self.session_seconds, 1e-9)
        shares = {k: v / total for k, v in self.parts.items()}
        shares["other"] = max(0.0, 1.0 - sum(shares.values()))
        return shares

    @contextmanager
    def outside(self) -> Iterator[None]:
        """Of what is neither acting nor learning, such as an evaluation: no part of the speed, and
        so of the time to go; part of the run's age."""
        start = time.perf_counter()
        try:
            yield
        finally:
            spent = time.perf_counter() - start
            for i, (then, step, updates) in enumerate(self._marks):
                self._marks[i] = (then + spent, step, updates)

    def forget(self) -> None:
        """Speed is measured anew."""
        self._marks.clear()

    def mark(self, step: int, updates: int) -> tuple[float, float]:
        """Steps/s and updates/s over the last two minutes."""
        now = time.perf_counter()
        if len(self._marks) > 1 and now - self._marks[-2][0] < _APART:
            self._marks.pop()
        self._marks.append((now, step, updates))
        while len(self._marks) > 2 and now - self._marks[1][0] >= RECENT:
            self._marks.pop(0)
        then, step0, updates0 = self._marks[0]
        span = now - then
        if span <= 0:
            return 0.0, 0.0
        return (step - step0) / span, (updates - updates0) / span
