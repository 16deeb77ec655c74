"""Runs side by side: scores over seeds per environment and algorithm, and what to beware of.

Reads runs (runs.py) and aggregates (aggregates.py); prints nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from ludus.errors import LudusError
from ludus.stats import aggregates
from ludus.stats.aggregates import bootstrap_improvement, iqm, stratified_bootstrap
from ludus.stats.references import human_normalized, record_normalized
from ludus.stats.runs import RunScore, scored_by
from ludus.stats.variants import variants
from ludus.stats.warnings import mixing, warnings_of

FEWEST = 3  # runs on each side; of two and two that never cross, every draw says the same
Interval = tuple[float, float]


@dataclass(frozen=True)
class Group:
    """Runs that differ in nothing but their seed, and what they scored together."""

    label: str  # the algorithm, with the settings that tell it from its like
    algo: str
    runs: tuple[RunScore, ...]

    @property
    def scores(self) -> list[float]:
        return [run.score.value for run in self.runs if run.score is not None]

    def as_dict(self) -> dict[str, Any]:
        scores = self.scores
        env = self.runs[0].env
        interval = _interval(scores)
        return {
            "label": self.label,
            "algo": self.algo,
            "seeds": [run.seed for run in self.runs],
            "score": aggregates.mean(scores),
            "min": min(scores),
            "max": max(scores),
            "iqm": iqm(scores),
            "interval": interval,
            "from": self.sources,
            "human_normalized": human_normalized(env, iqm(scores)),
            "record_normalized": record_normalized(env, iqm(scores)),
            "runs": [_told(run) for run in self.runs],
        }

    @property
    def sources(self) -> str:
        """What the scores are means of: 'eval greedy, 100 episodes'."""
        return scored_by((r.score.source, r.score.episodes) for r in self.runs if r.score)


@dataclass(frozen=True)
class Environment:
    """One environment: its groups, the best first, and what to beware of."""

    env: str
    game: str | None
    groups: tuple[Group, ...]
    unscored: tuple[RunScore, ...]

    @property
    def protocols(self) -> list[str]:
        runs = [run for group in self.groups for run in group.runs]
        return sorted({r.score.protocol for r in runs if r.score and r.score.protocol})

    def as_dict(self) -> dict[str, Any]:
        return {
            "env": self.env,
            "game": self.game,
            "protocols": self.protocols,
            "algorithms": [group.as_dict() for group in self.groups],
            "improvement": [_improvement(x, y) for x, y in combinations(self.groups, 2)],
            "warnings": warnings_of(
                {group.label: group.runs for group in self.groups}, self.unscored
            ),
        }


@dataclass(frozen=True)
class Comparison:
    environments: tuple[Environment, ...]

    def as_dict(self) -> dict[str, Any]:
        """Everything as plain JSON values; intervals are null below two seeds."""
        return {
            "environments": [env.as_dict() for env in self.environments],
            "overall": _overall(self.environments),
        }


def compare(runs: Sequence[RunScore]) -> Comparison:
    """Group runs by environment and algorithm; E303 if none of them has a score yet."""
    if not any(run.score for run in runs):
        raise LudusError(
            "E303",
            "none of these runs has a score yet",
            where=", ".join(run.name for run in runs[:5]),
            why="no episode has ended, and nothing was evaluated",
            fix="ludus status RUN  shows how far a run is; ludus eval RUN  evaluates it",
        )
    found = []
    for env in dict.fromkeys(run.env for run in runs):
        here = [run for run in runs if run.env == env]
        scored = [run for run in here if run.score is not None]
        groups = [g for algo in dict.fromkeys(r.algo for r in scored) for g in _split(algo, scored)]
        groups.sort(key=lambda g: -iqm(g.scores))
        rest = tuple(run for run in here if run.score is None)
        found.append(Environment(env, here[0].game, tuple(groups), rest))
    return Comparison(tuple(found))


def _split(algo: str, runs: Sequence[RunScore]) -> list[Group]:
    """One group for each set of settings: two learning rates are no two seeds."""
    mine = [run for run in runs if run.algo == algo]

    def order(run: RunScore) -> tuple[int, str]:
        return (run.seed if run.seed is not None else -1, run.name)

    return [
        Group(label, algo, tuple(sorted((mine[place] for place in places), key=order)))
        for label, places in variants(algo, [run.settings for run in mine])
    ]


def _interval(scores: Sequence[float]) -> Interval | None:
    """Of the IQM; None for one seed, of which nobody knows how much it varies."""
    if len(scores) < 2:
        return None
    return stratified_bootstrap(scores, iqm)


def _improvement(x: Group, y: Group) -> dict[str, Any]:
    enough = min(len(x.scores), len(y.scores)) >= FEWEST
    return {
        "x": x.label,
        "y": y.label,
        "probability": aggregates.probability_of_improvement(x.scores, y.scores),
        "interval": bootstrap_improvement(x.scores, y.scores) if enough else None,
    }


def _told(run: RunScore) -> dict[str, Any]:
    score = run.score
    assert score is not None, "groups are of runs with a score"
    return {
        "name": run.name,
        "path": run.path,
        "seed": run.seed,
        "state": run.state,
        "step": run.step,
        "score": score.value,
        "from": score.source,
        "episodes": score.episodes,
        "score_step": score.step,
        "protocol": score.protocol,
        "protocol_hash": score.protocol_hash,
        "human_normalized": human_normalized(run.env, score.value),
        "record_normalized": record_normalized(run.env, score.value),
    }


def _overall(environments: Sequence[Environment]) -> dict[str, Any] | None:
    """Human-normalised aggregates over several games; None for fewer than two."""
    games = [env for env in environments if human_normalized(env.env, 0.0) is not None]
    if len(games) < 2:
        return None
    rows, left_out, used = [], [], []
    for label in dict.fromkeys(group.label for env in games for group in env.groups):
        mine = [g for env in games for g in env.groups if g.label == label]
        counts = {len(group.scores) for group in mine}
        if len(mine) < len(games) or len(counts) > 1:
            left_out.append(label)
            continue
        normal = [[human_normalized(g.runs[0].env, s) for s in g.scores] for g in mine]
        scores = [[x for x in column if x is not None] for column in zip(*normal, strict=True)]
        rows.append({"label": label, "seeds": counts.pop(), **_aggregates(scores)})
        used += [run for group in mine for run in group.runs]
    why = "not the same number of runs on each of these games"
    return {
        "games": [env.env for env in games],
        "algorithms": sorted(rows, key=lambda row: -float(row["iqm"]["value"])),
        "warnings": [
            *mixing(used),
            *([f"{', '.join(left_out)} left out: {why}"] if left_out else []),
        ],
    }


def _aggregates(scores: list[list[float]]) -> dict[str, Any]:
    wanted = (aggregates.mean, aggregates.median, iqm, aggregates.optimality_gap)
    return {
        statistic.__name__: {
            "value": statistic(scores),
            "interval": stratified_bootstrap(scores, statistic) if len(scores) > 1 else None,
        }
        for statistic in wanted
    }
