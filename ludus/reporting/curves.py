"""Learning curves: of each run, and of all seeds of a group together."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ludus.reporting.charts import Chart, Line, draw, thin
from ludus.reporting.groups import Group
from ludus.reporting.reading import RunData
from ludus.reporting.sizes import Sizes
from ludus.reporting.windows import WINDOW

Column = Sequence[float]


def seed_line(run: RunData, label: str, colour: int, sizes: Sizes, *, alone: bool) -> Line:
    """One run: the mean of its last 100 episodes; with deviation and extremes where it is alone."""
    found = thin(run.windows, sizes.mean if alone else sizes.seed)
    mean = [w.mean for w in found]
    std, least, most = ([getattr(w, n) for w in found] for n in ("std", "least", "most"))
    # A deviation is symmetric, scores are not: the band stays between what was seen.
    low = [max(m - s, a) for m, s, a in zip(mean, std, least, strict=True)]
    high = [min(m + s, a) for m, s, a in zip(mean, std, most, strict=True)]
    return Line(
        label,
        colour,
        [w.step for w in found],
        mean,
        "mean" if alone else "seed",
        low if alone else (),
        high if alone else (),
        least if alone else (),
        most if alone else (),
        facts={
            "sd": std,
            "lo": least,
            "hi": most,
            "e": [w.episodes for w in found],
            "s": [w.seconds for w in found],
        }
        if sizes.facts
        else {},
        note=f"seed {run.seed}",
        run=run.name,
    )


def over_seeds(
    group: Group, colour: int, curves: Sequence[tuple[Column, Column]], points: int
) -> Line | None:
    """Mean, deviation and extremes of several curves, as far as every one of them goes."""
    curves = [(x, y) for x, y in curves if len(x)]
    if len(curves) < 2:
        return None
    first, last = max(x[0] for x, _ in curves), min(x[-1] for x, _ in curves)
    if last <= first:
        return None
    at = np.linspace(first, last, points)
    values = np.stack([np.interp(at, x, y) for x, y in curves])
    mean, std = values.mean(0), values.std(0, ddof=1)
    least, most = values.min(0), values.max(0)
    return Line(
        group.label,
        colour,
        at.round().tolist(),
        mean.tolist(),
        "mean",
        np.maximum(mean - std, least).tolist(),
        np.minimum(mean + std, most).tolist(),
        least.tolist(),
        most.tolist(),
        {"sd": std.tolist(), "lo": least.tolist(), "hi": most.tolist()},
        note=f"{len(curves)} {group.repeats}",
    )


def _evaluations(run: RunData, label: str, colour: int, kind: str, sizes: Sizes) -> Line:
    points = {"mean": sizes.mean, "seed": sizes.seed, "dots": 100}
    found = thin(run.during, points[kind])
    facts: dict[str, Column] = {"sd": [e.std for e in found], "e": [e.episodes for e in found]}
    return Line(
        label,
        colour,
        [e.step for e in found],
        [e.mean for e in found],
        kind,
        facts=facts if sizes.facts else {},
        note=f"seed {run.seed}",
    )


def learning_chart(
    key: str,
    env: str,
    groups: Sequence[Group],
    colour_of: dict[str, int],
    references: Sequence[Line],
    sizes: Sizes,
) -> Chart | None:
    """All groups of one environment. A lone run shows its own deviation and its evaluations."""
    lines = list(references)
    runs = [run for group in groups for run in group.runs]
    for group in groups:
        colour = colour_of[group.label]
        curves = [([w.step for w in r.windows], [w.mean for w in r.windows]) for r in group.runs]
        mean = over_seeds(group, colour, curves, sizes.mean)
        alone = mean is None
        lines += [seed_line(r, group.label, colour, sizes, alone=alone) for r in group.runs]
        lines += [mean] if mean is not None else []
    if len(runs) == 1:
        label = groups[0].label
        lines.append(_evaluations(runs[0], f"{label}: evaluation", colour_of[label], "dots", sizes))
    return draw(
        key,
        env,
        lines,
        x_name="agent steps",
        y_name=f"mean of the last {WINDOW} training episodes ± deviation, min to max",
        skip=runs[0].skip if runs else 1,
        view="training",
    )


def evaluation_chart(
    key: str, env: str, groups: Sequence[Group], colour_of: dict[str, int], sizes: Sizes
) -> Chart | None:
    """Evaluations while training, where runs had several of them."""
    lines = []
    for group in groups:
        colour, runs = colour_of[group.label], [r for r in group.runs if len(r.during) > 1]
        curves = [([e.step for e in r.during], [e.mean for e in r.during]) for r in runs]
        mean = over_seeds(group, colour, curves, sizes.mean)
        kind = "mean" if mean is None else "seed"
        if kind == "mean" or sizes.facts:
            lines += [_evaluations(run, group.label, colour, kind, sizes) for run in runs]
        lines += [mean] if mean is not None else []
    return draw(
        key,
        env,
        lines,
        x_name="agent steps",
        y_name="mean score of an evaluation ± deviation over seeds, min to max",
        skip=groups[0].runs[0].skip,
        view="evaluation",
    )
