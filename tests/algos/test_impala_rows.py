"""What acting saw is what learning sees: real environments, collectors and the queue between."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces

from ludus.algos.impala import Config, Impala, policy_value
from ludus.collect.collector import Collector
from ludus.collect.device_runner import DeviceRunner
from ludus.contract import Values
from ludus.envs.config import EnvConfig
from ludus.envs.make import make_envs
from ludus.evals.agent import load_agent
from ludus.learn.learner import Learner
from ludus.nets.inputs import previous_step, previous_width
from ludus.nets.policies import PolicyDist
from ludus.replay.store import build_store
from ludus.types import Continuous, Discrete, MultiDiscrete, tree_map
from tests.contract.tiny import run, tiny

NETS = {
    "feed-forward": {},
    "previous": {"feed_previous": True},
    "lstm": {"recurrent": {"hidden": 8}},
}
COLLECTORS = {
    "plain": {},
    "pipelined": {"pipelined": True},
    "captured": {"runner": DeviceRunner},
    "captured, pipelined": {"runner": DeviceRunner, "pipelined": True},
}
ENDS = {
    "truncated": {"id": "ludus/Identity-v0", "args": {"n": 3, "length": 5}},
    "terminated": {"id": f"{__name__}:Echo", "args": {"end": "terminated"}},
    "lives": {"id": f"{__name__}:Echo", "args": {"end": "lives"}},
    "stacked": {"id": "ludus/Identity-v0", "args": {"n": 3, "length": 5}, "stack": 3},
    "choices": {"id": "ludus/IdentityMulti-v0", "args": {"length": 5}},
    "box": {"id": "ludus/IdentityBox-v0", "args": {"length": 5, "size": 2}},
    "no velocity": {"id": "ludus/CartPoleNoVelocity-v0"},
}


class Echo(gym.Env[Any, Any]):
    """Pays the action in tenths, so that a reward tells which action it belongs to. Four steps;
    with lives, each second step costs one."""

    def __init__(self, end: str = "truncated") -> None:
        self.observation_space = spaces.Box(0.0, 1.0, (1,), np.float32)
        self.action_space = spaces.Discrete(5)
        self._end, self._t = end, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self._t = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        self._t += 1
        over, cut = self._t >= 4, self._end == "truncated"
        lost = {"soft_terminal": True} if self._end == "lives" and self._t == 2 else {}
        obs = np.full(1, self._t / 4, np.float32)
        return obs, 0.1 * (action + 1), over and not cut, over and cut, lost


class Recording(Impala):
    """Keeps what the net saw and said when it acted."""

    def act(self, net, step, state, ctx):
        obs = tree_map(lambda x: x[None], step.obs)
        before = step.prev_action[None], step.prev_reward[None]
        out = policy_value(net)(obs, step.first[None], state, before)
        fed = previous_step(ctx.spec.action, step.prev_action, step.prev_reward, step.first)
        action, extras, state = super().act(net, step, state, ctx)
        return action, {**extras, "value": out.value[0], "fed": fed}, state


def unrolls(env, count=5, collector="plain", **settings):
    """Consecutive unrolls of all columns, acted by one net, and that net."""
    algorithm = Recording(Config(unroll=7, batch=4, **settings))
    plan = algorithm.plan.for_envs(4)
    envs = make_envs(EnvConfig(**env, num=4, groups=2), seed=1)
    learner = Learner(algorithm, envs.spec, seed=0)
    with torch.no_grad():  # away from the uniform policy of the start
        for p in learner.net.parameters():
            p.add_(0.3 * torch.randn(p.shape, generator=torch.Generator().manual_seed(3)))
    collector = Collector(algorithm, envs, seed=0, **COLLECTORS[collector])
    store = build_store(plan, envs.spec, 4, seed=0, horizon=1000)
    collector.barrier(0)
    values, found = Values(plan, 1000).at(0), []
    for _ in range(count):
        store.add(collector.collect(learner.net, plan.chunk, values).chunk)
        while store.ready():
            found.append(store.sample().batch)
    collector.drain()
    collector.close()
    assert len(found) == count
    return algorithm, learner, found


@torch.no_grad()
def again(learner, b):
    """Log-probabilities and values of an unroll, as the learner computes them."""
    out = policy_value(learner.net)(b.obs, b.first, b.state, (b.prev_action, b.prev_reward))
    dist = PolicyDist(out.params[:-1], learner.ctx.spec.action)
    return dist.log_prob(b.action), out.value


@pytest.mark.accept(33)
@pytest.mark.parametrize("collector", COLLECTORS)
@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("kind", NETS)
def test_learning_recomputes_what_acting_computed(kind, end, collector) -> None:
    """With equal weights, over episode ends and across unrolls; V after the last row too."""
    _, learner, found = unrolls(ENDS[end], collector=collector, **NETS[kind])
    assert sum(int(b.first[1:].sum()) for b in found) > 4, "episodes begin inside of unrolls"
    assert sum(int((~b.mask).sum()) for b in found) > 4, "and there are dummy rows"
    ahead = None
    for b in found:
        log_prob, value = again(learner, b)
        torch.testing.assert_close(log_prob, b.extras["log_prob"], rtol=0, atol=1e-5)
        torch.testing.assert_close(value[:-1], b.extras["value"], rtol=0, atol=1e-5)
        if ahead is not None:
            torch.testing.assert_close(ahead, b.extras["value"][0], rtol=0, atol=1e-5)
        ahead = value[-1]
    spread = torch.cat([b.extras["value"].flatten() for b in found]).std()
    assert spread > 1e-2, "else the net says the same to everything"


def test_without_a_reset_of_the_state_the_learner_would_be_wrong() -> None:
    """The check above can fail: it does where `first` is not obeyed, or the state is forgotten."""
    _, learner, found = unrolls(ENDS["terminated"], recurrent={"hidden": 8})
    b = found[2]
    for wrong in (
        b._replace(first=torch.zeros_like(b.first)),
        b._replace(state=tuple(torch.zeros_like(x) for x in b.state)),
        b._replace(prev_action=b.prev_action.roll(1, 0)),
    ):
        assert (again(learner, wrong)[0] - b.extras["log_prob"]).abs().max() > 1e-3


@pytest.mark.accept(33)
@pytest.mark.parametrize("collector", COLLECTORS)
def test_previous_action_and_reward_belong_to_the_row_before(collector) -> None:
    _, _, found = unrolls({"id": f"{__name__}:Echo"}, collector=collector, recurrent={"hidden": 8})
    inside = 0
    for b in found:
        acted, learned = b.extras["fed"], previous_step(
            Discrete(5), b.prev_action, b.prev_reward, b.first
        )  # fmt: skip
        assert torch.equal(acted, learned[:-1]), "the same when acting and when learning"
        shown, paid = learned[..., :5], learned[..., 5]
        assert torch.equal(shown.sum(-1) > 0, ~b.first), "an episode opens with nothing before it"
        torch.testing.assert_close(paid, 0.1 * (shown @ torch.arange(1.0, 6)))
        follows = ~b.first[1:]
        assert torch.equal(shown[1:].argmax(-1)[follows], b.action[follows])
        inside += int(follows.sum())
    assert inside > 40


def test_every_kind_of_action_as_an_input() -> None:
    first = torch.tensor([[False, True]])
    reward = torch.tensor([[-3.0, 1.0]])
    box = Continuous((1, 2), (-1.0,) * 2, (1.0,) * 2)
    cases = [
        (Discrete(3), torch.tensor([[2, 1]]), [0, 0, 1]),
        (MultiDiscrete((2, 3)), torch.tensor([[[1, 0], [0, 2]]]), [0, 1, 1, 0, 0]),
        (box, torch.tensor([[[[0.5, 2.0]], [[1.0, 1.0]]]]), [0.5, 2]),
    ]
    for spec, action, want in cases:
        got = previous_step(spec, action, reward, first)
        assert got.shape == (1, 2, previous_width(spec))
        assert got[0, 0].tolist() == [*want, -1.0], "a reward is clipped"
        assert got[0, 1].eq(0).all(), "an episode's first"


def test_memory_is_learned_where_it_is_needed(tmp_path) -> None:
    """A cue to be repeated three steps later: 1 with an LSTM, a guess without. The evaluation
    carries the state, starts every episode afresh, and so does an agent stepped by hand."""
    scores, paths = {}, {}
    for name, memory in (("lstm", ("recurrent.hidden=16",)), ("none", ())):
        settings = ("steps=12k", "unroll=10", "batch=8", "env.num=8", "lr=5e-3->0", *memory)
        paths[name] = run(tiny("impala", "ludus/MemoryRepeat-v0", *settings), tmp_path).path
        scores[name] = load_agent(paths[name]).evaluate(40).mean
    assert scores["lstm"] == 1.0 and scores["none"] < 0.8
    agent = load_agent(paths["lstm"])
    env = agent.make_env()
    for seed in range(8):
        obs, _ = env.reset(seed=seed)
        agent.reset()
        over, reward = False, 0.0
        while not over:
            obs, reward, over, _, _ = env.step(agent.act(obs))
        assert reward == 1.0
