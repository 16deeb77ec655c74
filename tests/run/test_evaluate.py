"""Evaluation: whole episodes, each slot its share, the same for a seed, no trace in training."""

from __future__ import annotations

import csv
import re

import gymnasium as gym
import numpy as np
import pytest
import torch

from ludus.evals.agent import load_agent
from ludus.evals.evaluate import EvalResult, evaluate_policy
from ludus.settings.trust import Trust
from ludus.stats import aggregates
from ludus.stats.aggregates import stratified_bootstrap
from ludus.track.checkpoint.reader import load
from tests.contract.same import same_checkpoints
from tests.contract.tiny import run, tiny


class Uneven(gym.Env):
    """Episodes of 3 or 60 steps, by turns: who counts the first to finish sees too many short."""

    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.length = int(self.np_random.choice([3, 60]))
        self.t = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.t += 1
        return np.zeros(2, np.float32), 1.0, self.t >= self.length, False, {}


@pytest.fixture(scope="module")
def agent(tmp_path_factory):
    cfg = tiny("rainbow-iqn", "CartPole-v1", "steps=200")
    return load_agent(run(cfg, tmp_path_factory.mktemp("runs")).path)


@pytest.mark.parametrize("episodes", [1, 7, 10, 23])
def test_exactly_the_episodes_asked_for(agent, episodes) -> None:
    result = agent.evaluate(episodes)
    assert len(result.scores) == len(result.lengths) == len(result.seeds) == episodes
    assert result.scores == [float(n) for n in result.lengths]  # CartPole pays 1 a step
    assert len(set(result.seeds)) == episodes, "each has a seed of its own"
    assert set(result.ends) <= {"terminated", "truncated"} and len(result.ends) == episodes


def test_the_same_episodes_however_many_at_a_time(agent) -> None:
    ten, four = agent.evaluate(12), agent.evaluate(12, settings=["env.num=4"])
    assert ten.seeds == four.seeds and ten.scores == four.scores
    assert agent.evaluate(5).seeds == ten.seeds[:5]


def test_long_episodes_have_their_share(tmp_path) -> None:
    path = run(tiny("dqn", f"{__name__}:Uneven", "steps=100"), tmp_path).path
    result = load_agent(path, trust=Trust(whole=True)).evaluate(60)
    assert set(result.lengths) == {3, 60}
    assert 15 <= result.lengths.count(60) <= 45, "half of them, by the environment's own coin"


def test_the_same_for_a_seed_and_without_a_trace(agent) -> None:
    torch.manual_seed(0)
    one = agent.evaluate(10, seed=5)
    torch.manual_seed(1)
    before = torch.get_rng_state()
    two = agent.evaluate(10, seed=5)
    assert one == two and torch.equal(before, torch.get_rng_state())
    assert agent.evaluate(10, seed=6).scores != one.scores
    assert agent.evaluate(10, seed=5, epsilon=1.0).scores != one.scores


@pytest.mark.parametrize(
    ("name", "more"), [("rainbow-iqn", ()), ("ppo", ("env.normalize={obs: true, reward: true}",))]
)
def test_evaluation_does_not_disturb_training(name, more, tmp_path) -> None:
    settings = ("steps=500", "checkpoint_every=250", *more)
    plain = run(tiny(name, "CartPole-v1", *settings), tmp_path).path
    often = ("eval.every=70", "eval.episodes=3")
    path = run(tiny(name, "CartPole-v1", *settings, *often), tmp_path).path
    same_checkpoints(plain, path)
    rows = list(csv.DictReader((path / "evals.csv").open()))
    steps = [int(r["step"]) for r in rows]
    assert len(steps) == len(set(steps)) >= 7 and steps[-1] == load(path).step
    assert all(int(r["episodes"]) == 3 for r in rows)
    assert not list(csv.DictReader((plain / "evals.csv").open()))


def test_the_end_is_evaluated_once_even_if_one_was_due(tmp_path) -> None:
    cfg = tiny("dqn", "ludus/Identity-v0", "steps=200", "eval.every=100", "eval.episodes=2")
    rows = list(csv.DictReader((run(cfg, tmp_path).path / "evals.csv").open()))
    steps = [int(r["step"]) for r in rows]
    assert len(steps) == len(set(steps)) == 2


