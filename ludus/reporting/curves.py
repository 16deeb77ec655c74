"""Learning curves of runs and of groups of seeds, performance profiles, and their colours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ludus.reporting.charts import Chart, Line, draw, thin
from ludus.reporting.sizes import Sizes
from ludus.stats import aggregates
from ludus.stats.groups import Group
from ludus.stats.runs import Run
from ludus.stats.windows import WINDOW

Column = Sequence[float]
COLOURS = 8  # of the style sheet; further groups start again, with another dash
# Common algorithms keep their colour from one report to the next.
_USUAL = {"ppo": 0, "dqn": 1, "rainbow-iqn": 2, "rainbow": 3, "c51": 4, "impala": 5, "a3c": 7}


def group_colours(groups: Sequence[Group]) -> dict[str, int]:
    """Label -> number of its colour: the usual one of its algorithm, or the next free."""
    found: dict[str, int] = {}
    labels = sorted({(g.label != g.algo, g.algo not in _USUAL, g.label, g.algo) for g in groups})
    for _, _, label, algo in labels:
        taken = set(found.values())
        usual = _USUAL.get(algo)
        free = next(i for i in range(len(taken) + 1) if i not in taken)
        found[label] = usual if usual is not None and usual not in taken else free
    return found


def profile_chart(tables: Mapping[str, np.ndarray], colours: Mapping[str, int]) -> Chart | None:
    """The performance profile of each label's [runs, environments]."""
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


def _banded(name: str, colour: int, x: Column, columns: Sequence[list[float]], **more: Any) -> Line:
    """A mean with its deviation and extremes: `columns` are mean, std, least and most."""
    mean, std, least, most = columns
    # A deviation is symmetric, scores are not: clip the band to the extremes.
    low = [max(m - s, a) for m, s, a in zip(mean, std, least, strict=True)]
    high = [min(m + s, a) for m, s, a in zip(mean, std, most, strict=True)]
    return Line(name, colour, x, mean, "mean", low, high, least, most, **more)


def seed_line(run: Run, label: str, colour: int, sizes: Sizes, *, alone: bool) -> Line:
    """One run: the mean of its last 100 episodes; with deviation and extremes if it is alone."""
    found = thin(run.windows, sizes.mean if alone else sizes.seed)
    names = ("mean", "std", "least", "most", "episodes", "seconds", "step")
    *columns, episodes, seconds, steps = ([getattr(w, n) for w in found] for n in names)
    mean, std, least, most = columns
    facts = {"sd": std, "lo": least, "hi": most, "e": episodes, "s": seconds}
    more: Any = {"facts": facts if sizes.facts else {}, "note": f"seed {run.seed}", "run": run.name}
    if alone:
        return _banded(label, colour, steps, columns, **more)
    return Line(label, colour, steps, mean, "seed", **more)


def over_seeds(
    group: Group, colour: int, curves: Sequence[tuple[Column, Column]], points: int
) -> Line | None:
    """Mean, deviation and extremes of several curves, up to the end of the shortest."""
    curves = [(x, y) for x, y in curves if len(x)]
    if len(curves) < 2:
        return None
    first, last = max(x[0] for x, _ in curves), min(x[-1] for x, _ in curves)
    if last <= first:
        return None
    at = np.linspace(first, last, points)
    values = np.stack([np.interp(at, x, y) for x, y in curves])
    of = (values.mean(0), values.std(0, ddof=1), values.min(0), values.max(0))
    columns = [column.tolist() for column in of]
    facts = dict(zip(("sd", "lo", "hi"), columns[1:], strict=True))
    note = f"{len(curves)} {group.repeats}"
    return _banded(group.label, colour, at.round().tolist(), columns, facts=facts, note=note)


def _evaluations(run: Run, label: str, colour: int, kind: str, sizes: Sizes) -> Line:
    points = {"mean": sizes.mean, "seed": sizes.seed, "dots": 100}
    found = thin(run.during, points[kind])
    steps, means = [e.step for e in found], [e.mean for e in found]
    facts: dict[str, Column] = {"sd": [e.std for e in found], "e": [e.episodes for e in found]}
    more: Any = {"facts": facts if sizes.facts else {}, "note": f"seed {run.seed}"}
    return Line(label, colour, steps, means, kind, **more)


def learning_chart(
    key: str,
    env: str,
    groups: Sequence[Group],
    colours: dict[str, int],
    references: Sequence[Line],
    sizes: Sizes,
) -> Chart | None:
    """All groups of one environment. A lone run shows its own deviation and its evaluations."""
    lines = list(references)
    runs = [run for group in groups for run in group.runs]
    for group in groups:
        colour = colours[group.label]
        curves = [([w.step for w in r.windows], [w.mean for w in r.windows]) for r in group.runs]
        mean = over_seeds(group, colour, curves, sizes.mean)
        alone = mean is None
        lines += [seed_line(r, group.label, colour, sizes, alone=alone) for r in group.runs]
        lines += [mean] if mean is not None else []
    if len(runs) == 1:
        label = groups[0].label
        lines.append(_evaluations(runs[0], f"{label}: evaluation", colours[label], "dots", sizes))
    y_name = f"mean of the last {WINDOW} training episodes ± deviation, min to max"
    return draw(key, env, lines, y_name=y_name, **_over_steps(groups, "training"))


def evaluation_chart(
    key: str, env: str, groups: Sequence[Group], colours: dict[str, int], sizes: Sizes
) -> Chart | None:
    """Evaluations while training, if runs had several of them."""
    lines = []
    for group in groups:
        colour, runs = colours[group.label], [r for r in group.runs if len(r.during) > 1]
        curves = [([e.step for e in r.during], [e.mean for e in r.during]) for r in runs]
        mean = over_seeds(group, colour, curves, sizes.mean)
        kind = "mean" if mean is None else "seed"
        if kind == "mean" or sizes.facts:
            lines += [_evaluations(run, group.label, colour, kind, sizes) for run in runs]
        lines += [mean] if mean is not None else []
    y_name = "mean score of an evaluation ± deviation over seeds, min to max"
    return draw(key, env, lines, y_name=y_name, **_over_steps(groups, "evaluation"))


def _over_steps(groups: Sequence[Group], view: str) -> Any:
    return {"x_name": "agent steps", "skip": groups[0].runs[0].frame_skip, "view": view}
