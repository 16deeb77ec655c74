"""The first thing that a newcomer types."""

from __future__ import annotations

import numpy as np
import pytest

import ludus
from ludus.cli.main import run as command
from ludus.track.checkpoint.reader import load


@pytest.mark.slow  # half a minute of training
@pytest.mark.accept(1)
def test_one_command_trains_dqn_to_475_on_cartpole(tmp_path):
    words = ["train", "dqn", "CartPole-v1", "-q", "--runs-dir", str(tmp_path), "--run", "x"]
    assert command(words) == 0
    scores = ludus.evaluate(tmp_path / "x", episodes=100, checkpoint="last").scores
    assert len(scores) == 100 and np.mean(scores) >= 475


@pytest.mark.accept(1)
def test_one_command_trains_dqn_on_pong(tmp_path):
    """Its preset, with less memory and fewer steps: the learner learns and games are scored."""
    words = ["train", "dqn", "pong", "steps=64", "warmup=16", "batch=4", "capacity=200",
             "env.num=2", "env.atari.max_frames=60", "eval.episodes=1", "tensorboard=off",
             "-q"]  # fmt: skip
    assert command([*words, "--runs-dir", str(tmp_path), "--run", "x"]) == 0
    saved = load(tmp_path / "x")
    assert saved.step >= 64 and saved.state["updates"] > 0 and saved.state["skipped"] == 0
    assert len((tmp_path / "x" / "evals.csv").read_text().splitlines()) == 2
