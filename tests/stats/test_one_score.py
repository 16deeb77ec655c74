"""A run has one score: `ludus compare`, `ludus bench` and the report show the same number."""

from __future__ import annotations

import pytest

from ludus.stats.runs import read_run
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
    "the newest checkpoint is the best one too": {
        "scores": [1.0, 2.0], "files": {"greedy-800": 9.0}, "checkpoints": (500, 800), "best": 800,
    },
    "old weights, and training": {
        "scores": [1.0, 2.0], "files": {"greedy-500": 9.0}, "checkpoints": (500, 1000),
    },
    "old weights, and nothing else": {"files": {"greedy-500": 9.0}, "checkpoints": (500, 1000)},
    "older than the newest checkpoint, newer than the last line": {
        "evals": [(400, 4.0)], "files": {"greedy-500": 9.0}, "checkpoints": (500, 1000),
    },
    "evaluated while training, then by hand": {
        "evals": [(400, 4.0)], "files": {"greedy-800": 9.0}, "checkpoints": (400, 800),
    },
    "trained on since the last line": {"scores": [1.0, 2.0], "evals": [(400, 4.0)]},
    "other rules typed": {
        "scores": [1.0, 2.0], "files": {"greedy-1000": 9.0, "odd-1000": 99.0}, "changed": ("odd",),
    },
    "a quick look": {"evals": [(1000, 4.0)], "files": {"greedy-1000": 7.0}, "played": 2},
    "actions drawn from the policy": {
        "files": {"greedy-1000": 9.0, "sample-1000": 99.0}, "sampled": ("sample",),
    },
    "only actions drawn from the policy": {
        "scores": [1.0, 2.0], "files": {"sample-1000": 9.0}, "sampled": ("sample",),
    },
    "other rules, as many episodes": {
        "files": {"greedy-1000": 9.0, "zaxxon-1000": 99.0}, "protocol": ("saber", "1"),
        "by": {"zaxxon": {"protocol": "dqn-2015*", "protocol_hash": "2"}},
    },
    "other rules, more episodes": {
        "files": {"greedy-1000": 9.0, "zaxxon-1000": 99.0}, "protocol": ("saber", "1"),
        "by": {"zaxxon": {"protocol": "dqn-2015*", "protocol_hash": "2", "episodes": 50}},
    },
    "only other rules typed": {
        "scores": [1.0, 2.0], "files": {"odd-1000": 99.0}, "changed": ("odd",),
    },
}  # fmt: skip
VALUES = dict(
    zip(CASES, (1.5, 4, 7, 4, 1.5, 9, 6, 9, 1.5, 9, 4, 9, 4, 9, 4, 9, 9, 9, 99, 1.5), strict=True)
)


@pytest.mark.parametrize("case", CASES)
def test_the_report_and_the_comparison_agree(tmp_path, case):
    run = made_run(tmp_path, step=1000, **CASES[case])
    one, other = read_run(run).score, read_run(run, history=True).score
    assert one is not None and one == other
    assert one.mean == VALUES[case] and one.of_best == (case == "only the best")
    assert one.step == 1000 or one.evaluated


def test_an_evaluation_by_other_rules_is_never_the_score(tmp_path):
    run = made_run(tmp_path, files={"odd-1000": 99.0}, changed=("odd",))
    assert read_run(run).score is None and read_run(run, history=True).score is None
