"""Time per activity and speed of a run. Uses monotonic clocks only."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

RECENT = 120.0  # seconds that speed is measured over
_APART = 0.5  # seconds; a mark that follows sooner replaces the previous one


@dataclass
class Lapse:
    """Due once `seconds` have passed since `restart`; None: never."""

    seconds: float | None
    since: float = 0.0
    count: int = 0  # how often it was due and the action was taken

    def restart(self) -> None:
        self.since = time.monotonic()

    def due(self) -> bool:
        return self.seconds is not None and time.monotonic() - self.since >= self.seconds


@dataclass
class Clock:
    """Seconds per activity since the start, and speed over the last two minutes."""

    before: float = 0.0  # seconds of earlier sessions of the same run
    started: float = field(default_factory=time.perf_counter)
    parts: dict[str, float] = field(
        default_factory=lambda: dict.fromkeys(("env", "act", "learn"), 0.0)
    )
    elsewhere: bool = False  # other processes do all the work: shares are of the sum of the parts
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
        """Return shares of this session's time; `other` is the time outside all parts."""
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
        """Exclude time that is neither acting nor learning, such as an evaluation, from the speed
        and the ETA. It still counts for the age of the run."""
        start = time.perf_counter()
        try:
            yield
        finally:
            spent = time.perf_counter() - start
            for i, (then, step, updates) in enumerate(self._marks):
                self._marks[i] = (then + spent, step, updates)

    def forget(self) -> None:
        """Restart the measurement of speed."""
        self._marks.clear()

    def mark(self, step: int, updates: int) -> tuple[float, float]:
        """Return steps/s and updates/s over the last two minutes."""
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
