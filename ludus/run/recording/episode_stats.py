"""The training return: raw scores of the last whole episodes. Cut episodes never enter.

Where checkpoints cut every episode, the last whole ones say nothing of the present: after two
intervals without any there is no score until the next one ends.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from ludus.types import EpisodeEnd


class Scores:
    """The last `window` finished episodes, and the best mean seen at a full window."""

    def __init__(self, window: int = 100) -> None:
        self.window = window
        self.scores: deque[float] = deque(maxlen=window)
        self.lengths: deque[int] = deque(maxlen=window)
        self.episodes = 0
        self.cut = 0  # episodes that checkpoints have ended
        self.best: float | None = None
        self._barrier: int | None = None  # number of the newest
        self._without = 0  # intervals between barriers, the newest ones, without a whole episode
        self._ended = False  # a whole one since the newest barrier
        self._longest_cut = 0  # steps, since then

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
        """Running episodes were cut. The same number again, after a resume, changes nothing. An
        interval too short for a whole episode says nothing."""
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
        """Whether no full window before was better; remembers it if so (ties go to the newer)."""
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
        self.cut = state.get("cut", 0)  # not in checkpoints of before
        self._barrier, self._without, self._ended = state.get("barriers", (None, 0, False))
