"""A user's own package: an environment of 20 lines, a torso of 10 and an algorithm, without a
fork. Found by entry point or by --import, each in a process of its own."""

from __future__ import annotations

import json

import pytest

from tests import forked

PARTS = '''
import numpy as np, torch
import gymnasium as gym
from torch import nn
import ludus
from ludus.algos.dqn import DQN, Config

class Corridor(gym.Env):
    """Walk right to the end."""
    observation_space = gym.spaces.Box(0, 1, (5,), np.float32)
    action_space = gym.spaces.Discrete(2)
    def _obs(self):
        return np.eye(5, dtype=np.float32)[self.at]
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.at = 0
        return self._obs(), {}
    def step(self, action):
        self.at = max(0, self.at + (1 if action else -1))
        return self._obs(), float(self.at == 4), self.at == 4, False, {}

class Cosine(nn.Module):
    def __init__(self, shape, width=16):
        super().__init__()
        self.linear = nn.Linear(shape[0], width)
    def forward(self, x):
        return torch.cos(self.linear(x))

class Timid(DQN):
    """A variant of one's own."""

def algorithms():
    return [ludus.Entry("timid", "mine:Timid", "mine:MyConfig", "never bold")]

class MyConfig(Config):
    name: str = "timid"
    courage: float = 0.5

def torsos():
    ludus.register_torso("cosine", Cosine)

def environments():
    gym.register("mine/Corridor-v0", entry_point="mine:Corridor", max_episode_steps=20)
'''
POINTS = """
[ludus.algorithms]
timid = mine:algorithms
[ludus.torsos]
cosine = mine:torsos
[ludus.environments]
corridor = mine:environments
"""
TRAIN = [
    "train", "timid", "mine/Corridor-v0", "steps=120", "warmup=40", "batch=8", "tensorboard=off",
    "courage=0.25", "algo.torso={kind: custom, name: cosine}",
    "algo.torso.options.width=24", "-q", "--json",
]  # fmt: skip


def ludus(folder, *words):
    done = forked.run(*words, folder=folder)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.slow  # four processes each; docs/extending.md has --import in `make test`
@pytest.mark.parametrize("how", ["entry point", "import"])
def test_everything_of_ones_own(tmp_path, how):
    (tmp_path / "mine.py").write_text(PARTS)
    words, named = list(TRAIN), []
    if how == "entry point":
        info = tmp_path / "mine-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(POINTS)
    else:
        (tmp_path / "registers.py").write_text(
            "import ludus, mine\nmine.torsos()\nmine.environments()\n"
            "for e in mine.algorithms(): ludus.register(e)\n"
        )
        words += (named := ["--import", "registers"])
    code, out, err = ludus(tmp_path, *words)
    assert code == 0, err
    result = json.loads(out)
    assert result["step"] >= 120
    from safetensors.numpy import load_file

    last = max((tmp_path / "runs").glob("*/checkpoints/0*"))
    shapes = {t.shape for t in load_file(last / "model.safetensors").values()}
    assert (24, 5) in shapes, "the torso is the user's, with its option"
    text = (last.parent.parent / "config.yaml").read_text()
    assert "courage: 0.25" in text and "name: timid" in text
    again = ["eval", str(last.parent.parent), "--episodes", "2", "--json", *named]
    code, out, err = ludus(tmp_path, *again)
    assert code == 0, err
    assert "episodes" in json.loads(out)
    if how == "entry point":
        code, out, err = ludus(tmp_path, "list", "envs")
        assert code == 0 and "mine/Corridor-v0" in out, err


def test_a_broken_entry_point_is_named(tmp_path):
    info = tmp_path / "mine-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[ludus.algorithms]\nbad = not_there:x\n")
    code, _, err = ludus(tmp_path, "list", "algos")
    assert code == 2 and "E109" in err and "not_there" in err
