"""An environment whose rows can be told apart, and a check of the rows that a learner inserts.

`multi_node.py` runs the learner with this module imported (--import). Observations end with two
exact numbers: which environment made the row, drawn when it was made, and how many it made before.
So a row that is inserted twice, or a chunk of which a part is missing, shows.
"""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.classic_control.cartpole import CartPoleEnv

from ludus.replay.replay_store import ReplayStore
from ludus.types import Chunk

ROWS = "MULTI_NODE_ROWS"  # the file that the learner's process writes; unset in actors


class Numbered(CartPoleEnv):
    """CartPole that numbers its observations."""

    def __init__(self) -> None:
        super().__init__()
        edge = np.full(2, 2.0**24, np.float32)
        self.observation_space = gym.spaces.Box(
            np.concatenate([self.observation_space.low, -edge]),
            np.concatenate([self.observation_space.high, edge]),
            dtype=np.float32,
        )
        self.name, self.count = random.SystemRandom().randrange(2**24), 0

    def _numbered(self, obs: Any) -> Any:
        self.count += 1
        return np.concatenate([obs, [self.name, self.count - 1]]).astype(np.float32)

    def reset(self, **more: Any) -> Any:
        obs, info = super().reset(**more)
        return self._numbered(obs), info

    def step(self, action: Any) -> Any:
        obs, *rest = super().step(action)
        return self._numbered(obs), *rest


gym.register("NumberedCartPole-v0", entry_point=Numbered, max_episode_steps=500)


def record_rows(file: Path) -> None:
    """Write a line for each chunk that the store of this process takes."""
    add = ReplayStore.add

    def recorded(self: ReplayStore, chunk: Chunk) -> None:
        rows = chunk.rows
        numbers = rows.obs[: len(rows.reward), :, -2:].to(int).permute(1, 0, 2).tolist()
        line = {"actor": chunk.source, "sequence": chunk.sequence, "version": chunk.version,
                "rows": numbers, "mask": rows.mask.T.int().tolist()}  # fmt: skip
        with file.open("a") as out:
            out.write(json.dumps(line) + "\n")
        add(self, chunk)

    ReplayStore.add = recorded  # type: ignore[method-assign]


if os.environ.get(ROWS):
    record_rows(Path(os.environ[ROWS]))
