"""An environment that changed since a run was trained, and weights for another one."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
import torch

from ludus import registry
from ludus.errors import LudusError
from ludus.run.session import train_run
from ludus.settings.resolve import Config
from ludus.track.checkpoint.reader import load
from tests.contract.tiny import run, tiny


class Arm(gym.Env):
    high = 1.0

    def __init__(self):
        self.observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
        self.action_space = gym.spaces.Box(-1, self.high, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.t += 1
        return np.zeros(2, np.float32), 0.0, self.t == 5, False, {}


def settings(algo: str, steps: int) -> Config:
    return tiny(algo, f"{__name__}:Arm", f"steps={steps}", "env.num=1", "run.horizon=70")


@pytest.mark.parametrize("algo", ["sac", "ppo"])
def test_a_run_is_not_resumed_in_another_environment(algo, tmp_path, monkeypatch) -> None:
    path = run(settings(algo, 70), tmp_path).path
    cfg = settings(algo, 100)
    before = (path / "metrics.jsonl").read_bytes()
    monkeypatch.setattr(Arm, "high", 4.0)
    with pytest.raises(LudusError, match="not the environment") as caught:
        train_run(cfg, registry.make(cfg.algo), path=path, resume=True, quiet=True)
    assert caught.value.code == "E306" and "action: trained with" in caught.value.where
    assert (path / "metrics.jsonl").read_bytes() == before
    monkeypatch.setattr(Arm, "high", 1.0)
    assert train_run(cfg, registry.make(cfg.algo), path=path, resume=True, quiet=True).step >= 100


@pytest.mark.parametrize("algo", ["sac", "td3"])
def test_weights_of_another_run_leave_the_box_of_actions_alone(algo, tmp_path, monkeypatch) -> None:
    first = run(settings(algo, 70), tmp_path / "a").path
    monkeypatch.setattr(Arm, "high", 4.0)
    second = run(settings(algo, 5), tmp_path / "b", init_from=first).path
    old, new = load(first).tensors["model"], load(second).tensors["model"]
    assert torch.equal(old["online.box.middle"], torch.zeros(1))
    assert new["online.box.middle"].tolist() == [1.5] and new["online.box.radius"].tolist() == [2.5]
    same = [k for k in old if k.startswith("online.policy.")]
    assert same and all(torch.equal(old[k], new[k]) for k in same)
