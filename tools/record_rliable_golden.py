"""Writes tests/data/rliable_golden.json: what rliable itself makes of fixed scores.

Needs rliable (1.2.0 was used), which Ludus does not depend on: run it in an environment of its
own. The inputs are a made-up matrix, the matrices of rliable's own test, and the first five runs
of SPR and DrQ(eps) of the Atari 100k scores that were published with it, human-normalised.
"""

from __future__ import annotations

import csv
import importlib.metadata
import json
from pathlib import Path

import numpy as np
import scipy.stats
from rliable import library, metrics

DATA = Path(__file__).resolve().parent.parent / "tests" / "data"
PACKAGE = DATA.parent.parent / "ludus" / "stats" / "data"
RESAMPLES = 50_000
AGGREGATES = {
    "mean": metrics.aggregate_mean,
    "median": metrics.aggregate_median,
    "iqm": metrics.aggregate_iqm,
    "optimality_gap": metrics.aggregate_optimality_gap,
}
TAUS = [0.0, 0.1, 0.25, 0.5, 1.0, 2.0]


def rows(path: Path):
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def atari() -> dict[str, np.ndarray]:
    """[5 runs, 26 games], 0 for random play and 1 for the human tester."""
    limits = {row["game"]: row for row in rows(PACKAGE / "atari_scores.csv")}
    found = {}
    for agent in ("SPR", "DrQ(eps)"):
        columns = []
        for row in rows(DATA / "atari100k_first_runs.csv"):
            low, high = (float(limits[row["game"]][key]) for key in ("random", "human"))
            raw = np.array([float(row[f"{agent} {run}"]) for run in range(1, 6)])
            columns.append((raw - low) / (high - low))
        found[agent] = np.stack(columns, axis=1)
    return found


def made_up() -> dict[str, np.ndarray]:
    """Skewed like scores are, and not the same number of runs."""
    rng = np.random.default_rng(7)
    return {
        "x": rng.lognormal(-0.5, 0.8, size=(5, 8)),
        "y": rng.lognormal(-0.3, 0.6, size=(4, 8)),
    }


def ties() -> dict[str, np.ndarray]:
    """Rounded, so that many are equal. Without intervals: statistics of so few different values
    move in steps of 1 %, and the 97.5 % point of y's median lies within chance of one (97.47 % of
    2 million resamples)."""
    return {name: scores.round(1) for name, scores in made_up().items()}


def own_test() -> dict[str, np.ndarray]:
    return {
        "x": np.array([[1.0, 2], [2, 2], [1, 1], [2, 1]]),
        "y": np.array([[1.0, 1], [2, 2], [3, 3]]),
    }


def improvement(x: np.ndarray, y: np.ndarray) -> float:
    """rliable's probability of improvement for all tasks in one call: its loop takes 25 ms, which
    is 20 minutes for one interval. `golden` checks that the two agree."""
    wins = scipy.stats.mannwhitneyu(x, y, axis=0, method="asymptotic").statistic
    return float(np.mean(wins / (len(x) * len(y))))


def check_improvement(x: np.ndarray, y: np.ndarray) -> None:
    rng = np.random.default_rng(1)
    columns = np.arange(x.shape[1])
    for _ in range(50):
        a = x[rng.integers(len(x), size=x.shape), columns]
        b = y[rng.integers(len(y), size=y.shape), columns]
        assert abs(improvement(a, b) - metrics.probability_of_improvement(a, b)) < 1e-12


def golden(pair: dict[str, np.ndarray], intervals: bool) -> dict:
    np.random.seed(0)  # rliable draws from the global generator
    found: dict = {"scores": {name: scores.tolist() for name, scores in pair.items()}}
    for name, scores in pair.items():
        result = {key: float(aggregate(scores)) for key, aggregate in AGGREGATES.items()}
        profile, _ = library.create_performance_profile({name: scores}, np.array(TAUS), reps=2)
        result["profile"] = profile[name].tolist()
        if intervals:
            every = lambda s: np.array([a(s) for a in AGGREGATES.values()])  # noqa: E731
            _, ends = library.get_interval_estimates({name: scores}, every, reps=RESAMPLES)
            result["intervals"] = dict(zip(AGGREGATES, ends[name].T.tolist(), strict=True))
        found[name] = result
    x, y = pair.values()
    found["improvement"] = float(metrics.probability_of_improvement(x, y))
    if intervals:
        check_improvement(x, y)
        _, ends = library.get_interval_estimates({"x,y": (x, y)}, improvement, reps=RESAMPLES)
        found["improvement_interval"] = ends["x,y"].ravel().tolist()
    return found


def main() -> None:
    value = {
        "rliable": importlib.metadata.version("rliable"),
        "resamples": RESAMPLES,
        "taus": TAUS,
        "made_up": golden(made_up(), True),
        "ties": golden(ties(), False),
        "own_test": golden(own_test(), False),
        "atari100k": golden(atari(), True),
    }
    (DATA / "rliable_golden.json").write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
