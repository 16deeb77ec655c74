"""A few lines that collect rows from an adapter, as the Collector does. No tests here."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ludus.envs.adapter import Envs
from ludus.types import EpisodeEnd, tree_map


class Record(NamedTuple):
    """Time-major [T, n]; obs and first have one more."""

    obs: Any
    reward: np.ndarray
    raw_reward: np.ndarray
    discount: np.ndarray
    last: np.ndarray
    first: np.ndarray
    mask: np.ndarray
    dummy: np.ndarray
    episodes: list[EpisodeEnd]


def random_action(envs: Envs, rng: np.random.Generator, n: int) -> np.ndarray:
    spec = envs.spec.action
    if hasattr(spec, "n"):
        return rng.integers(0, spec.n, n)
    if hasattr(spec, "nvec"):
        return rng.integers(0, spec.nvec, (n, len(spec.nvec)))
    return rng.normal(size=(n, *spec.shape)).astype(np.float32)


def collect(envs: Envs, rows: int, *, actions=None, barrier: int = 0, group: int = 0) -> Record:
    """`rows` rows of one group after a reset; `actions` [T, n] or random ones (by environment)."""
    envs.reset(barrier)
    steps = [envs.observe(group)]
    n = len(steps[0].last)
    # One action stream per environment: environment 0 does not depend on their number.
    offset = envs.groups[group].start
    rngs = [np.random.default_rng([5, offset + i]) for i in range(n)]
    for t in range(rows):
        drawn = np.concatenate([random_action(envs, rng, 1) for rng in rngs])
        envs.send(drawn if actions is None else np.asarray(actions[t]), group)
        steps.append(envs.recv(group))
    after = steps[1:]
    return Record(
        obs=tree_map(lambda *leaves: np.stack(leaves), *[s.obs for s in steps]),
        reward=np.stack([s.reward for s in after]),
        raw_reward=np.stack([s.raw_reward for s in after]),
        discount=np.stack([s.discount for s in after]),
        last=np.stack([s.last for s in after]),
        first=np.stack([s.first for s in steps]),
        mask=np.stack([s.mask for s in after]),
        dummy=np.stack([s.dummy for s in steps]),
        episodes=[e for s in steps for e in s.episodes],
    )
