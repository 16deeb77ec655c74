"""`agent.act` answers as in training: inside the action space, under masks, with the learner's
rewards, for one observation or a batch of them."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from ludus.envs.config import EnvConfig
from ludus.envs.make import make_envs
from ludus.envs.spec import ActionCodec
from ludus.errors import LudusError
from ludus.evals.agent import load_agent
from ludus.settings.trust import Trust
from tests.contract.tiny import run, tiny

HERE = "tests.evals.test_act"


class Narrow(gym.Env[Any, Any]):
    """Takes no action outside its space, whose bounds float32 does not hold."""

    observation_space = spaces.Box(-1, 1, (1,), np.float32)

    def __init__(self, dtype: str = "float64") -> None:
        low, high = np.array([-0.1, -0.7], dtype), np.array([0.1, 0.3], dtype)
        self.action_space = spaces.Box(low, high, dtype=np.dtype(dtype).type)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.t = 0
        return np.ones(1, np.float32), {}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action), f"{action!r} is outside of {self.action_space}"
        self.t += 1
        return np.ones(1, np.float32), 1.0, self.t >= 8, False, {}


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_actions_are_clipped_in_the_dtype_of_their_space(dtype):
    space = Narrow(dtype).action_space
    far = np.array([[9, 9], [-9, -9], [9, -9], [0.05, 0.1]], np.float32)
    for action in ActionCodec(space).decode(far):
        assert space.contains(action)
    np.testing.assert_allclose(ActionCodec(space).decode(far)[3], far[3], rtol=1e-3)


@pytest.mark.parametrize("workers", [0, 1])
def test_environments_get_actions_inside_their_space(workers):
    cfg = EnvConfig(id=f"{HERE}:Narrow", num=2, workers=workers)
    with make_envs(cfg, seed=0) as envs:
        envs.reset()
        for value in (9.0, -9.0):
            envs.send(np.full((2, 2), value, np.float32))
            assert envs.recv().reward.tolist() == [1.0, 1.0]


def test_an_agent_acts_inside_the_space(tmp_path):
    agent = load_agent(
        run(tiny("ppo", f"{HERE}:Narrow", "steps=64"), tmp_path).path, trust=Trust(whole=True)
    )
    for parameter in agent.net.parameters():
        parameter.data.fill_(5.0)
    assert agent.spec.action_shape == (2,)
    assert agent.make_env().action_space.contains(agent.act(np.ones(1, np.float32)))


# Rewards


def steps_of(agent: Any) -> list[Any]:
    """Every Step that the algorithm is shown."""
    shown, act = [], agent.algorithm.act

    def watched(net: Any, step: Any, *rest: Any) -> Any:
        shown.append(step)
        return act(net, step, *rest)

    agent.algorithm.act = watched
    return shown


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (("env.reward_scale=0.1",), [0.0, 0.4, -0.2]),
        (("env.reward_clip=sign",), [0.0, 1.0, -1.0]),
        (("env.reward_clip=clamp", "env.reward_clamp=3"), [0.0, 3.0, -2.0]),
        (("env.reward_scale=running_max",), [0.0, 1.0, -0.5]),
    ],
)
def test_act_is_given_the_reward_that_the_learner_saw(tmp_path, settings, expected):
    agent = load_agent(run(tiny("ppo", "CartPole-v1", "steps=64", *settings), tmp_path).path)
    shown = steps_of(agent)
    for reward in (0.0, 4.0, -2.0):
        agent.act(np.zeros(4, np.float32), reward=reward)
    assert [float(step.prev_reward) for step in shown] == pytest.approx(expected)
    assert [float(step.prev_raw_reward) for step in shown] == [0.0, 4.0, -2.0]


# Masks


@pytest.fixture(scope="module")
def masked(tmp_path_factory):
    made = run(tiny("ppo", "ludus/MaskedBandit-v0", "steps=64"), tmp_path_factory.mktemp("m"))
    return load_agent(made.path)


def test_an_agent_that_learned_with_masks_wants_one(masked):
    masked.reset()
    with pytest.raises(LudusError, match="action_mask") as refused:
        masked.act(np.ones(4, np.int8))
    assert 'info["action_mask"]' in refused.value.fix
    for allowed in range(4):
        mask = np.arange(4) == allowed
        assert masked.act(mask.astype(np.int8), action_mask=mask) == allowed


def test_a_mask_of_another_size_is_refused_by_act(masked):
    with pytest.raises(LudusError, match="3 entries, expected 4") as refused:
        masked.act(np.ones(4, np.int8), action_mask=[1, 1, 1])
    assert "act()" in refused.value.where


# Batches


@pytest.mark.parametrize(
    "env", ["CartPole-v1", "ludus/IdentityDict-v0", "ludus/Identity-v0", "ludus/IdentityMulti-v0",
            "ludus/IdentityBox-v0"],
)  # fmt: skip
def test_a_batch_is_answered_row_by_row(tmp_path, env):
    agent = load_agent(run(tiny("ppo", env, "steps=64", "env.stack=2"), tmp_path).path)
    space = agent.make_env().observation_space
    space.seed(1)
    times = [[space.sample() for _ in range(3)] for _ in range(4)]
    singly = []
    for row in range(3):
        agent.reset()
        singly.append([agent.act(moment[row]) for moment in times])
    agent.reset()
    for t, moment in enumerate(times):
        together = agent.act(stacked(moment))
        assert isinstance(together, np.ndarray) and len(together) == 3
        for row in range(3):
            np.testing.assert_allclose(together[row], singly[row][t], rtol=1e-5)


def stacked(rows: list[Any]) -> Any:
    if isinstance(rows[0], dict):
        return {k: stacked([row[k] for row in rows]) for k in rows[0]}
    return np.stack([np.asarray(row) for row in rows])


def test_rows_of_a_batch_begin_episodes_of_their_own(tmp_path):
    memory = ("steps=64", "algo.recurrent={hidden: 8}")
    agent = load_agent(run(tiny("impala", "CartPole-v1", *memory), tmp_path).path)
    shown = steps_of(agent)
    batch = np.ones((2, 4), np.float32)
    agent.act(batch)
    agent.act(batch, reward=[1.0, 2.0])
    agent.reset([1])
    agent.act(batch)
    assert [step.first.tolist() for step in shown] == [[True, True], [False] * 2, [False, True]]
    assert shown[1].prev_raw_reward.tolist() == [1.0, 2.0]
    state = [float(x[1].abs().sum()) for x in agent._state]
    agent.reset()
    agent.act(batch[:1])
    fresh = [float(x[0].abs().sum()) for x in agent._state]
    assert state == pytest.approx(fresh)


def test_a_masked_batch(masked):
    masked.reset()
    masks = np.eye(4, dtype=bool)[[2, 0]]
    assert masked.act(masks.astype(np.int8), action_mask=masks).tolist() == [2, 0]


def test_what_is_neither_one_nor_a_batch_is_refused_by_act(tmp_path):
    agent = load_agent(run(tiny("ppo", "CartPole-v1", "steps=64"), tmp_path).path)
    for wrong in (np.zeros(3, np.float32), np.zeros((2, 2, 4), np.float32), np.zeros((0, 4))):
        with pytest.raises(LudusError) as refused:
            agent.act(wrong)
        assert "act()" in refused.value.where and "environment returns" not in refused.value.why
    agent.act(np.zeros((2, 4), np.float32))
    with pytest.raises(LudusError, match="2 observations") as refused:
        agent.act(np.zeros((3, 4), np.float32))
    assert "agent.reset()" in refused.value.fix
    agent.reset()
    assert agent.act(np.zeros(4, np.float32)) in (0, 1)
