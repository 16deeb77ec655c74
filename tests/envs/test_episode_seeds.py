"""Where each episode has a seed of its own, that seed alone replays it."""

from __future__ import annotations

import numpy as np
import pytest

from ludus.envs import adapter
from ludus.envs.config import EnvConfig
from ludus.envs.make import make_envs

KINDS = {
    "scalar": {"id": "CartPole-v1", "native": False},
    "native": {"id": "CartPole-v1"},
    "workers": {"id": "CartPole-v1", "workers": 2},
    # A short limit, for several games in a few rows; no-ops make them differ at once.
    "emulator": {"id": "pong", "atari": {"max_frames": 320, "noops": 30}},
    "scalar emulator": {"id": "pong", "native": False, "atari": {"max_frames": 320, "noops": 30}},
}


def play(envs, rows: int) -> list[np.ndarray]:
    """The observations of each episode of environment 0; all take the same fixed actions."""
    envs.reset()
    step, episodes = envs.observe(), [[]]
    for _ in range(rows):
        if step.first[0] and episodes[-1]:
            episodes.append([])
        episodes[-1].append(np.array(step.obs[0]))
        # By the step of the episode, so that a replay takes the same ones.
        action = ((1, 1, 0) if envs.spec.num_actions == 2 else (2, 3, 0))[len(episodes[-1]) % 3]
        envs.send(np.full(len(step.last), action))
        step = envs.recv()
    return [np.stack(episode) for episode in episodes]


@pytest.mark.parametrize("kind", KINDS)
def test_a_seed_replays_its_episode(kind, monkeypatch):
    with make_envs(EnvConfig(**KINDS[kind], num=2), seed=4, role="eval", reseed=True) as envs:
        episodes = play(envs, 250)
        seeds = [envs.episode_seed(0, n) for n in range(3)]
        assert envs.seeds[0] == seeds[0] and len(set(seeds)) == 3 and len(episodes) >= 3
    one, two = (episode[:10] if "emu" not in kind else episode for episode in episodes[:2])
    assert not np.array_equal(one, two), "other seeds, other games"
    for n in (1, 0):
        monkeypatch.setattr(adapter, "env_seed", lambda *_, n=n: seeds[n])
        with make_envs(EnvConfig(**{**KINDS[kind], "workers": 0}, num=2), seed=0) as envs:
            again = play(envs, len(episodes[n]))[0]
        assert np.array_equal(again, episodes[n][: len(again)])


def test_without_asking_generators_go_on():
    plain, own = [], []
    for found, reseed in ((plain, False), (own, True)):
        with make_envs(EnvConfig(id="CartPole-v1", num=2), seed=4, reseed=reseed) as envs:
            found += play(envs, 60)
    assert np.array_equal(plain[0], own[0]) and not np.array_equal(plain[1][0], own[1][0])
