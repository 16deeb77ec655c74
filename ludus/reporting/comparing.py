"""Algorithms against each other over all environments: aggregates of normalised scores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ludus.reporting.charts import Chart, Line, draw
from ludus.reporting.scores import GroupScore
from ludus.stats import aggregates
from ludus.stats.compare import FEWEST
from ludus.stats.references import game_of, human_normalized

NAMES = ("IQM", "median", "mean", "optimality gap")
_STATISTICS = dict(
    zip(
        NAMES,
        (aggregates.iqm, aggregates.median, aggregates.mean, aggregates.optimality_gap),
        strict=True,
    )
)


@dataclass(frozen=True)
class Estimate:
    value: float
    low: float | None = None  # None below two runs
    high: float | None = None


@dataclass(frozen=True)
class Row:
    label: str
    runs: int  # of each environment
    estimates: dict[str, Estimate]


@dataclass(frozen=True)
class Improvement:
    better: str
    than: str
    chance: Estimate


@dataclass(frozen=True)
class Comparison:
    rows: list[Row]
    tasks: list[str]
    scale: str  # how scores were normalised
    profile: Chart | None
    improvements: list[Improvement]
    left_out: list[str]  # labels that were not run everywhere
    uneven: bool  # some had more seeds than are used

    @property
    def repeated(self) -> bool:
        """Whether anything was run twice, and so has an interval."""
        return any(row.runs > 1 for row in self.rows)


def compare(scores: Sequence[GroupScore], colours: dict[str, int]) -> Comparison | None:
    """None unless there are several runs to summarise: two algorithms, or several environments."""
    tasks = sorted({s.group.env for s in scores})
    labels = sorted({s.group.label for s in scores}, key=lambda name: (colours[name], name))
    if len(labels) < 2 and len(tasks) < 2:
        return None
    found = {(s.group.label, s.group.env): [r.mean for r in s.runs] for s in scores}
    whole = [name for name in labels if all((name, task) in found for task in tasks)]
    if not whole:
        return None
    normal, scale = _normalised(found, tasks)
    made = {name: _table([normal[name, task] for task in tasks]) for name in whole}
    # The best mean on top, as in the scores of each environment.
    tables = dict(sorted(made.items(), key=lambda item: -aggregates.mean(item[1])))
    sizes = {len(values) for values in found.values()}
    return Comparison(
        rows=[_row(name, table) for name, table in tables.items()],
        tasks=tasks,
        scale=scale,
        profile=_profile(tables, colours),
        improvements=_improvements(tables),
        left_out=[name for name in labels if name not in whole],
        uneven=len(sizes) > 1,
    )


def _normalised(
    found: dict[tuple[str, str], list[float]], tasks: list[str]
) -> tuple[dict[tuple[str, str], list[float]], str]:
    """By human play where every environment is a game; else by what was seen here."""
    if all(game_of(task) and human_normalized(task, 0.0) is not None for task in tasks):
        human = {
            key: [float(human_normalized(key[1], v) or 0.0) for v in values]
            for key, values in found.items()
        }
        return human, "human-normalised: 0 is random play, 1 the human tester"
    spans = {}
    for task in tasks:
        seen = [v for (_, env), values in found.items() if env == task for v in values]
        spans[task] = (min(seen), max(seen) - min(seen) or 1.0)
    scaled = {
        key: [(v - spans[key[1]][0]) / spans[key[1]][1] for v in values]
        for key, values in found.items()
    }
    return scaled, "0 is the lowest run of this report in an environment, 1 the highest"


def _table(columns: list[list[float]]) -> np.ndarray:
    """[runs, tasks], cut to the fewest runs of a task."""
    least = min(map(len, columns))
    return np.array([column[:least] for column in columns]).T


def _row(label: str, table: np.ndarray) -> Row:
    estimates = {}
    for name, statistic in _STATISTICS.items():
        several = len(table) > 1
        ends = aggregates.stratified_bootstrap(table, statistic) if several else (None, None)
        estimates[name] = Estimate(statistic(table), *ends)
    return Row(label, len(table), estimates)


def _profile(tables: dict[str, np.ndarray], colours: dict[str, int]) -> Chart | None:
    every = np.concatenate([table.ravel() for table in tables.values()])
    taus = np.linspace(min(0.0, float(every.min())), float(every.max()), 81)
    lines, repeated = [], any(len(table) > 1 for table in tables.values())
    for label, table in tables.items():
        share = aggregates.performance_profile(table, taus)
        line = Line(label, colours[label], taus.tolist(), share.tolist())
        if len(table) > 1:
            low, high = (end.tolist() for end in aggregates.bootstrap_profile(table, taus))
            line = replace(line, low=low, high=high, facts={"lo": low, "hi": high})
        lines.append(line)
    return draw(
        "profile",
        "Performance profile",
        lines,
        x_name="normalised score τ",
        y_name=f"share of runs above τ{' and the 95 % interval of the share' if repeated else ''}",
        y_range=(0.0, 1.0),
        profile=True,
    )


def _improvements(tables: dict[str, np.ndarray]) -> list[Improvement]:
    """Of each pair once, the more likely winner first."""
    found = []
    names = list(tables)
    for i, one in enumerate(names):
        for other in names[i + 1 :]:
            chance = aggregates.probability_of_improvement(tables[one], tables[other])
            a, b = (one, other) if chance >= 0.5 else (other, one)
            x, y = tables[a], tables[b]
            value = aggregates.probability_of_improvement(x, y)
            several = min(len(x), len(y)) >= FEWEST
            ends = aggregates.bootstrap_improvement(x, y) if several else (None, None)
            found.append(Improvement(a, b, Estimate(value, *ends)))
    return sorted(found, key=lambda f: -f.chance.value)[:20]
