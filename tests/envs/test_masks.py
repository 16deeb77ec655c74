"""Action masks: whose fault a bad one is, and where they may come from."""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

import ludus
from ludus.envs.check import check_env
from ludus.envs.config import EnvConfig
from ludus.envs.make import make_envs
from ludus.errors import LudusError
from ludus.precheck import precheck

HERE = "tests.envs.test_masks"


class Parts(gym.Env[Any, Any]):
    """Two or three choices at once; forbidden ones raise."""

    observation_space = spaces.Box(0, 1, (1,), np.float32)
    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["rgb_array"]}

    def __init__(self, space: str = "multi", mask: str = "sound") -> None:
        kinds = {
            "multi": spaces.MultiDiscrete([2, 3]),
            "started": spaces.MultiDiscrete([2, 3], start=[5, -1]),
            "table": spaces.MultiDiscrete([[2, 3], [3, 2]]),
            "binary": spaces.MultiBinary(2),
            "single": spaces.Discrete(3, start=4),
        }
        self.action_space = kinds[space]
        self.kind, self.nvec = mask, {"single": [3], "binary": [2, 2]}.get(space, None)
        if self.nvec is None:
            self.nvec = self.action_space.nvec.flatten().tolist()

    def draw(self) -> dict[str, Any]:
        self.allowed = []
        for n in self.nvec:
            part = np.zeros(n, bool)
            part[self.np_random.integers(n)] = True
            self.allowed.append(part)
        if self.kind == "empty":
            self.allowed[-1][:] = False
        if self.kind == "short":
            self.allowed[-1] = self.allowed[-1][:1]
        flat = np.concatenate(self.allowed)
        return {"action_mask": tuple(self.allowed) if self.kind == "tuple" else flat}

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.t = 0
        return np.zeros(1, np.float32), self.draw()

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action)
        start = getattr(self.action_space, "start", 0)
        parts = np.atleast_1d(action - start).flatten().tolist()
        assert all(m[a] for m, a in zip(self.allowed, parts, strict=True)), "a forbidden action"
        self.t += 1
        return np.zeros(1, np.float32), 1.0, self.t >= 9, False, self.draw()


def parts(**args: str) -> EnvConfig:
    return EnvConfig(id=f"{HERE}:Parts", args=args)


@pytest.mark.parametrize("mask", ["sound", "tuple"])
@pytest.mark.parametrize("space", ["multi", "started", "table", "binary", "single"])
def test_check_takes_only_allowed_actions(space, mask):
    found = check_env(parts(space=space, mask=mask), steps=60, seconds=3)
    assert not [f for f in found if f.level != "ok" and "per second" not in f.text], found


@pytest.mark.parametrize("workers", [0, 1])
def test_a_part_without_an_allowed_choice_is_the_environments_fault(workers):
    cfg = parts(mask="empty").model_copy(update={"workers": workers})
    with make_envs(cfg, seed=1) as envs, pytest.raises(LudusError, match="part 1") as bad:
        envs.reset()
    assert bad.value.code == "E202" and "act()" not in str(bad.value)


@pytest.mark.parametrize(
    ("space", "mask", "says"),
    [
        ("multi", "empty", "nothing in part 1"),
        ("single", "empty", "allows no action"),
        ("multi", "short", "3 entries, expected 5"),
    ],
)
def test_check_blames_the_mask(space, mask, says):
    found = check_env(parts(space=space, mask=mask), steps=20, seconds=3)
    assert found[0].level == "error" and says in found[0].text and found[0].fix


class Board(gym.Env[Any, Any]):
    """The mask is a part of the observation, as in PettingZoo."""

    action_space = spaces.Discrete(3)
    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["rgb_array"]}

    def __init__(self, plain: bool = False) -> None:
        self.observation_space = spaces.Dict(
            {
                "observation": spaces.Box(0, 1, (2,), np.float32),
                "action_mask": spaces.Box(0, 1, (3,), np.int8),
            }
        )
        self.strict = not plain

    def see(self) -> Any:
        self.allowed = np.zeros(3, np.int8)
        self.allowed[self.np_random.integers(3)] = 1
        return {"observation": np.ones(2, np.float32), "action_mask": self.allowed}

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.t = 0
        return self.see(), {}

    def step(self, action: Any) -> Any:
        assert not self.strict or self.allowed[action], "a forbidden action"
        self.t += 1
        return self.see(), 1.0, self.t >= 9, False, {}


BOARD = f"{HERE}:Board"
HINT = "env.wrappers=[{name: MaskFromObs}]"


def test_a_mask_in_the_observation_gets_a_hint():
    found = check_env(EnvConfig(id=BOARD, args={"plain": True}), steps=20, seconds=3)
    assert [f.fix for f in found if "obs.action_mask" in f.text and f.level == "warning"] == [HINT]
    cfg = ludus.config("ppo", BOARD, steps=64)
    (result,) = [text for text in precheck(cfg).warnings if "obs.action_mask" in text]
    assert HINT in result


def test_a_mask_in_the_observation_is_used_with_the_wrapper(tmp_path):
    settings = {"steps": 64, "rollout": 8, "env.num": 2, "tensorboard": False}
    cfg = ludus.config("ppo", BOARD, **settings, **{"env.wrappers": [{"name": "MaskFromObs"}]})
    assert not [text for text in precheck(cfg).warnings if "action_mask" in text]
    agent = ludus.load(ludus.train(cfg, runs_dir=tmp_path, quiet=True).path, trust=True)
    assert agent.spec.has_action_mask and list(agent.spec.obs) == ["observation"]
    assert agent.evaluate(2).scores == [9.0, 9.0]
    assert check_env(cfg.env, steps=20, seconds=3)[0].level != "error"


def test_the_wrapper_says_when_there_is_no_mask_to_take():
    cfg = EnvConfig(id="CartPole-v1", wrappers=[{"name": "MaskFromObs"}])
    with pytest.raises(LudusError, match="action_mask"):
        make_envs(cfg, seed=0)
