"""Integer observations: what a network sees of them follows from the bounds of their space."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces

import ludus
from ludus.api import resolved
from ludus.envs.check import check_env
from ludus.envs.config import EnvConfig
from ludus.envs.spec import ObsCodec
from ludus.errors import LudusError
from ludus.evals.agent import load_agent
from ludus.nets.inputs import ImageInput, VectorInput
from ludus.nets.normalize import Normalizer
from ludus.precheck import precheck
from ludus.settings.resolve import Config, load_config
from ludus.settings.trust import Trust
from ludus.types import ArraySpec, Discrete, EnvSpec, Rows, tree_leaves
from tests.contract.tiny import run, tiny

BIG = 2**30


def seen(space: spaces.Space, value: Any, **options: Any) -> list[float]:
    """What the network sees of an observation."""
    codec = ObsCodec(space, **options)
    buffers = codec.buffers(1)
    codec.write(value, buffers, 0)
    leaf = tree_leaves(codec.spec)[0]
    return VectorInput(leaf)(torch.from_numpy(buffers[0])).flatten().tolist()


def box(low: Any, high: Any, dtype: Any, n: int = 3) -> spaces.Box:
    return spaces.Box(np.full(n, low, dtype), np.full(n, high, dtype), dtype=dtype)


@pytest.mark.parametrize(
    ("space", "given", "expected"),
    [
        (box(0, 1, np.uint8), [0, 1, 1], [0, 1, 1]),
        (box(0, 10, np.uint8), [0, 5, 10], [0, 0.5, 1]),
        (box(2, 12, np.uint8), [2, 7, 12], [0, 0.5, 1]),
        (box([0, 0, 2], [10, 5, 2], np.uint8), [10, 1, 2], [1, 0.2, 0]),
        (box(0, 10, np.int64), [0, 5, 10], [0, 0.5, 1]),
        (box(-5, 5, np.int16), [-5, 0, 5], [0, 0.5, 1]),
        (box(BIG, BIG + 8, np.int32), [BIG, BIG + 1, BIG + 8], [0, 0.125, 1]),
        (box(2**60, 2**60 + 4, np.int64), [2**60, 2**60 + 1, 2**60 + 4], [0, 0.25, 1]),
        (box(0, 65535, np.uint16), [0, 13107, 65535], [0, 0.2, 1]),
        # No bounds: as they are.
        (spaces.Box(-np.inf, np.inf, (3,), np.int32), [-4, 0, 9], [-4, 0, 9]),
        (box(0, 2**32 - 1, np.uint32), [4, 0, 9], [4, 0, 9]),
        (box([0, 0, 0], [10, 5, 2**63 - 1], np.int64), [5, 5, 7], [0.5, 1, 7]),
    ],
    ids=str,
)
def test_integers_are_scaled_by_the_bounds_of_their_space(space, given, expected):
    assert seen(space, np.array(given, space.dtype)) == pytest.approx(expected, abs=1e-7)


def test_bytes_from_0_to_255_are_what_they_were():
    every = np.arange(256, dtype=np.uint8)
    expected = (torch.from_numpy(every).float() * (1 / 255)).tolist()
    assert seen(box(0, 255, np.uint8, 256), every) == expected
    assert ObsCodec(box(0, 255, np.uint8)).plain is not None  # read without a slow look


def test_an_image_of_bits_reaches_the_layers_as_bits():
    space = spaces.Box(0, 1, (9, 9, 2), np.uint8)
    codec, picture = ObsCodec(space), np.zeros((1, 9, 9, 2), np.uint8)
    picture[0, 3, 4, 1] = 1
    out = ImageInput(codec.spec)(torch.from_numpy(picture))
    assert codec.spec.dtype == "uint8" and out.shape == (1, 2, 9, 9)
    assert out[0, 1, 3, 4] == 1 and out.sum() == 1


@pytest.mark.parametrize(
    ("how", "space", "expected"),
    [
        ("bytes", box(0, 10, np.uint8), [5 / 255] * 3),
        ("bytes", box(0, 10, np.int64), [5] * 3),
        ("none", box(0, 255, np.uint8), [5] * 3),
        ("none", box(0, 10, np.int64), [5] * 3),
    ],
)
def test_the_scaling_can_be_chosen(how, space, expected):
    assert seen(space, np.full(3, 5, space.dtype), integers=how) == pytest.approx(expected)


def test_integers_that_float32_cannot_hold_are_refused_not_rounded():
    space = spaces.Box(-np.inf, np.inf, (3,), np.int64)
    assert seen(space, np.array([2**24, 0, -(2**24)])) == [2**24, 0, -(2**24)]
    with pytest.raises(LudusError, match="16777217") as refused:
        seen(space, np.array([0, 2**24 + 1, 0]))
    assert refused.value.code == "E203" and "low" in refused.value.fix


def rows_of(obs: torch.Tensor) -> Rows:
    steps, batch = obs.shape[0] - 1, obs.shape[1]
    number, flag = torch.zeros(steps, batch), torch.zeros(steps, batch, dtype=torch.bool)
    first = torch.zeros(steps + 1, batch, dtype=torch.bool)
    return Rows(obs, number.long(), number, number, number + 1, flag, first, ~flag)


def test_bytes_are_normalised_like_floats():
    spec = EnvSpec("x", ArraySpec((3,), "uint8", 0, 255), Discrete(2))
    norm = Normalizer(spec, 4, reward=False)
    obs = torch.randint(0, 11, (200, 4, 3), dtype=torch.uint8)
    norm.observe(rows_of(obs))
    out = VectorInput(spec.obs)(norm.obs(obs.flatten(0, 1)))
    assert out.mean(0).abs().max() < 0.05 and (out.std(0) - 1).abs().max() < 0.05


class Bits(gym.Env[Any, Any]):
    """Ten steps; the bit that is set names the action that pays 1."""

    action_space = spaces.Discrete(4)

    def __init__(self, dtype: str = "uint8", high: int = 1) -> None:
        self.observation_space = spaces.Box(0, high, (4,), np.dtype(dtype).type)
        self.dtype = dtype

    def draw(self) -> Any:
        self.t, self.answer = self.t + 1, int(self.np_random.integers(4))
        return np.eye(4, dtype=self.dtype)[self.answer]

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.t = -1
        return self.draw(), {}

    def step(self, action: Any) -> Any:
        reward = float(action == self.answer)
        return self.draw(), reward, self.t >= 10, False, {}


BITS = "tests.envs.test_integer_obs:Bits"
OURS = Trust(whole=True)
LEARN = ("steps=3000", "rollout=16", "epochs=6", "lr=1e-2->1e-3", "env.num=8", "env.id=" + BITS)


@pytest.mark.parametrize("dtype", ["uint8", "int64", "float32"])
def test_bits_are_learned_whatever_their_dtype(tmp_path, dtype):
    result = run(tiny("ppo", BITS, *LEARN, f"env.args.dtype={dtype}"), tmp_path)
    assert load_agent(result.path, trust=OURS).evaluate(20).mean >= 9.5


def test_codes_in_a_wide_box_are_learned_with_running_normalisation(tmp_path):
    """A grid that declares 0..255 and holds 0 and 1, as MiniGrid does."""
    wide = (*LEARN, "env.args.high=255", "env.normalize.obs=true")
    result = run(tiny("ppo", BITS, *wide), tmp_path)
    assert load_agent(result.path, trust=OURS).evaluate(20).mean >= 9.5


# Runs of older versions, which divided every byte by 255 and left other integers alone

SMALL = {"env.num": 2, "rollout": 8, "tensorboard": False}


@pytest.fixture
def old_run(tmp_path, monkeypatch):
    """A run whose files know nothing of the setting."""
    original = Config.tree

    def tree(self: Config) -> dict[str, Any]:
        found = original(self)
        del found["env"]["integer_scale"]
        return found

    cfg = ludus.config("ppo", BITS, steps=64, **SMALL, **{"env.integer_scale": "bytes"})
    with monkeypatch.context() as before:
        before.setattr(Config, "tree", tree)
        made = ludus.train(cfg, runs_dir=tmp_path, run="old", quiet=True)
    assert "integer_scale" not in (made.path / "config.yaml").read_text()
    return made


def test_an_agent_of_an_older_version_keeps_the_scaling_it_was_trained_with(old_run):
    lone = next(old_run.path.rglob("model.safetensors"))
    for agent in (ludus.load(old_run.path, trust=True), ludus.load(lone, trust=True)):
        assert agent.cfg.env.integer_scale == "bytes"
        assert agent.spec.obs.scale == (0, 255) and agent.spec.obs.high == 1
        assert len(agent.evaluate(2).scores) == 2


def scale_of(made: Any) -> str:
    return load_config(made.path / "config.yaml", OURS).env.integer_scale


def test_an_older_run_goes_on_with_the_scaling_it_was_trained_with(old_run):
    longer = ludus.resume(old_run.path, steps="+32", quiet=True, trust=True)
    assert longer.step > old_run.step and scale_of(longer) == "bytes"
    same = resolved("ppo", BITS, steps=160, **SMALL)
    assert same.config.env.integer_scale == "bounds"
    longest = ludus.train(same, runs_dir=old_run.path.parent, run="old", quiet=True)
    assert longest.step > longer.step and scale_of(longest) == "bytes"
    typed = resolved("ppo", BITS, steps=160, **SMALL, **{"env.integer_scale": "bounds"})
    with pytest.raises(LudusError, match=r"env.integer_scale +'bytes' -> 'bounds'"):
        ludus.train(typed, runs_dir=old_run.path.parent, run="old", quiet=True)


def test_weights_of_another_scaling_are_taken_with_a_warning(old_run, tmp_path):
    cfg = ludus.config("ppo", BITS, steps=32, **SMALL)
    new = ludus.train(cfg, runs_dir=tmp_path, run="new", init_from=old_run.path)
    shown = (new.path / "log.txt").read_text()
    assert "env.integer_scale=bytes" in shown


# ludus check


def findings(cfg: EnvConfig) -> list[tuple[str, str, str]]:
    return [tuple(f) for f in check_env(cfg, steps=60, seconds=3)]


def test_check_says_what_the_network_will_see():
    said = [text for _, text, _ in findings(EnvConfig(id=BITS))]
    assert "obs: the network sees 0 to 1 (0 to 1 of uint8 as 0 to 1)" in said
    wide = EnvConfig(id=BITS, args={"high": 255})
    (text, fix), *more = [
        (t, f) for level, t, f in findings(wide) if level == "warning" and "obs:" in t
    ]
    assert text.startswith("obs: the network sees 0 to 0.00392 (0 to 255 of uint8 as 0 to 1)")
    assert "env.normalize.obs=true" in fix and not more


def test_check_warns_of_integers_that_float32_cannot_tell_apart():
    class Wide(Bits):
        def __init__(self) -> None:
            super().__init__("int64", 2**40)

        def draw(self) -> Any:
            return super().draw() * 2**40

    assert any(
        level == "warning" and "float32" in text and "wrapper" in fix
        for level, text, fix in [tuple(f) for f in check_env(Wide, steps=60, seconds=3)]
    )


@pytest.mark.parametrize(("high", "warned"), [(2**40, True), (2**24, False)])
def test_a_run_is_warned_of_integers_that_float32_cannot_tell_apart(high, warned):
    args = {"env.args": {"dtype": "int64", "high": high}}
    cfg = ludus.config("ppo", BITS, steps=64, **SMALL, **args)
    shown = precheck(cfg).warnings
    assert len(shown) == warned
    assert all(text.startswith("obs: float32 cannot tell apart all integers") for text in shown)


def test_bytes_that_will_not_be_normalised_are_warned_of():
    bytes_ = {"env.integer_scale": "bytes", "env.normalize.obs": True}
    (shown,) = precheck(ludus.config("ppo", BITS, steps=64, **SMALL, **bytes_)).warnings
    assert shown.startswith("env.normalize.obs=true leaves bytes alone")
    bounds = ludus.config("ppo", BITS, steps=64, **SMALL, **{"env.normalize.obs": True})
    assert precheck(bounds).warnings == []
