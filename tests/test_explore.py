"""Exploration: how often, how long, and never what is forbidden."""

from __future__ import annotations

import csv
import itertools
import json

import pytest
import torch

from ludus import registry
from ludus.collect.collector import Collector
from ludus.collect.device_runner import DeviceRunner
from ludus.collect.policy_runner import HostRunner
from ludus.contract import Values
from ludus.envs.config import EnvConfig
from ludus.envs.make import make_envs
from ludus.explore import (
    Ladder,
    epsilon_greedy,
    lazy_epsilon_greedy,
    persistent_greedy,
    persistent_start,
    rungs,
)
from ludus.learn.learner import Learner
from ludus.types import ArraySpec, Ctx, Discrete, EnvSpec
from tests.contract.tiny import run, tiny


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_epsilon_is_the_share_of_random_actions() -> None:
    q = torch.tensor([[0.0, 1.0, 0.0, 0.0]]).repeat(20000, 1)
    action = epsilon_greedy(q, torch.tensor(0.4), rng())
    assert abs((action != 1).float().mean().item() - 0.4 * 3 / 4) < 0.01


def play(steps: int, epsilon: float, first: bool = False, mask: torch.Tensor | None = None):
    q = torch.tensor([[5.0, 0.0, 0.0]])
    state, g = persistent_start(1), rng()
    flags = torch.tensor([first])
    actions = []
    for _ in range(steps):
        action, state = persistent_greedy(q, torch.tensor(epsilon), state, flags, 2.0, g, mask)
        actions.append(int(action))
    return actions


def test_without_epsilon_it_is_greedy() -> None:
    assert set(play(50, 0.0)) == {0}


def test_exploratory_actions_last_as_long_as_the_zeta_distribution_says() -> None:
    q = torch.zeros(1, 1000)  # so many actions that two equal draws in a row are rare
    state, g, none = persistent_start(1), rng(), torch.tensor([False])
    actions = []
    for _ in range(30000):
        action, state = persistent_greedy(q, torch.tensor(1.0), state, none, 2.0, g)
        actions.append(int(action))
    runs, length = [], 1
    for a, b in itertools.pairwise(actions):
        if a == b:
            length += 1
        else:
            runs.append(length)
            length = 1
    once = sum(r == 1 for r in runs) / len(runs)
    twice = sum(r == 2 for r in runs) / len(runs)
    assert abs(once - 6 / 3.14159**2) < 0.03  # P(1) = 1 / zeta(2)
    assert abs(twice / once - 1 / 4) < 0.04
    assert max(runs) > 20


def test_an_episodes_first_step_ends_a_repetition() -> None:
    long = persistent_start(1)._replace(left=torch.tensor([100]), action=torch.tensor([2]))
    q = torch.tensor([[5.0, 0.0, 0.0]])
    zero = torch.tensor(0.0)
    on, state = persistent_greedy(q, zero, long, torch.tensor([False]), 2.0, rng())
    assert int(on) == 2 and int(state.left) == 99
    off, state = persistent_greedy(q, zero, long, torch.tensor([True]), 2.0, rng())
    assert int(off) == 0 and int(state.left) == 0


def test_a_forbidden_action_is_never_repeated_or_sampled() -> None:
    mask = torch.tensor([[True, False, True]])
    assert set(play(500, 0.5, mask=mask)) == {0, 2}


@pytest.mark.accept(73)
def test_the_ladder_reaches_from_its_base_to_its_eighth_power() -> None:
    steps = [Ladder().epsilon(i, 360) for i in range(360)]
    assert steps[0] == pytest.approx(0.4) and steps[-1] == pytest.approx(0.4**8)
    assert steps[-1] == pytest.approx(6.5536e-4)
    assert steps[100] == pytest.approx(0.4 ** (1 + 7 * 100 / 359))
    assert all(a > b for a, b in itertools.pairwise(steps))
    assert Ladder().epsilon(0, 1) == pytest.approx(0.4), "a lone slot"
    assert Ladder(base=0.5, alpha=1).epsilon(1, 2) == pytest.approx(0.25)


SPEC = EnvSpec("toy", ArraySpec((3,)), Discrete(3))


def test_rungs_are_counted_over_all_slots_of_all_actors() -> None:
    whole = rungs(Ladder(), 12, Ctx(rng(), SPEC, num_envs=12)).epsilon.tolist()
    parts = []
    for actor in range(3):
        for env in (0, 2):  # two groups of two
            ctx = Ctx(rng(), SPEC, actor=actor, actors=3, env=env, num_envs=4)
            parts += rungs(Ladder(), 2, ctx).epsilon.tolist()
    assert parts == whole and len(set(whole)) == 12


