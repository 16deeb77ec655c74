"""A run with replay roles, killed and resumed, equals the one that was never interrupted."""

from __future__ import annotations

import pytest

from ludus.track.metrics.writer import read_metrics
from tests.contract.same import same_checkpoints, same_runs
from tests.contract.test_resume import SHORT, killed_and_resumed, ludus
from tests.contract.tiny import run, tiny

pytestmark = pytest.mark.slow  # whole runs in several processes

ROLES = {
    "one, when asked": ("rainbow-iqn", "run.replays=1"),
    "two, ahead": ("prioritized-dqn", "run.actors=2", "run.replays=2", "run.prefetch=2"),
}


@pytest.mark.parametrize("what", ROLES)
def test_killed_and_resumed_equals_uninterrupted(what, tmp_path) -> None:
    """Rows, priorities, counters and generators of the roles are in the checkpoint."""
    name, *settings = ROLES[what]
    whole = run(tiny(name, "CartPole-v1", *settings, *SHORT), tmp_path).path
    cut = killed_and_resumed(name, "CartPole-v1", whole, tmp_path, (*settings, *SHORT))
    same_runs(whole, cut)
    same_checkpoints(whole, cut, "best")


def test_rows_that_were_not_saved_are_collected_again(tmp_path) -> None:
    settings = ("run.actors=2", "run.replays=2", "run.save_replay=off", "steps=400")
    path = run(tiny("dqn", "CartPole-v1", *settings, "checkpoint_every=200"), tmp_path).path
    before = read_metrics(path / "metrics.jsonl")[-1]
    assert ludus("resume", str(path), "steps=+200", "--quiet") == 0
    after = read_metrics(path / "metrics.jsonl")[-1]
    assert before["step"] < 600 <= after["step"] < 700
    # As many updates per step as before: rows of the refill are counted once.
    assert after["updates"] / before["updates"] == pytest.approx(
        (after["step"] - 64) / (before["step"] - 64), rel=0.05
    )
