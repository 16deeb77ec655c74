"""A run has one score: `ludus compare`, `ludus bench` and the report show the same number."""

from __future__ import annotations

import pytest

from ludus.report import reading, scores
from ludus.stats import runs
from tests.stats.made import made_run

CASES = {
    "training only": {"scores": [1.0, 2.0]},
    "while training": {"evals": [(500, 3.0), (1000, 4.0)]},
    "a file of the last weights": {"evals": [(1000, 4.0)], "files": {"greedy-1000": 7.0}},
    "a file of older weights": {"evals": [(1000, 4.0)], "files": {"greedy-500": 7.0}},
    "only the best, and training": {
        "scores": [1.0, 2.0], "files": {"greedy-500": 9.0}, "checkpoints": (500, 1000), "best": 500,
    },
    "only the best": {"files": {"greedy-500": 9.0}, "checkpoints": (500, 1000), "best": 500},
    "best and last": {
        "files": {"greedy-500": 9.0, "saber-1000": 6.0}, "checkpoints": (500, 1000), "best": 500,
    },
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_the_report_and_the_comparison_agree(tmp_path, case):
    run = made_run(tmp_path, step=1000, **CASES[case])
    one = runs.read_run(run).score
    other = scores.run_score(reading.read_run(run.path))
    assert one is not None and other is not None
    assert one.value == pytest.approx(other.mean) and one.best == other.of_best
    assert one.step == other.step or not one.evaluated, "the run's step, or the last episode's"
