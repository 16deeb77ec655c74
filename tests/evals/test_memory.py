"""A policy that remembers is evaluated as it was trained: state, previous action and reward."""

from __future__ import annotations

import csv

import pytest
import torch

import ludus.envs.backends.cartpole
from ludus.evals.agent import load_agent
from ludus.track.metrics.writer import read_metrics
from tests.contract.tiny import run, tiny

WEIGHTS = 6  # with which all that is remembered matters
NO_VELOCITY = ludus.envs.backends.cartpole.NO_VELOCITY


@pytest.fixture(scope="module")
def agent(tmp_path_factory):
    """An LSTM fed with its previous action and reward, where one observation does not tell."""
    more = ("steps=400", "algo.recurrent={hidden: 16}", "env.reward_scale=0.5")
    return load_agent(run(tiny("impala", NO_VELOCITY, *more), tmp_path_factory.mktemp("r")).path)


def alone(agent, seed: int, without: str = "") -> float:
    """One episode as a paper would write it: one environment, one step after the other; or
    `without` one of the things that have to be remembered."""
    env, _ = ludus.envs.make.make_one(agent.cfg.env)
    net = agent.net["online"]
    obs, _ = env.reset(seed=seed)
    state, first = net.core.initial(1), torch.tensor([[True]])
    action, reward, score = torch.zeros(1, 1, dtype=torch.int64), torch.zeros(1, 1), 0.0
    for _ in range(500):
        seen = torch.as_tensor(obs)[None, None]
        with torch.no_grad():
            out = net(seen, first, state, (action, reward))
        state, first = out.state, torch.tensor([[False]])
        action = out.params.argmax(-1)
        obs, paid, terminated, truncated, _ = env.step(int(action))
        reward = torch.full((1, 1), paid * agent.cfg.env.reward_scale)
        if without == "state":
            state = net.core.initial(1)
        elif without == "action":
            action = torch.zeros_like(action)
        elif without == "reward":
            reward = torch.zeros_like(reward)
        score += paid
        if terminated or truncated:
            break
    env.close()
    return score


@pytest.mark.accept(145)
def test_every_episode_is_what_one_environment_alone_would_give(agent):
    """Also the second and third of a slot: what an episode left behind is forgotten. Weights are
    drawn large, so that memory and the previous step decide the actions."""
    rng = torch.Generator().manual_seed(WEIGHTS)
    for weight in agent.net.parameters():
        weight.data = torch.randn(weight.shape, generator=rng)
    result = agent.evaluate(8, seed=5, settings=["env.num=3"])
    assert result.scores == [alone(agent, seed) for seed in result.seeds]
    for what in ("state", "action", "reward"):
        assert result.scores != [alone(agent, seed, what) for seed in result.seeds], what


@pytest.mark.accept(145)
def test_greedy_and_sampled(agent):
    greedy, sampled = agent.evaluate(5, seed=1), agent.evaluate(5, seed=1, sample=True)
    assert greedy == agent.evaluate(5, seed=1) and sampled.scores != greedy.scores
    assert sampled == agent.evaluate(5, seed=1, sample=True)
    assert (greedy.label, sampled.label) == ("greedy", "sample")


@pytest.mark.accept(145)
def test_a_share_of_random_actions(tmp_path):
    agent = load_agent(run(tiny("dqn", "CartPole-v1", "steps=100"), tmp_path).path)
    scores = {e: agent.evaluate(6, seed=1, epsilon=e).scores for e in (0.0, 0.5, 1.0)}
    assert len({tuple(s) for s in scores.values()}) == 3
    assert agent.evaluate(6, seed=1, epsilon=0.5).label == "epsilon0.5"


def test_episodes_cut_by_a_checkpoint_enter_no_score(tmp_path):
    """An exact run ends every episode at a checkpoint: kept in episodes.csv, in no mean."""
    path = run(tiny("ppo", "CartPole-v1", "steps=900", "checkpoint_every=64"), tmp_path).path
    rows = list(csv.DictReader((path / "episodes.csv").open()))
    cut = [r for r in rows if r["end"] == "checkpoint"]
    whole = [r for r in rows if r["end"] != "checkpoint"]
    assert len(cut) >= 10 and len(whole) >= 10
    last = [x for x in read_metrics(path / "metrics.jsonl") if "performance/score" in x][-1]
    assert last["performance/episodes"] == len(whole) < 100
    mean = sum(float(r["score"]) for r in whole) / len(whole)
    assert last["performance/score"] == pytest.approx(mean)
    assert mean != pytest.approx(sum(float(r["score"]) for r in rows) / len(rows))
    agent = load_agent(path)
    assert "checkpoint" not in agent.evaluate(12).ends
