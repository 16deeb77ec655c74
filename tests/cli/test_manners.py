"""Small things a user notices: help without a scolding, modules in the current folder, hints."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

import pytest

from ludus.cli.info import first_sentence
from ludus.units import show_bytes
from tests.cli.conftest import call

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


def test_sizes_are_shown_in_the_unit_that_fits():
    shown = [show_bytes(x) for x in (5, 2e3, 3e6, 4e9, 5.5e12)]
    assert shown == ["5 B", "2 KB", "3 MB", "4 GB", "5.5 TB"]


def test_presets_are_listed_by_one_sentence_and_shown_in_full():
    whole = {(r["algo"], r["name"]): r["source"] for r in call("list", "presets", "--json").json}
    table = call("list", "presets").out
    shown = {algo: " ".join(call("show", algo).out.split()) for algo in {a for a, _ in whole}}
    for (algo, _), source in whole.items():
        assert first_sentence(source) in table
        assert " ".join(source.split()) in shown[algo]
    long = next(s for s in whole.values() if first_sentence(s) != " ".join(s.split()))
    assert " ".join(long.split()) not in table
    assert first_sentence("Mnih et al. 2015, table 1. Ours\nis smaller.").endswith("table 1.")


@pytest.mark.parametrize("name", ["epsilon", "eval.epsilon"])
def test_random_actions_are_refused_where_there_are_none(name):
    answer = call("train", "ppo", "CartPole-v1", f"{name}=0.5", "--dry-run")
    assert answer.code == 2 and "E104" in answer.err


def test_evaluating_ppo_with_epsilon_is_refused(runs):
    small = ("steps=64", "rollout=16", "tensorboard=off", "-q", "--json", "--runs-dir", runs)
    path = call("train", "ppo", "CartPole-v1", *small).json["path"]
    refused = call("eval", path, "--episodes", "2", "--epsilon", "0.5")
    assert refused.code == 2 and "E104" in refused.err and "--sample" in refused.err
    assert call("eval", path, "--episodes", "2", "--epsilon", "0").code == 0


def test_the_end_is_reported_once(runs):
    words = ("steps=60", "warmup=20", "batch=4", "tensorboard=off", "--runs-dir", runs)
    done = call("train", "dqn", "ludus/Identity-v0", *words, "--run", "x")
    assert (done.out + done.err).count("finished at step") == 1
    assert (runs / "x" / "log.txt").read_text().count("finished at step") == 1


def test_the_source_archive_has_what_a_developer_needs():
    root = Path(__file__).parents[2]
    project = tomllib.loads((root / "pyproject.toml").read_text())
    packed = set(project["tool"]["hatch"]["build"]["targets"]["sdist"]["include"])
    assert {"docs", "CHANGELOG.md", "Makefile", "tools", "constraints.txt", "tests"} <= packed
    assert all((root / name).exists() for name in packed)
