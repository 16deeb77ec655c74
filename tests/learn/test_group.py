"""The seam of several learners: what a group of two computes from half a batch each equals what one
learner computes from the whole. The group is a double: two threads that wait for each other."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor

from ludus import registry
from ludus.algos import a2c, reinforce
from ludus.collect.collector import Collector
from ludus.contract import Values
from ludus.envs.config import EnvConfig
from ludus.envs.make import make_envs
from ludus.learn.learner import Learner
from ludus.nets.normalize import Normalizer
from ludus.replay.store import build_store
from ludus.types import Ctx, Sample, Traj, map_rows, tree_map
from tests.contract.tiny import tiny
from tests.learn.toy import SPEC, Toy, transition
from tests.nets.test_normalize import SPEC as NORMALIZED
from tests.nets.test_normalize import rows as some_rows


class Pair:
    """Member `index` of a group of two; `sum` waits for the other."""

    def __init__(self, index: int, barrier: threading.Barrier, places: list) -> None:
        self.index, self.barrier, self.places = index, barrier, places

    def sum(self, x: Tensor) -> Tensor:
        self.places[self.index] = x.detach().clone()
        self.barrier.wait()
        found = self.places[0] + self.places[1]
        self.barrier.wait()
        return found


def together(fn):
    """fn(index, group) of both members at once."""
    barrier, places = threading.Barrier(2, timeout=60), [None, None]
    with ThreadPoolExecutor(2) as pool:
        jobs = [pool.submit(fn, i, Pair(i, barrier, places)) for i in range(2)]
        return [job.result() for job in jobs]


def context(group=None) -> Ctx:
    return Ctx(torch.Generator(), SPEC, group=group)


X = torch.tensor([1.0, 2.0, 3.0, 10.0, 5.0, 100.0])
MASK = torch.tensor([True, True, False, True, True, False])
HALVES = (slice(0, 4), slice(4, 6))  # three valid rows and one


def test_alone_they_are_plain_masked_moments() -> None:
    mean, variance = context().moments(X, MASK)
    torch.testing.assert_close(mean, X[MASK].mean())
    torch.testing.assert_close(variance, X[MASK].var())
    torch.testing.assert_close(context().mean(X, MASK), X[MASK].mean())
    nothing = context().moments(X, torch.zeros(6, dtype=torch.bool))
    assert [float(n) for n in nothing] == [0.0, 0.0]


def test_a_group_agrees_on_the_moments_of_all_rows() -> None:
    def work(i, group):
        ctx, half = context(group), HALVES[i]
        return ctx.mean(X[half], MASK[half]), *ctx.moments(X[half], MASK[half])

    for got in together(work):
        torch.testing.assert_close(got, (X[MASK].mean(), X[MASK].mean(), X[MASK].var()))


def test_two_ppo_learners_equal_one_on_the_joined_batch() -> None:
    """Gradients, losses and weights, though the halves have other means and other masks."""
    # Adam's first step would blow rounding of a gradient near 0 up to a whole learning rate.
    cfg = tiny("ppo", "CartPole-v1", "rollout=16", "epochs=1", "minibatches=1", "env.num=4",
               "algo.optimizer.kind=sgd")  # fmt: skip
    algorithm = registry.make(cfg.algo)
    envs = make_envs(EnvConfig(id="CartPole-v1", num=4, max_episode_steps=5), seed=0)
    plan, values = algorithm.plan.for_envs(4), Values(algorithm.plan, 1000).at(0)
    one = Learner(algorithm, envs.spec, seed=0)
    collector = Collector(algorithm, envs, seed=0)
    collector.barrier(0)
    store = build_store(plan, envs.spec, 4, seed=0, horizon=1000)
    store.add(collector.collect(one.net, 16, values).chunk)
    whole = store.sample().batch
    whole = whole._replace(reward=whole.reward * torch.tensor([1.0, 2.0, 30.0, 4.0]))
    whole.mask[3:, 3] = False  # another number of rows in the second half

    def half(i):
        columns = (slice(0, 2), slice(2, 4))[i]
        part = map_rows(lambda _, x: x[:, columns], whole)
        return part._replace(state=tree_map(lambda x: x[columns], whole.state))

    # Made one by one: a net starts from torch's global generator, which threads share.
    learners = [Learner(algorithm, envs.spec, seed=0) for _ in range(2)]

    def work(i, group):
        it = learners[i]
        it.ctx.group = group
        it.learn(Sample(half(i), torch.arange(2), torch.ones(2)), values)
        return it

    one.learn(Sample(whole, torch.arange(4), torch.ones(4)), values)
    pair = together(work)
    for it in pair:
        for got, want in zip(it.params, one.params, strict=True):
            torch.testing.assert_close(got.grad, want.grad, rtol=1e-4, atol=1e-6)
            torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-6)
        assert float(it._sums["loss"][0]) == pytest.approx(float(one._sums["loss"][0]), abs=1e-6)
    weights = [torch.cat([p.flatten() for p in it.params]) for it in pair]
    assert torch.equal(*weights), "both learners hold the same weights, bit for bit"


def test_items_of_unequal_batches_count_alike() -> None:
    """Three transitions here and one there give the gradient of four together: d/da is their
    mean."""
    obs = torch.arange(12.0).view(4, 3)
    learners = [Learner(Toy(), SPEC, seed=0) for _ in range(2)]

    def work(i, group):
        part = obs[(slice(0, 3), slice(3, 4))[i]]
        learners[i].ctx.group = group
        sample = Sample(transition(part), torch.arange(len(part)), torch.ones(len(part)))
        learners[i].learn(sample, {"lr": torch.tensor(0.1)})
        return learners[i].net["online"].a.grad

    for grad in together(work):
        torch.testing.assert_close(grad, obs.mean(0))


ALGORITHMS = {
    "a2c": a2c.A2C(a2c.Config(normalize_advantage=True)),
    "reinforce": reinforce.Reinforce(reinforce.Config(normalize_returns=True)),
}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_policy_gradients_of_a_group_normalise_over_all_rows(name) -> None:
    """Their losses take the moments from the context."""
    algorithm, asked = ALGORITHMS[name], []

    class Asked(Ctx):
        def moments(self, x, mask):
            asked.append(mask)
            return super().moments(x, mask)

    net = algorithm.build(SPEC)
    no, yes = torch.zeros(2, 3, dtype=torch.bool), torch.ones(2, 3, dtype=torch.bool)
    last, first = torch.stack([no[0], yes[0]]), torch.stack([yes[0], no[0], no[0]])
    b = Traj(torch.randn(3, 3, 3), no.long(), torch.rand(2, 3), torch.ones(2, 3), last, first, yes)
    algorithm.loss(net, b, Asked(torch.Generator(), SPEC))
    assert [mask.shape for mask in asked] == [(2, 3)]


def test_alone_each_half_would_normalise_by_its_own_mean() -> None:
    """What the group is for: without it the halves disagree."""
    means = [context().moments(X[half], MASK[half])[0] for half in HALVES]
    assert means[0] != means[1]


def test_normalisers_of_a_group_see_the_rows_of_all() -> None:
    parts = [some_rows(seed) for seed in (1, 2)]
    empty = parts[0]._replace(mask=torch.zeros_like(parts[0].mask))

    def work(i, group):
        it = Learner(Toy(), NORMALIZED, seed=0, normalizer=Normalizer(NORMALIZED, 4, reward=False))
        it.ctx.group, norm = group, it.normalizer
        it.observe(parts[i])
        norm.observe((empty, parts[1])[i], 0, group)  # one learner has nothing new
        norm.observe(empty, 0, group)
        return norm

    alone = Normalizer(NORMALIZED, 4, reward=False)
    for part in (*parts, parts[1]):
        alone.observe(part)
    for norm in together(work):
        torch.testing.assert_close(norm.mean_0, alone.mean_0)
        torch.testing.assert_close(norm.var_0, alone.var_0)
        assert norm.count_0 == alone.count_0
