"""Aggregates of scores over runs and tasks, and their intervals. numpy only.

Scores are [runs, tasks]; a plain list is the runs of one task. The formulas are those of Agarwal
et al. 2021 ("Deep RL at the edge of the statistical precipice") and of its library rliable.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias, TypedDict, Unpack

import numpy as np
from numpy.typing import ArrayLike

Array: TypeAlias = np.ndarray[Any, Any]
Many: TypeAlias = Callable[[Array], Array]  # [B, runs, tasks] -> [B, ...]
Statistic: TypeAlias = Callable[[Array], float]
RESAMPLES, CONFIDENCE = 10_000, 0.95
# Numbers held at a time (32 MB): 50k resamples of 5 x 57 scores would be 114 MB.
_CHUNK = 1 << 22


def mean(scores: ArrayLike) -> float:
    """Mean of the tasks' means. One outstanding task can dominate it."""
    return float(_means(matrix(scores)))


def median(scores: ArrayLike) -> float:
    """Median of the tasks' means. Half the tasks may score nothing without changing it."""
    return float(_medians(matrix(scores)))


def iqm(scores: ArrayLike) -> float:
    """The interquartile mean: the mean of the middle half of all runs of all tasks.

    n scores lose the floor(n / 4) lowest and as many highest; fewer than four lose none.
    """
    return float(_iqms(matrix(scores)))


def optimality_gap(scores: ArrayLike, gamma: float = 1.0) -> float:
    """How far runs stay below `gamma` on average; higher scores count as gamma.

    gamma - mean(min(score, gamma)): lower is better, 0 where every run reaches gamma.
    """
    return float(_gaps(matrix(scores), gamma))


def performance_profile(scores: ArrayLike, taus: ArrayLike) -> Array:
    """[taus]: the share of all runs that score more than tau, each task weighing the same."""
    return _profiles(matrix(scores), np.asarray(taus, dtype=np.float64))


def probability_of_improvement(x: ArrayLike, y: ArrayLike) -> float:
    """How likely a run of x beats a run of y on a task drawn at random; ties count half.

    The Mann-Whitney statistic of each task over (runs of x) * (runs of y), then the mean.
    """
    return float(_wins(x, y).mean())


class Bootstrap(TypedDict, total=False):
    """Options of an interval; the defaults are 10,000 resamples, 0.95 and seed 0."""

    resamples: int
    confidence: float
    seed: int


def stratified_bootstrap(
    scores: ArrayLike, statistic: Statistic, **how: Unpack[Bootstrap]
) -> tuple[float, float]:
    """The percentile interval of a statistic; runs are resampled within each task.

    Any function of [runs, tasks] will do; those of this file are computed for all resamples at
    once. With one run per task the interval has no width and means nothing.
    """
    many = _MANY.get(statistic) or _one_by_one(statistic)
    low, high = _ends(partial(resampled, matrix(scores), many), **how)
    return float(low), float(high)


def bootstrap_profile(
    scores: ArrayLike, taus: ArrayLike, **how: Unpack[Bootstrap]
) -> tuple[Array, Array]:
    """Low and high ends of a performance profile, each [taus], point by point."""
    at = np.asarray(taus, dtype=np.float64)
    return _ends(partial(resampled, matrix(scores), lambda s: _profiles(s, at)), **how)


def bootstrap_improvement(
    x: ArrayLike, y: ArrayLike, **how: Unpack[Bootstrap]
) -> tuple[float, float]:
    """The interval of the probability of improvement; x and y are resampled independently."""
    low, high = _ends(partial(resampled_wins, _wins(x, y)), **how)
    return float(low), float(high)


def _ends(
    resample: Callable[..., Array],
    *,
    resamples: int = RESAMPLES,
    confidence: float = CONFIDENCE,
    seed: int = 0,
) -> tuple[Array, Array]:
    """The percentile interval along the first axis."""
    values = resample(resamples=resamples, seed=seed)
    if not 0 < confidence < 1:
        raise ValueError(f"confidence {confidence:g} is not between 0 and 1")
    tail = (1 - confidence) / 2
    low, high = np.quantile(values, [tail, 1 - tail], axis=0)
    return low, high


