"""The vectorised CartPole against gymnasium's scalar one, bit by bit; with velocities or not."""

import gymnasium as gym
import numpy as np
import pytest

from ludus.envs.backends.cartpole import NO_VELOCITY, CartPole
from ludus.envs.backends.serial import Serial
from ludus.envs.config import EnvConfig
from ludus.envs.make import make_envs


def balance(obs):
    """A policy that reaches the limit of 500 steps."""
    return int(obs[2] + 0.5 * obs[3] + 0.02 * obs[0] + 0.06 * obs[1] > 0)


@pytest.mark.parametrize(("id", "shown"), [("CartPole-v1", slice(4)), (NO_VELOCITY, [0, 2])])
def test_trajectories_equal_gymnasiums_scalar_environment_bit_for_bit(id, shown):
    rows, num = 1100, 5
    with make_envs(EnvConfig(id=id, num=num), seed=4) as envs:
        assert isinstance(envs._backend, CartPole)
        envs.reset(0)
        scalars = [gym.make("CartPole-v1") for _ in range(num)]
        now = [env.reset(seed=seed)[0] for env, seed in zip(scalars, envs.seeds, strict=True)]
        step, ends = envs.observe(), []
        rng = np.random.default_rng(0)
        over = [False] * num
        for _ in range(rows):
            np.testing.assert_array_equal(step.obs, np.stack(now)[:, shown])
            assert step.dummy.tolist() == over
            random = rng.integers(0, 2, num)
            actions = [
                balance(o) if i < 2 else int(a)
                for i, (o, a) in enumerate(zip(now, random, strict=True))
            ]
            envs.send(np.array(actions))
            step = envs.recv()
            ends += [e.end for e in step.episodes]
            for i, env in enumerate(scalars):
                if over[i]:
                    now[i], _ = env.reset()
                    over[i] = False
                    assert step.reward[i] == 0 and not step.mask[i]
                else:
                    now[i], reward, terminated, truncated, _ = env.step(actions[i])
                    over[i] = terminated or truncated
                    assert step.reward[i] == reward
                    assert step.discount[i] == 1.0 - terminated
                assert step.last[i] == over[i]
    assert ends.count("truncated") >= 4 and ends.count("terminated") > 50


def test_only_the_plain_cartpole_is_replaced():
    plain = {"id": "CartPole-v1", "num": 4}
    changed = [
        {"native": False},
        {"num": 1},
        {"args": {"sutton_barto_reward": True}},
        {"wrappers": [{"name": "Repeat"}]},
        {"id": "CartPole-v0"},
    ]
    for change in changed:
        with make_envs(EnvConfig(**{**plain, **change}), seed=1) as envs:
            assert isinstance(envs._backend, Serial), change
    with make_envs(EnvConfig(**plain, max_episode_steps=7), seed=1) as envs:
        assert isinstance(envs._backend, CartPole)
        assert envs.spec.max_episode_steps == 7


def test_without_velocities_alone_and_in_numbers_it_is_the_same():
    """Serial and vectorised environments, and the limit of 500 steps."""
    answers = []
    for native in (True, False):
        cfg = EnvConfig(id=NO_VELOCITY, num=2, native=native)
        with make_envs(cfg, seed=3) as envs:
            assert isinstance(envs._backend, CartPole if native else Serial)
            assert envs.spec.max_episode_steps == 500
            envs.reset(0)
            seen, rng = [envs.observe().obs], np.random.default_rng(0)
            for _ in range(200):
                envs.send(rng.integers(0, 2, 2))
                seen.append(envs.recv().obs)
        answers.append(np.stack(seen))
    assert answers[0].shape == (201, 2, 2)
    np.testing.assert_array_equal(*answers)
