"""MuJoCo: versions, what a terminal and a folder see of it, and its environments."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import metadata

import gymnasium as gym
import numpy as np
import pytest

from ludus.cli import doctor
from ludus.envs.config import EnvConfig
from ludus.envs.make import make_envs, make_one
from ludus.errors import LudusError
from ludus.types import Continuous
from tests.envs.recorder import collect
from tests.skips import needs_mujoco

TASKS = (
    "HalfCheetah-v5", "Hopper-v5", "Walker2d-v5", "Ant-v5", "Swimmer-v5", "Humanoid-v5",
    "InvertedPendulum-v5", "InvertedDoublePendulum-v5",
)  # fmt: skip


def pretend(monkeypatch, version: str | None) -> None:
    """As if that version of MuJoCo were installed."""
    true = metadata.version

    def answer(name: str) -> str:
        if name != "mujoco":
            return true(name)
        if version is None:
            raise metadata.PackageNotFoundError(name)
        return version

    monkeypatch.setattr(metadata, "version", answer)


@pytest.mark.parametrize("version", ["4.0.0", "4.1.0rc1", "12.3"])
def test_version_4_is_refused_with_the_reason(monkeypatch, version):
    pretend(monkeypatch, version)
    with pytest.raises(LudusError) as caught:
        make_one(EnvConfig(id="HalfCheetah-v5"))
    error = caught.value
    assert error.code == "E501" and version in error.what and "HalfCheetah-v5" in error.what
    assert "trajectories" in error.why and error.fix == 'pip install "mujoco<4"'
    make_one(EnvConfig(id="CartPole-v1"))[0].close()  # which needs no simulator


def test_without_it_the_extra_is_named(monkeypatch):
    pretend(monkeypatch, None)
    with pytest.raises(LudusError, match="needs mujoco, which is not installed") as caught:
        make_one(EnvConfig(id="Ant-v5"))
    assert caught.value.code == "E501" and "'.[mujoco]'" in caught.value.fix


def hopper():
    return gym.make("Hopper-v5")


@needs_mujoco
@pytest.mark.parametrize(
    "id",
    ["gymnasium.envs.mujoco.hopper_v5:HopperEnv", f"{__name__}:hopper", f"{__name__}:Hopper-v5"],
)
def test_a_class_or_function_of_ones_own_is_refused_as_well(monkeypatch, id):
    pretend(monkeypatch, "4.2.0")
    with pytest.raises(LudusError, match=r"before version 4, not 4\.2\.0"):
        make_one(EnvConfig(id=id))


@pytest.mark.parametrize(
    ("version", "level", "fix"),
    [("3.9.1", "ok", ""), ("4.0.0", "warning", 'pip install "mujoco<4"'), (None, "note", "mujoco")],
)
def test_doctor_says_whether_the_version_fits(monkeypatch, version, level, fix):
    pretend(monkeypatch, version)
    found = doctor._package("mujoco")
    assert found.level == level and fix in found.fix and bool(found.fix) == bool(fix)


@needs_mujoco
def test_neither_the_terminal_nor_the_folder_gets_its_warnings(tmp_path):
    """HalfCheetah's model has an attribute that MuJoCo calls deprecated, each time it is loaded."""
    words = ["from ludus.envs.config import EnvConfig", "from ludus.envs.make import make_one"]
    words += ["make_one(EnvConfig(id='HalfCheetah-v5'))[0].reset(seed=0)"]
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(words)], cwd=tmp_path, capture_output=True, text=True,
        env={**os.environ, "PYTHONWARNINGS": "default"},
    )  # fmt: skip
    assert done.returncode == 0 and "settotalmass" not in done.stdout + done.stderr
    assert list(tmp_path.iterdir()) == []


@needs_mujoco
def test_a_simulation_that_explodes_is_still_heard_of(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    env = make_one(EnvConfig(id="HalfCheetah-v5"))[0]
    env.reset(seed=0)
    env.unwrapped.data.qvel[:] = 1e12
    with pytest.warns(RuntimeWarning, match="MuJoCo: .*unstable"):
        env.step(np.zeros(6, np.float32))
    env.close()
    assert list(tmp_path.iterdir()) == []


@needs_mujoco
@pytest.mark.parametrize("id", TASKS)
def test_every_task_is_what_gymnasium_makes_of_it(id):
    """The same numbers after the same actions, and actions beyond the box are clipped to it."""
    envs, plain = make_envs(EnvConfig(id=id), seed=3), gym.make(id)
    space = plain.action_space
    spec = envs.spec
    assert spec.max_episode_steps == 1000
    assert spec.action == Continuous(space.shape, tuple(space.low), tuple(space.high))
    wild = np.random.default_rng(0).normal(0, 3, (20, 1, *space.shape)).astype(np.float32)
    got = collect(envs, 20, actions=wild)
    obs, _ = plain.reset(seed=envs.seeds[0])
    assert np.array_equal(got.obs[0, 0], obs.astype(np.float32))
    for t in range(20):
        obs, reward, terminated, _, _ = plain.step(np.clip(wild[t, 0], space.low, space.high))
        assert np.array_equal(got.obs[t + 1, 0], obs.astype(np.float32))
        assert got.raw_reward[t, 0] == np.float32(reward)
        assert got.discount[t, 0] == (0.0 if terminated else 1.0)
        if terminated:
            break
    envs.close()
    plain.close()
