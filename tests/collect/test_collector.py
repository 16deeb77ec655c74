"""The Collector: rows in one format however the slots are grouped, stacked or timed."""

from __future__ import annotations

import pytest
import torch

from ludus import registry
from ludus.collect.collector import Collector
from ludus.collect.policy_runner import FrameStacker
from ludus.contract import Values
from ludus.envs.config import EnvConfig
from ludus.envs.make import make_envs
from ludus.explore import Persistent
from ludus.learn.learner import Learner
from ludus.types import ArraySpec, tree_leaves
from tests.contract.tiny import tiny


def collector(name: str, env: str, **settings) -> tuple[Collector, Learner, dict]:
    cfg = tiny(name, env)
    algorithm = registry.make(cfg.algo)
    envs = make_envs(EnvConfig(id=env, **settings), seed=3)
    values = Values(algorithm.plan, 1000).at(500)
    return Collector(algorithm, envs, seed=3), Learner(algorithm, envs.spec, seed=3), values


def rows_of(*args, chunks=(13, 7), **settings):
    """Several chunks of one stream, joined again."""
    it, learner, values = collector(*args, **settings)
    it.barrier(0)
    got = [it.collect(learner.net, n, values) for n in chunks]
    it.close()
    return got


@pytest.mark.parametrize("env", ["CartPole-v1", "ludus/IdentityDict-v0", "ludus/MaskedBandit-v0"])
@pytest.mark.parametrize("groups", [1, 2, 3])
def test_groups_give_rows_of_the_same_format(env, groups) -> None:
    one, many = (rows_of("dqn", env, num=5, groups=g)[0].chunk.rows for g in (1, groups))
    for name, a, b in zip(one._fields, one, many, strict=True):
        if name in ("extras", "state") or a is None:
            assert type(a) is type(b)
            continue
        for x, y in zip(tree_leaves(a), tree_leaves(b), strict=True):
            assert x.shape == y.shape and x.dtype == y.dtype, name
    # Slots are seeded one by one, so the first observations do not depend on the grouping.
    for x, y in zip(tree_leaves(one.obs), tree_leaves(many.obs), strict=True):
        assert torch.equal(x[0], y[0])


def test_actor_states_of_all_groups_are_joined() -> None:
    """Also where the state is a NamedTuple."""
    cfg = tiny("dqn", "CartPole-v1", "algo.persist=2")
    algorithm = registry.make(cfg.algo)
    envs = make_envs(EnvConfig(id="CartPole-v1", num=5, groups=2), seed=3)
    it, learner = Collector(algorithm, envs, seed=3), Learner(algorithm, envs.spec, seed=3)
    it.barrier(0)
    for _ in range(2):
        state = it.collect(learner.net, 6, Values(algorithm.plan, 1000).at(0)).chunk.rows.state
    it.close()
    assert type(state) is Persistent and [x.shape for x in state] == [(5,), (5,)]


@pytest.mark.parametrize("groups", [1, 2])
def test_a_stream_follows_the_rules_of_rows(groups) -> None:
    """TruncationProbe: ten steps, the true last observation, one dummy row, a new episode."""
    first, second = rows_of("ppo", "ludus/Truncation-v0", num=2, groups=groups)
    assert first.chunk.breaks and not second.chunk.breaks
    assert (first.chunk.sequence, second.chunk.sequence) == (0, 1)
    a, b = first.chunk.rows, second.chunk.rows
    assert torch.equal(a.obs[-1], b.obs[0]) and torch.equal(a.first[-1], b.first[0])
    t = torch.cat([a.obs.argmax(-1), b.obs.argmax(-1)[1:]])[:, 0].tolist()
    assert t == [*range(10), 9, *range(10)]  # 9 twice: min(t, 9), also at the very end
    last, mask, start = (
        torch.cat([getattr(a, n)[: len(a.reward)], getattr(b, n)])[:20, 0].tolist()
        for n in ("last", "mask", "first")
    )
    assert [i for i, x in enumerate(last) if x] == [9]
    assert [i for i, x in enumerate(mask) if not x] == [10]
    assert [i for i, x in enumerate(start) if x] == [0, 11]
    reward = torch.cat([a.reward, b.reward])[:, 0]
    assert reward[10] == 0 and reward.sum() == 19
    assert torch.cat([a.discount, b.discount]).min() == 1, "cut is not over"
    assert [(e.env, e.score, e.length, e.end) for e in first.episodes] == [
        (0, 10.0, 10, "truncated"),
        (1, 10.0, 10, "truncated"),
    ]
    assert a.extras["log_prob"].shape == (13, 2)


def test_a_barrier_starts_every_slot_anew_and_the_same() -> None:
    it, learner, values = collector("dqn", "CartPole-v1", num=3)
    assert it.barrier(0) == []
    once = it.collect(learner.net, 5, values).chunk.rows
    cut = it.barrier(1)
    assert [(e.env, e.length, e.end) for e in cut] == [(i, 5, "checkpoint") for i in range(3)]
    other = it.collect(learner.net, 5, values).chunk
    assert other.breaks and other.rows.first[0].all()
    assert not torch.equal(other.rows.obs[0], once.obs[0]), "another barrier, another start"
    it.barrier(0)
    again = it.collect(learner.net, 5, values).chunk.rows
    assert torch.equal(again.obs, once.obs) and torch.equal(again.action, once.action)
    it.close()


def test_stacks_for_acting_have_zeros_before_the_first_frame() -> None:
    stacker = FrameStacker(ArraySpec((2,), stack=3), 2)
    first = torch.tensor([True, True]).numpy()
    later = torch.tensor([False, True]).numpy()
    stacker.push(torch.ones(2, 2), first)
    old = stacker.push(2 * torch.ones(2, 2), ~first)
    new = stacker.push(3 * torch.ones(2, 2), later)
    assert old[:, :, 0].tolist() == [[0, 1, 2], [0, 1, 2]], "a stack handed out does not change"
    assert new[:, :, 0].tolist() == [[1, 2, 3], [0, 0, 3]]
    assert FrameStacker(ArraySpec((2,)), 2).push(old, first) is old


def test_acting_and_learning_see_the_same_stacks() -> None:
    """What the policy saw row by row is what replay's views make of single frames."""
    it, learner, values = collector("dqn", "ludus/IdentityPixels-v0", num=2, stack=3)
    seen = []
    act = it.algorithm.act

    def watching(net, step, state, ctx):
        seen.append(step.obs.clone())
        return act(net, step, state, ctx)

    it.algorithm.act = watching
    it.barrier(0)
    rows = it.collect(learner.net, 30, values).chunk.rows
    it.close()
    assert rows.obs.dim() == seen[0].dim(), "one frame a row, [T+1, N, ...]; [N, k, ...] for acting"
    for t, stack in enumerate(seen):
        assert torch.equal(stack[:, -1], rows.obs[t])
        for n in range(2):
            start = max(i for i in range(t + 1) if rows.first[i, n])
            for k in (1, 2):
                want = rows.obs[t - k, n] if t - k >= start else torch.zeros_like(rows.obs[t, n])
                assert torch.equal(stack[n, -1 - k], want)
