"""Statistics of a run: of its episodes (`Scores`), of each actor (`ActorScores`) and of its time
(`Clock`).

The training return is the mean raw score of the last whole episodes; cut episodes do not count.
If checkpoints cut every episode, the last whole ones are out of date: after two intervals without
a whole episode there is no score until the next one ends.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from ludus.types import EpisodeEnd

RECENT = 120.0  # seconds that speed is measured over
_APART = 0.5  # seconds; a mark that follows sooner replaces the previous one
SHOWN = 8  # actors; the least exploring one is always among them
WINDOW = 20  # episodes


class Scores:
    """The last `window` finished episodes, and the best mean seen at a full window."""

    def __init__(self, window: int = 100) -> None:
        self.window = window
        self.scores: deque[float] = deque(maxlen=window)
        self.lengths: deque[int] = deque(maxlen=window)
        self.episodes = 0
        self.cut = 0  # episodes that checkpoints have ended
        self.best: float | None = None
        self._barrier: int | None = None  # number of the newest barrier
        self._without = 0  # latest intervals between barriers without a whole episode
        self._ended = False  # whether a whole episode ended since the newest barrier
        self._longest_cut = 0  # steps of the longest episode cut since then

    def add(self, episode: EpisodeEnd) -> None:
        if episode.end == "checkpoint":
            self.cut += 1
            self._longest_cut = max(self._longest_cut, episode.length)
        if not episode.whole:
            return
        self._ended, self._without = True, 0
        self.scores.append(episode.score)
        self.lengths.append(episode.length)
        self.episodes += 1

    def barrier(self, number: int) -> None:
        """Count a barrier, which cuts running episodes. The same number again, after a resume,
        changes nothing. An interval too short for a whole episode does not count."""
        if number == self._barrier:
            return
        usual = sum(self.lengths) / max(1, len(self.lengths))
        if self._barrier is not None and not self._ended and self._longest_cut >= usual:
            self._without += 1
        self._barrier, self._ended, self._longest_cut = number, False, 0

    @property
    def cut_share(self) -> float:
        return self.cut / max(1, self.cut + self.episodes)

    @property
    def stale(self) -> bool:
        """Whether all whole episodes are older than the last two intervals between barriers."""
        return self._without >= 2

    @property
    def mean(self) -> float | None:
        return sum(self.scores) / len(self.scores) if self.scores and not self.stale else None

    @property
    def mean_length(self) -> float | None:
        return sum(self.lengths) / len(self.lengths) if self.lengths and not self.stale else None

    def improved(self) -> bool:
        """Whether the mean of a full window is the best so far; store it if so (or if equal)."""
        mean = self.mean
        if mean is None or len(self.scores) < self.window:
            return False
        if self.best is not None and mean < self.best:
            return False
        self.best = mean
        return True

    def state(self) -> dict[str, Any]:
        return {
            "scores": list(self.scores),
            "lengths": list(self.lengths),
            "episodes": self.episodes,
            "best": self.best,
            "cut": self.cut,
            "barriers": [self._barrier, self._without, self._ended],
        }

    def load(self, state: dict[str, Any]) -> None:
        self.scores = deque(state["scores"], maxlen=self.window)
        self.lengths = deque(state["lengths"], maxlen=self.window)
        self.episodes, self.best = state["episodes"], state["best"]
        self.cut = state.get("cut", 0)  # older checkpoints lack it
        self._barrier, self._without, self._ended = state.get("barriers", (None, 0, False))


class ActorScores:
    """Scores of each actor: actors may explore differently, and one may be broken."""

    def __init__(self, actors: int, num_envs: int) -> None:
        self.num_envs = num_envs  # of each
        self.scores: list[deque[float]] = [deque(maxlen=WINDOW) for _ in range(actors)]
        self.epsilon: dict[int, float] = {}  # by actor: the smallest of its environments

    def add(self, episode: EpisodeEnd) -> None:
        actor = episode.env // self.num_envs
        if actor >= len(self.scores):
            return
        if "epsilon" in episode.info:
            known = self.epsilon.get(actor, 1.0)
            self.epsilon[actor] = min(known, float(episode.info["epsilon"]))
        if episode.whole:
            self.scores[actor].append(episode.score)

    def shown(self) -> list[int]:
        """Return evenly spaced actors, among them the one that explores least."""
        count = len(self.scores)
        if count <= SHOWN:
            return list(range(count))
        chosen = [round(i * (count - 1) / (SHOWN - 1)) for i in range(SHOWN)]
        least = min(self.epsilon, key=lambda a: self.epsilon[a], default=chosen[0])
        return sorted({least, *chosen}, key=lambda a: (a != least, a))[:SHOWN]

    def metrics(self) -> dict[str, float]:
        """Return the metrics of the shown actors; empty for a single actor."""
        if len(self.scores) < 2:
            return {}
        values: dict[str, float] = {}
        for actor in self.shown():
            if self.scores[actor]:
                values[f"score_{actor}"] = fmean(self.scores[actor])
            if actor in self.epsilon:
                values[f"epsilon_{actor}"] = self.epsilon[actor]
        return values

    def record(self) -> dict[str, list[float | None]]:
        """Return values of all actors if `metrics` shows only some; None: no episode yet."""
        count = len(self.scores)
        if count <= SHOWN:
            return {}
        values = {"scores": [_short(fmean(s)) if s else None for s in self.scores]}
        if self.epsilon:
            epsilons = (self.epsilon.get(actor) for actor in range(count))
            values["epsilons"] = [None if e is None else _short(e) for e in epsilons]
        return values

    def state(self) -> dict[str, Any]:
        epsilon = {str(actor): value for actor, value in self.epsilon.items()}
        return {"scores": [list(scores) for scores in self.scores], "epsilon": epsilon}

    def load(self, state: dict[str, Any]) -> None:
        """Restore the state; it is empty in checkpoints of older versions."""
        for own, saved in zip(self.scores, state.get("scores", ()), strict=False):
            own.extend(saved)
        self.epsilon = {int(actor): value for actor, value in state.get("epsilon", {}).items()}


def _short(number: float) -> float | None:
    """Round to six digits, since every line of metrics.jsonl has the list."""
    return float(f"{number:.6g}") if math.isfinite(number) else None


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
        whole = sum(self.parts.values()) if self.elsewhere else self.session_seconds
        shares = {k: v / max(whole, 1e-9) for k, v in self.parts.items()}
        if not self.elsewhere:
            shares["other"] = max(0.0, 1.0 - sum(shares.values()))
        return {"env": 0.0, "act": 0.0, "learn": 0.0, "other": 0.0} | shares

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
