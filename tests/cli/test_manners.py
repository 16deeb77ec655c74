"""Small things a user notices: help without a scolding, modules in the current folder, hints."""

from __future__ import annotations

import sys

from .conftest import call

ENVIRONMENT = """
import gymnasium as gym, numpy as np
class Still(gym.Env):
    observation_space = gym.spaces.Box(0, 1, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}
    def step(self, action):
        return np.zeros(2, np.float32), 1.0, False, False, {}
"""


def test_no_arguments_is_a_question():
    for words in ([], ["config"]):
        answer = call(*words)
        assert answer.code == 0 and answer.out.startswith("Usage:") and not answer.err


def test_train_finds_an_environment_in_the_current_folder(tmp_path, monkeypatch):
    (tmp_path / "still_here.py").write_text(ENVIRONMENT)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    answer = call(
        "train", "dqn", "still_here:Still", "steps=60", "warmup=20", "batch=4",
        "env.max_episode_steps=10", "checkpoint_every=60", "tensorboard=off", "-q",
    )  # fmt: skip
    assert answer.code == 0, answer.err
    assert "score 10.0" in answer.out


def test_a_schedule_eaten_by_the_shell_is_recognised():
    answer = call("train", "dqn", "CartPole-v1", "lr=1e-3-", "--dry-run")
    assert answer.code == 2 and "E102" in answer.err and "'lr=1e-3->0'" in answer.err


def test_a_word_where_a_table_belongs():
    answer = call("train", "dqn", "CartPole-v1", "head=quantile", "--dry-run")
    assert answer.code == 2 and "algo.head.kind=quantile" in answer.err


def test_booleans_are_shown_as_they_are_typed():
    answer = call("train", "dqn", "CartPole-v1", "double=true", "--dry-run")
    shown = [line.split() for line in answer.out.splitlines()]
    assert ["algo.double", "true", "command", "line"] in shown


def test_what_to_type_next(tmp_path):
    small = ["steps=60", "warmup=20", "batch=4", "tensorboard=off", "-q", "--runs-dir", tmp_path]
    done = call("train", "dqn", "ludus/Identity-v0", *small)
    assert "steps=+100k" in done.out
    cut = call(
        "train", "dqn", "ludus/Identity-v0", *small, "--callback", "tests.cli.parts:StopAtOnce"
    )
    assert "ludus resume" in cut.out and "steps=+" not in cut.out
