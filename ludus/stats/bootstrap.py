"""Stratified bootstrap: runs are resampled within each task (Agarwal et al. 2021, section 4.1)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = np.ndarray[Any, Any]
Many: TypeAlias = Callable[[Array], Array]  # [B, runs, tasks] -> [B, ...]

# Numbers held at a time (32 MB): 50k resamples of 5 x 57 scores would be 114 MB.
_CHUNK = 1 << 22


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


def interval(values: Array, confidence: float) -> tuple[Array, Array]:
    """The percentile interval along the first axis."""
    if not 0 < confidence < 1:
        raise ValueError(f"confidence {confidence:g} is not between 0 and 1")
    tail = (1 - confidence) / 2
    low, high = np.quantile(values, [tail, 1 - tail], axis=0)
    return low, high


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
