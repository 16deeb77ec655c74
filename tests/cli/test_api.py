"""Ludus from Python: configure, train, load, act, evaluate."""

from __future__ import annotations

import json

import pytest

import ludus
from ludus.errors import LudusError

SMALL = {"steps": 240, "warmup": 40, "batch": 8, "tensorboard": False}


class Watcher(ludus.Callback):
    def __init__(self):
        self.seen = []

    def on_start(self, run):
        self.seen.append("start")

    def on_update(self, run, metrics):
        return {"agent/mine": 7.0}

    def on_end(self, run):
        self.seen.append("end")


def test_ten_lines(tmp_path):
    cfg = ludus.config("dqn", "CartPole-v1", seed=1, **SMALL)
    watcher = Watcher()
    run = ludus.train(cfg, runs_dir=tmp_path, callbacks=[watcher], quiet=True)
    assert run.path.parent == tmp_path.resolve() and run.step >= 240 and run.exit_code == 0
    assert watcher.seen == ["start", "end"]
    assert run.config == cfg
    assert any(line.get("agent/mine") == 7.0 for line in run.metrics())
    agent = ludus.load(run.path)
    env = agent.make_env()
    obs, _ = env.reset(seed=0)
    for _ in range(3):
        action = agent.act(obs)
        assert env.action_space.contains(action)
        obs, _, terminated, truncated, _ = env.step(action)
        if terminated or truncated:
            break
    result = run.best.eval(episodes=3)
    assert len(result.scores) == 3 and result.mean_ci()[1] <= result.mean <= result.mean_ci()[2]
    assert len(ludus.evaluate(run.path, episodes=2, seed=5).scores) == 2
    longer = ludus.resume(run.path, steps="+60", quiet=True)
    assert longer.step >= 300 and longer.path == run.path


def test_the_same_name_resumes(tmp_path):
    cfg = ludus.config("dqn", "ludus/Identity-v0", **SMALL)
    first = ludus.train(cfg, runs_dir=tmp_path, run="x", quiet=True)
    again = ludus.train(cfg, runs_dir=tmp_path, run="x", quiet=True)
    assert (again.step, again.updates) == (first.step, first.updates)
    assert ludus.train(cfg, runs_dir=tmp_path, run="x", fresh=True, quiet=True).path == first.path
    assert (tmp_path / "x.1").is_dir()


def test_config_is_a_module_and_a_function():
    from ludus.settings.resolve import Config

    cfg = ludus.config("ppo", "Pendulum-v1", lr="1e-3->0", **{"algo.epochs": 2})
    assert isinstance(cfg, Config) and ludus.Config is Config
    assert cfg.algo.epochs == 2 and cfg.algo.lr.end == 0
    with pytest.raises(LudusError, match="did you mean  epochs"):
        ludus.config("ppo", "Pendulum-v1", epoch=2)


def test_an_environment_may_be_a_class(tmp_path):
    from tests.cli.test_bad_input import WrongShape

    cfg = ludus.config("dqn", WrongShape)
    assert cfg.env.id == "tests.cli.test_bad_input:WrongShape"


def test_settings_are_frozen_and_unknown_names_raise():
    cfg = ludus.config("dqn", "CartPole-v1")
    with pytest.raises(ValueError, match="frozen"):
        cfg.run.seed = 3
    with pytest.raises(AttributeError, match="nothing"):
        ludus.nothing  # noqa: B018
    assert "train" in dir(ludus)


def test_the_manifest_names_the_preset(tmp_path):
    made = ludus.api.resolved("dqn", "CartPole-v1", tensorboard=False, steps=40)
    path = ludus.train(made, runs_dir=tmp_path, quiet=True).path
    assert made.preset
    assert json.loads((path / "manifest.json").read_text())["lineage"] == {"preset": made.preset}
