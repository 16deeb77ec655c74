"""A real run's TensorBoard files: all three groups, and the same numbers as metrics.jsonl."""

from __future__ import annotations

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from ludus.track.metrics.writer import read_metrics
from tests.contract.tiny import run, tiny


@pytest.mark.accept(130)
@pytest.mark.parametrize("name", ["dqn", "ppo"])
def test_a_run_writes_all_groups(name, tmp_path) -> None:
    cfg = tiny(name, "CartPole-v1", "steps=600", "log.tensorboard=true")
    path = run(cfg, tmp_path).path
    board = EventAccumulator(str(path / "tb"))
    board.Reload()
    tags = set(board.Tags()["scalars"])
    wanted = {"score", "length", "episodes", "steps_per_second"}
    assert {f"performance/{tag}" for tag in wanted} <= tags
    assert "learner/loss" in tags and any(tag.startswith("agent/") for tag in tags)
    rows = [r for r in read_metrics(path / "metrics.jsonl") if r.get("learner/loss") is not None]
    points = {e.step: e.value for e in board.Scalars("learner/loss")}
    assert points and points == pytest.approx(
        {r["step"]: r["learner/loss"] for r in rows}, rel=1e-5
    )