def test_greedy_by_default_and_sampled_when_asked(tmp_path) -> None:
    """An untrained policy is nearly uniform: its best action is constant, its samples are not."""
    path = run(tiny("ppo", "ludus/IdentityBox-v0", "steps=40"), tmp_path).path
    agent = load_agent(path)
    assert agent.evaluate(4, seed=1) == agent.evaluate(4, seed=1)
    assert agent.evaluate(4, seed=1, sample=True).scores != agent.evaluate(4, seed=1).scores


def test_normalisers_are_read_not_moved(tmp_path) -> None:
    cfg = tiny("ppo", "Pendulum-v1", "steps=100", "env.normalize={obs: true, reward: true}")
    agent = load_agent(run(cfg, tmp_path).path)
    before = {k: v.clone() for k, v in agent.net.state_dict().items()}
    evaluate_policy(agent.algorithm, agent.net, cfg.env, episodes=2, seed=0)
    assert all(torch.equal(before[k], v) for k, v in agent.net.state_dict().items())


def test_numbers_of_a_result() -> None:
    result = EvalResult([1.0, 2.0, 3.0, 10.0], [1, 2, 3, 4], [0, 1, 2, 3], settings={"seed": 9})
    assert (result.mean, result.median) == (4.0, 2.5)
    mean, low, high = result.mean_ci()
    assert mean == 4.0 and (low, high) == result.interval == stratified_bootstrap(
        result.scores, aggregates.mean
    )
    answer = result.as_dict()
    assert answer["bootstrap_interval"] == [low, high]
    assert (answer["min"], answer["max"], answer["episodes"], answer["seed"]) == (1.0, 10.0, 4, 9)


def test_an_interval_stays_within_what_was_scored() -> None:
    """Two episodes of a game that ends at 500: a normal interval went up to 640."""
    result = EvalResult([500.0, 208.0], [500, 208], [0, 1])
    assert result.interval == (208.0, 500.0)
    alone = EvalResult([7.0], [7], [0])
    assert alone.interval is None and alone.as_dict()["bootstrap_interval"] is None
    assert alone.mean_ci() == (7.0, None, None)


def test_a_long_evaluation_tells_how_far_it_is(agent, monkeypatch, capsys) -> None:
    from ludus.evals import evaluate

    agent.evaluate(4, quiet=False)
    assert "evaluation:" not in capsys.readouterr().err, "a short one has no need to"
    monkeypatch.setattr(evaluate, "PROGRESS_SECONDS", 0.0)
    agent.evaluate(40, quiet=False)
    lines = [x for x in capsys.readouterr().err.splitlines() if x.startswith("evaluation:")]
    assert re.fullmatch(r"evaluation: 0 of 40 episodes, \S+ steps, \S+ steps/s", lines[0])
    assert any(re.search(r" of 40 episodes, .* steps/s, about \d+s to go$", x) for x in lines)
    assert lines[-1].startswith("evaluation: 40 of 40 episodes, ") and "to go" not in lines[-1]
    agent.evaluate(4)
    assert not capsys.readouterr().err


def test_the_rest_is_estimated_from_episodes_that_ended() -> None:
    from ludus.evals.evaluate import seconds_left

    assert seconds_left(20, seconds=30.0, steps=0, lengths=[]) is None, "before the first, nothing"
    # 20 episodes of about 100 steps, 500 of them done in 10 s
    assert seconds_left(20, seconds=10.0, steps=500, lengths=[90, 110]) == pytest.approx(30.0)
    assert seconds_left(2, seconds=10.0, steps=500, lengths=[90, 110]) is None, (
        "longer ones are left"
    )


def test_an_evaluation_within_training_tells_too(tmp_path, monkeypatch, capsys) -> None:
    from ludus.run.recording import recorder

    monkeypatch.setattr(recorder, "FIRST_SECONDS", 0.0)
    settings = ("steps=100", "eval.every=50", "eval.episodes=3", "log.seconds=0.001s")
    path = run(tiny("dqn", "CartPole-v1", *settings), tmp_path, quiet=False).path
    out, log = capsys.readouterr().out, (path / "log.txt").read_text()
    for text in (out, log):
        assert re.search(r"evaluation at step \d+: \d of 3 episodes, \d+ steps, ", text)
    run(tiny("dqn", "CartPole-v1", *settings), tmp_path, quiet=True)
    assert " of 3 episodes, " not in capsys.readouterr().out
