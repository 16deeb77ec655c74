"""Compare groups of runs: scores per environment, and aggregates over all environments.

Prints and draws nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from ludus.errors import LudusError
from ludus.stats import aggregates
from ludus.stats.aggregates import bootstrap_improvement, iqm, stratified_bootstrap
from ludus.stats.groups import Group, group_runs
from ludus.stats.references import (
    HUMAN,
    RANDOM,
    RECORD,
    Reference,
    game_of,
    human_normalized,
    kind_of,
    record_normalized,
    references,
)
from ludus.stats.runs import Run
from ludus.stats.warnings import mixed, warnings_of

MIN_RUNS = 3  # on each side; with two, separate scores give the same value in every resample
STATISTICS: Mapping[str, Callable[[ArrayLike], float]] = {
    "IQM": iqm,
    "median": aggregates.median,
    "mean": aggregates.mean,
    "optimality gap": aggregates.optimality_gap,
}


@dataclass(frozen=True)
class Estimate:
    value: float
    interval: tuple[float, float] | None  # None if there are too few runs


@dataclass(frozen=True)
class Row:
    """An algorithm over several environments."""

    label: str
    runs: int  # per environment
    estimates: dict[str, Estimate]  # by name of the statistic


class Improvement(NamedTuple):
    better: str
    than: str
    probability: Estimate


@dataclass(frozen=True)
class Aggregates:
    """Algorithms against each other over all environments, by normalized scores."""

    tables: dict[str, np.ndarray]  # label -> [runs, environments], the best mean first
    rows: list[Row]
    envs: list[str]
    scale: str  # how scores were normalized
    improvements: list[Improvement]
    left_out: list[str]  # labels that did not run in every environment
    uneven: bool  # some had more runs than are used

    @property
    def repeated(self) -> bool:
        """Whether any algorithm ran twice in an environment, and so has an interval."""
        return any(row.runs > 1 for row in self.rows)


class GameRow(NamedTuple):
    group: Group
    human: float | None  # 0 is random play, 1 the human tester
    record: float | None  # 1 is the human world record


@dataclass(frozen=True)
class Game:
    """The scores of an Atari game, and those of random, human and record play."""

    env: str
    rows: tuple[GameRow, ...]
    random: float | None
    human: float | None
    record: float | None
    published: tuple[Reference, ...]  # agents of the same kind of protocol, the best first


def compare(runs: Sequence[Run]) -> dict[str, Any]:
    """The comparison as JSON values; E303 if no run has a score yet.

    Per environment its groups, the best first; intervals are null below two seeds.
    """
    if not any(run.score for run in runs):
        raise LudusError(
            "E303",
            "none of these runs has a score yet",
            where=", ".join(run.name for run in runs[:5]),
            why="no episode has ended, and nothing was evaluated",
            fix="ludus status RUN  shows how far a run is; ludus eval RUN  evaluates it",
        )
    groups = sorted(group_runs([run for run in runs if run.score]), key=lambda g: -iqm(g.scores))
    found = {env: [g for g in groups if g.env == env] for env in dict.fromkeys(r.env for r in runs)}
    unscored = [run for run in runs if run.score is None]
    return {
        "environments": [
            _environment(env, members, [run for run in unscored if run.env == env])
            for env, members in found.items()
        ],
        "overall": _overall({env: g for env, g in found.items() if _has_human_score(env)}),
    }


def _environment(env: str, groups: Sequence[Group], unscored: Sequence[Run]) -> dict[str, Any]:
    protocols = {run.score.protocol for g in groups for run in g.scored if run.score}
    return {
        "env": env,
        "game": game_of(env),
        "protocols": sorted(protocols - {""}),
        "algorithms": [_group(group) for group in groups],
        "improvement": [
            {"x": x.label, "y": y.label, "probability": found.value, "interval": found.interval}
            for x, y in combinations(groups, 2)
            if (found := _improvement(x.scores, y.scores))
        ],
        "warnings": warnings_of(groups, unscored),
    }


def _group(group: Group) -> dict[str, Any]:
    scores = group.scores
    middle = _estimate(scores, iqm)
    return {
        "label": group.label,
        "algo": group.algo,
        "seeds": group.seeds,
        "score": aggregates.mean(scores),
        "min": min(scores),
        "max": max(scores),
        "iqm": middle.value,
        "interval": middle.interval,
        "from": group.described_sources,
        "human_normalized": human_normalized(group.env, middle.value),
        "record_normalized": record_normalized(group.env, middle.value),
        "runs": [_run(run) for run in group.runs],
    }


def _run(run: Run) -> dict[str, Any]:
    score = run.score
    assert score is not None, "compared runs have a score"
    return {
        "name": run.name,
        "path": str(run.path),
        "seed": run.seed,
        "state": run.state,
        "step": run.step,
        "score": score.mean,
        "from": score.source,
        "episodes": score.episodes,
        "score_step": score.step,
        "protocol": score.protocol or None,
        "protocol_hash": score.protocol_hash or None,
        "human_normalized": human_normalized(run.env, score.mean),
        "record_normalized": record_normalized(run.env, score.mean),
    }


def _overall(games: Mapping[str, Sequence[Group]]) -> dict[str, Any] | None:
    """Human-normalized aggregates over several games; None for fewer than two."""
    if len(games) < 2:
        return None
    rows, left_out, used = [], [], []
    groups = [group for members in games.values() for group in members]
    for label in dict.fromkeys(group.label for group in groups):
        mine = [group for group in groups if group.label == label]
        if len(mine) < len(games) or len({len(group.scores) for group in mine}) > 1:
            left_out.append(label)
            continue
        rows.append(_row(label, _table([_human_scores(g.env, g.scores) for g in mine])))
        used += [run for group in mine for run in group.runs]
    rows.sort(key=lambda row: -row.estimates["IQM"].value)
    why = "not the same number of runs on each of these games"
    return {
        "games": list(games),
        "algorithms": [
            {
                "label": row.label,
                "seeds": row.runs,
                **{f.__name__: asdict(row.estimates[name]) for name, f in STATISTICS.items()},
            }
            for row in rows
        ],
        "warnings": [
            *mixed(used),
            *([f"{', '.join(left_out)} left out: {why}"] if left_out else []),
        ],
    }


def aggregate(groups: Sequence[Group], labels: Sequence[str]) -> Aggregates | None:
    """Aggregates of groups that have scores, their labels in this order; None unless there are two
    algorithms or several environments."""
    envs = sorted({group.env for group in groups})
    if len(labels) < 2 and len(envs) < 2:
        return None
    found = {(group.label, group.env): group.scores for group in groups}
    complete = [name for name in labels if all((name, env) in found for env in envs)]
    if not complete:
        return None
    normal, scale = _normalized(found, envs)
    made = {name: _table([normal[name, env] for env in envs]) for name in complete}
    tables = dict(sorted(made.items(), key=lambda item: -aggregates.mean(item[1])))
    return Aggregates(
        tables,
        rows=[_row(name, table) for name, table in tables.items()],
        envs=envs,
        scale=scale,
        improvements=_improvements(tables),
        left_out=[name for name in labels if name not in complete],
        uneven=len({len(scores) for scores in found.values()}) > 1,
    )


def _has_human_score(env: str) -> bool:
    return human_normalized(env, 0.0) is not None


def _human_scores(env: str, scores: Sequence[float]) -> list[float]:
    return [float(human_normalized(env, score) or 0.0) for score in scores]


def _normalized(
    found: Mapping[tuple[str, str], Sequence[float]], envs: Sequence[str]
) -> tuple[dict[tuple[str, str], list[float]], str]:
    """By human play if every environment is a game; else by the range of these scores."""
    if all(game_of(env) and _has_human_score(env) for env in envs):
        human = {(name, env): _human_scores(env, scores) for (name, env), scores in found.items()}
        return human, "human-normalised: 0 is random play, 1 the human tester"
    ranges = {}
    for env in envs:
        seen = [v for (_, its), scores in found.items() if its == env for v in scores]
        ranges[env] = (min(seen), max(seen) - min(seen) or 1.0)
    scaled = {
        (name, env): [(v - ranges[env][0]) / ranges[env][1] for v in scores]
        for (name, env), scores in found.items()
    }
    return scaled, "0 is the lowest run of this report in an environment, 1 the highest"


def _table(columns: Sequence[Sequence[float]]) -> np.ndarray:
    """[runs, environments], cut to the fewest runs of an environment."""
    fewest = min(map(len, columns))
    return np.array([column[:fewest] for column in columns]).T


def _row(label: str, table: np.ndarray) -> Row:
    return Row(label, len(table), {name: _estimate(table, f) for name, f in STATISTICS.items()})


def _estimate(scores: ArrayLike, statistic: Callable[[ArrayLike], float]) -> Estimate:
    enough = len(np.asarray(scores)) > 1
    return Estimate(statistic(scores), stratified_bootstrap(scores, statistic) if enough else None)


def _improvement(x: ArrayLike, y: ArrayLike) -> Estimate:
    enough = min(len(np.asarray(x)), len(np.asarray(y))) >= MIN_RUNS
    value = aggregates.probability_of_improvement(x, y)
    return Estimate(value, bootstrap_improvement(x, y) if enough else None)


def _improvements(tables: Mapping[str, np.ndarray], most: int = 20) -> list[Improvement]:
    """Each pair once, the more likely winner first."""
    found = []
    for x, y in combinations(tables, 2):
        if aggregates.probability_of_improvement(tables[x], tables[y]) < 0.5:
            x, y = y, x
        found.append(Improvement(x, y, _improvement(tables[x], tables[y])))
    return sorted(found, key=lambda f: -f.probability.value)[:most]


def games(groups: Sequence[Group], published: int = 4) -> list[Game]:
    """The Atari games among the environments; published agents only of the same protocol."""
    found = []
    for env in sorted({group.env for group in groups}):
        game, members = game_of(env), [group for group in groups if group.env == env]
        if game is None:
            continue
        known = {r.agent: r.score for r in references(game)}
        kinds = {kind_of(run.score.protocol) for g in members for run in g.scored if run.score}
        agents = [r for r in references(game) if r.agent not in (RANDOM, HUMAN, RECORD)]
        same = sorted((r for r in agents if kinds == {r.protocol}), key=lambda r: -r.score)
        rows = tuple(
            GameRow(g, human_normalized(game, g.mean), record_normalized(game, g.mean))
            for g in sorted(members, key=lambda g: -g.mean)
        )
        random, human, record = (known.get(name) for name in (RANDOM, HUMAN, RECORD))
        found.append(Game(env, rows, random, human, record, tuple(same[:published])))
    return found