def shares(collector, learner, algorithm, greedy: int, steps: int = 400) -> list[float]:
    """How often each slot does not do the greedy thing."""
    collector.barrier(0)
    values = Values(algorithm.plan, 1000).at(500)
    action = collector.collect(learner.net, steps, values).chunk.rows.action
    collector.close()
    return (action != greedy).float().mean(0).tolist()


@pytest.mark.parametrize("runner", [HostRunner, DeviceRunner])
@pytest.mark.parametrize("groups", [1, 2])
def test_every_slot_explores_as_its_rung_says(runner, groups) -> None:
    algorithm = registry.make(tiny("apex-dqn", "CartPole-v1").algo)
    envs = make_envs(EnvConfig(id="CartPole-v1", num=4, groups=groups), seed=1)
    learner = Learner(algorithm, envs.spec, seed=1)
    always_right(learner)
    collector = Collector(algorithm, envs, seed=1, runner=runner)
    got = shares(collector, learner, algorithm, greedy=1)
    want = [0.4 ** (1 + 7 * i / 3) / 2 for i in range(4)]  # half of the random ones are greedy too
    assert got == pytest.approx(want, abs=0.05) and got[0] > 0.1 > got[1]


def always_right(learner) -> None:
    with torch.no_grad():
        for p in learner.net["online"].parameters():
            p.zero_()
        learner.net["online"].head.streams.output.bias[1] = 1.0


def test_the_ladder_holds_with_lasting_actions_and_a_schedule_above_it() -> None:
    envs = EnvConfig(id="CartPole-v1", num=2)
    for more, want in ((("persist=2",), 0.4), (("epsilon=1",), 1.0)):
        algorithm = registry.make(tiny("apex-dqn", "CartPole-v1", *more).algo)
        made = make_envs(envs, seed=1)
        learner = Learner(algorithm, made.spec, seed=1)
        always_right(learner)
        got = shares(Collector(algorithm, made, seed=1), learner, algorithm, greedy=1)
        assert got[0] > want / 2 - 0.05
        assert (got[1] < 0.05) == (want < 1)


def test_evaluation_ignores_the_ladder() -> None:
    algorithm = registry.make(tiny("apex-dqn", "CartPole-v1").algo)
    envs = make_envs(EnvConfig(id="CartPole-v1", num=2), seed=1)
    learner = Learner(algorithm, envs.spec, seed=1)
    always_right(learner)
    collector = Collector(algorithm, envs, seed=1)
    collector.ctx.evaluating = True
    assert shares(collector, learner, algorithm, greedy=1, steps=100) == [0.0, 0.0]


@pytest.mark.accept(73)
def test_every_episode_says_the_epsilon_of_its_slot(tmp_path) -> None:
    cfg = tiny("apex-dqn", "CartPole-v1", "steps=400", "env.num=3")
    with (run(cfg, tmp_path).path / "episodes.csv").open() as file:
        result = {int(r["slot"]): json.loads(r["info"])["epsilon"] for r in csv.DictReader(file)}
    assert result == pytest.approx({0: 0.4, 1: 0.4**4.5, 2: 0.4**8})


@pytest.mark.parametrize("epsilon", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("masked", [False, True])
def test_lazy_actions_equal_eager_ones_and_spare_the_network(epsilon, masked) -> None:
    spec = EnvSpec("x", ArraySpec((2,)), Discrete(3))
    mask = torch.tensor([[True, False, True], [True, True, False]]) if masked else None
    calls = 0

    def q() -> torch.Tensor:
        nonlocal calls
        calls += 1
        return values

    for seed in range(50):
        values = torch.randn(2, 3, generator=torch.Generator().manual_seed(seed))
        rate, first = torch.tensor(epsilon), torch.zeros(2, dtype=torch.bool)
        ctx = Ctx(torch.Generator().manual_seed(seed), spec)
        lazy = lazy_epsilon_greedy(q, first, rate, ctx, mask)
        rng = torch.Generator().manual_seed(seed)
        assert torch.equal(lazy, epsilon_greedy(values, rate, rng, mask))
        assert torch.equal(ctx.rng.get_state(), rng.get_state())
    assert calls == 0 if epsilon == 1 else calls > 25
