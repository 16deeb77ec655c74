"""How each of several actors plays: they may explore differently, and one may be broken."""

from __future__ import annotations

import math
from collections import deque
from statistics import fmean
from typing import Any

from ludus.types import EpisodeEnd

SHOWN = 8  # actors; the least exploring one is always among them
WINDOW = 20  # episodes


class ActorScores:
    def __init__(self, actors: int, num_envs: int) -> None:
        self.num_envs = num_envs  # of each
        self.scores: list[deque[float]] = [deque(maxlen=WINDOW) for _ in range(actors)]
        self.epsilon: dict[int, float] = {}  # by actor: the least of its slots

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
        """Evenly chosen actors."""
        count = len(self.scores)
        if count <= SHOWN:
            return list(range(count))
        chosen = [round(i * (count - 1) / (SHOWN - 1)) for i in range(SHOWN)]
        least = min(self.epsilon, key=lambda a: self.epsilon[a], default=chosen[0])
        return sorted({least, *chosen}, key=lambda a: (a != least, a))[:SHOWN]

    def metrics(self) -> dict[str, float]:
        """Nothing for a lone actor: its score is the run's."""
        if len(self.scores) < 2:
            return {}
        told: dict[str, float] = {}
        for actor in self.shown():
            if self.scores[actor]:
                told[f"score_{actor}"] = fmean(self.scores[actor])
            if actor in self.epsilon:
                told[f"epsilon_{actor}"] = self.epsilon[actor]
        return told

    def record(self) -> dict[str, list[float | None]]:
        """All of them, by number, where not all are shown; None: no episode yet."""
        count = len(self.scores)
        if count <= SHOWN:
            return {}
        told = {"scores": [_short(fmean(s)) if s else None for s in self.scores]}
        if self.epsilon:
            epsilons = (self.epsilon.get(actor) for actor in range(count))
            told["epsilons"] = [None if e is None else _short(e) for e in epsilons]
        return told

    def state(self) -> dict[str, Any]:
        epsilon = {str(actor): value for actor, value in self.epsilon.items()}
        return {"scores": [list(scores) for scores in self.scores], "epsilon": epsilon}

    def load(self, state: dict[str, Any]) -> None:
        """Checkpoints of older versions have none of it: `state` may be empty."""
        for own, saved in zip(self.scores, state.get("scores", ()), strict=False):
            own.extend(saved)
        self.epsilon = {int(actor): value for actor, value in state.get("epsilon", {}).items()}


def _short(number: float) -> float | None:
    """Six digits are enough for a list that stands in every line."""
    return float(f"{number:.6g}") if math.isfinite(number) else None