def matrix(scores: ArrayLike) -> Array:
    """[runs, tasks], or ValueError: a missing value would silently change a score."""
    found = np.asarray(scores, dtype=np.float64)
    if found.ndim == 1:
        found = found[:, None]
    if found.ndim != 2 or found.size == 0:
        raise ValueError(f"scores must be [runs, tasks] and not empty, not {list(found.shape)}")
    if not np.isfinite(found).all():
        raise ValueError("scores must be finite numbers; leave out runs that have none")
    return found


def _wins(x: ArrayLike, y: ArrayLike) -> Array:
    """[runs of x, runs of y, tasks]: 1 where x is better, 1/2 where they are equal."""
    a, b = matrix(x)[:, None, :], matrix(y)[None, :, :]
    if a.shape[2] != b.shape[2]:
        raise ValueError(f"x has {a.shape[2]} tasks and y has {b.shape[2]}")
    return np.asarray((a > b) + 0.5 * (a == b))


# The same statistics over the last two axes of [..., runs, tasks].


def _means(scores: Array) -> Array:
    return np.asarray(scores.mean(-2).mean(-1))


def _medians(scores: Array) -> Array:
    return np.asarray(np.median(scores.mean(-2), axis=-1))


def _iqms(scores: Array) -> Array:
    flat = scores.reshape(*scores.shape[:-2], -1)
    cut = flat.shape[-1] // 4
    kept = np.sort(flat, axis=-1)[..., cut : flat.shape[-1] - cut]
    return np.asarray(kept.mean(-1))


def _gaps(scores: Array, gamma: float = 1.0) -> Array:
    return np.asarray(gamma - np.minimum(scores, gamma).mean((-2, -1)))


def _profiles(scores: Array, taus: Array) -> Array:
    shares: Sequence[Array] = [(scores > tau).mean((-2, -1)) for tau in taus.ravel()]
    return np.stack(shares, axis=-1) if len(shares) else np.zeros((*scores.shape[:-2], 0))


def _one_by_one(statistic: Statistic) -> Many:
    return lambda batch: np.array([statistic(scores) for scores in batch], dtype=np.float64)


# The stratified bootstrap: runs are resampled within each task (section 4.1 of the paper).


def resampled(scores: Array, many: Many, *, resamples: int, seed: int) -> Array:
    """`many` of that many resamples of [runs, tasks]."""
    rng = np.random.default_rng(seed)
    runs, tasks = scores.shape
    columns = np.arange(tasks)
    found = []
    for size in _chunks(resamples, scores.size):
        rows = rng.integers(runs, size=(size, runs, tasks))
        found.append(many(scores[rows, columns]))
    return np.concatenate(found)


def resampled_wins(wins: Array, *, resamples: int, seed: int) -> Array:
    """[resamples] means of [runs of x, runs of y, tasks], both sides resampled.

    Counts how often a run was drawn instead of copying its scores: a matrix product then replaces
    the comparison of every pair of every resample.
    """
    rng = np.random.default_rng(seed)
    x_runs, y_runs, tasks = wins.shape
    table = np.ascontiguousarray(np.moveaxis(wins, 2, 0))  # [tasks, X, Y]
    found = []
    for size in _chunks(resamples, tasks * (x_runs + y_runs)):
        x = _counts(rng, x_runs, tasks, size)  # [tasks, B, X]
        y = _counts(rng, y_runs, tasks, size)
        found.append(((x @ table) * y).sum(-1).mean(0) / (x_runs * y_runs))  # [B]
    return np.concatenate(found)


def _counts(rng: np.random.Generator, runs: int, tasks: int, size: int) -> Array:
    """[tasks, size, runs]: how often each run was drawn among as many draws."""
    drawn = rng.integers(runs, size=(tasks * size, runs))
    cells = drawn + np.arange(tasks * size)[:, None] * runs
    counts = np.bincount(cells.ravel(), minlength=tasks * size * runs)
    return counts.reshape(tasks, size, runs).astype(np.float64)


def _chunks(resamples: int, numbers: int) -> list[int]:
    """Sizes that add up to `resamples`; they depend on the shape only, so results repeat."""
    if resamples < 1:
        raise ValueError("an interval needs at least one resample")
    most = max(1, _CHUNK // max(1, numbers))
    whole, rest = divmod(resamples, most)
    return [most] * whole + ([rest] if rest else [])


_MANY: dict[Statistic, Many] = {mean: _means, median: _medians, iqm: _iqms, optimality_gap: _gaps}
