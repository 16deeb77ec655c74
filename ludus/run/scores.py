"""The training return: raw scores of the last whole episodes. Cut episodes never enter."""

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
        self.best: float | None = None

    def add(self, episode: EpisodeEnd) -> None:
        if episode.end == "checkpoint":
            return
        self.scores.append(episode.score)
        self.lengths.append(episode.length)
        self.episodes += 1

    @property
    def mean(self) -> float | None:
        return sum(self.scores) / len(self.scores) if self.scores else None

    @property
    def mean_length(self) -> float | None:
        return sum(self.lengths) / len(self.lengths) if self.lengths else None

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
        }

    def load(self, state: dict[str, Any]) -> None:
        self.scores = deque(state["scores"], maxlen=self.window)
        self.lengths = deque(state["lengths"], maxlen=self.window)
        self.episodes, self.best = state["episodes"], state["best"]
