"""Five probe environments, each of which needs one more thing to work than the one before.

Values; values of observations; discounting; the policy; the policy of observations.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces

from ludus.evals.agent import load_agent
from ludus.settings.trust import Trust
from tests.contract.tiny import known, learned_values, run, tiny

SETTINGS = {
    "dqn": ("steps=400", "replay_ratio=16", "warmup=64", "lr=1e-2->1e-3", "target_period=20"),
    "ppo": ("steps=800", "rollout=16", "epochs=6", "lr=1e-2->1e-3"),
    "impala": ("steps=1600", "lr=1e-2->1e-3"),
    "a3c": ("steps=1500", "t_max=5", "lr=1e-2->1e-3", "entropy_cost=0"),
    "async-q": ("steps=1500", "t_max=5", "lr=1e-2->1e-3", "target_period=60"),
    "async-sarsa": ("steps=1500", "t_max=5", "lr=1e-2->1e-3", "target_period=60"),
    "async-nstep-q": ("steps=1500", "t_max=5", "lr=1e-2->1e-3", "target_period=60"),
}
GAMMA = 0.9


class Probe(gym.Env[Any, Any]):
    """Shows one number; one step and it is over, unless a subclass says otherwise."""

    actions = 1

    def __init__(self) -> None:
        self.observation_space = spaces.Box(-1.0, 1.0, (1,), np.float32)
        self.action_space = spaces.Discrete(self.actions)
        self.shown = 0.0

    def draw(self) -> float:
        return 0.0

    def pay(self, action: int) -> float:
        return 1.0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.shown = self.draw()
        return np.array([self.shown], np.float32), {}

    def step(self, action: Any) -> Any:
        return np.array([self.shown], np.float32), self.pay(int(action)), True, False, {}


class ConstantReward(Probe):
    """Always 1."""


class ObservedReward(Probe):
    """Shows -1 or 1, and pays what it shows."""

    def draw(self) -> float:
        return float(self.np_random.choice([-1.0, 1.0]))

    def pay(self, action: int) -> float:
        return self.shown


class DelayedReward(Probe):
    """Shows 0, then 1; pays 1 at the end of the second step."""

    def step(self, action: Any) -> Any:
        over = self.shown == 1.0
        self.shown = 1.0
        return np.array([1.0], np.float32), float(over), over, False, {}


class ActionReward(Probe):
    """Action 1 pays 1, action 0 pays -1."""

    actions = 2

    def pay(self, action: int) -> float:
        return 2.0 * action - 1


class AnswerReward(ObservedReward):
    """Shows -1 or 1; pays 1 for action 0 or 1 respectively, else -1."""

    actions = 2

    def pay(self, action: int) -> float:
        return self.shown * (2.0 * action - 1)


# Name, observations, their values under the best policy, Q of action 0 there.
PROBES = [
    (ConstantReward, [0.0], [1.0], [1.0]),
    (ObservedReward, [-1.0, 1.0], [-1.0, 1.0], [-1.0, 1.0]),
    (DelayedReward, [0.0, 1.0], [GAMMA, 1.0], [GAMMA, 1.0]),
    (ActionReward, [0.0], [1.0], [-1.0]),
    (AnswerReward, [-1.0, 1.0], [1.0, 1.0], [1.0, -1.0]),
]


# Episodes of one step have no n-step returns, and one action leaves SARSA no other choice.
SAME_AS_ASYNC_Q = {
    "async-sarsa": (ConstantReward, ObservedReward, DelayedReward),
    "async-nstep-q": (ConstantReward, ObservedReward, ActionReward),
}
CASES = [
    pytest.param(name, *probe, id=f"{probe[0].__name__}-{name}")
    for probe in PROBES
    for name in SETTINGS
    if probe[0] not in SAME_AS_ASYNC_Q.get(name, ())
]


@pytest.mark.parametrize(("name", "probe", "seen", "state_values", "first_action"), CASES)
def test_probe_is_learned(name, probe, seen, state_values, first_action, tmp_path) -> None:
    settings = known(name, (*SETTINGS[name], f"gamma={GAMMA}"))
    env = f"tests.algos.test_test_envs:{probe.__name__}"
    result = run(tiny(name, env, *settings, "env.num=4"), tmp_path)
    values = learned_values(result.path, torch.tensor(seen)[:, None])
    want = state_values if name in ("ppo", "a3c", "impala") else first_action
    assert values == pytest.approx(want, abs=0.1)
    if probe.actions > 1:
        scores = load_agent(result.path, trust=Trust(whole=True)).evaluate(20).scores
        assert list(scores) == [1.0] * 20
