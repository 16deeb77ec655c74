"""Samples of every algorithm say where their items come from; features reach a sampler that ranks
by them; feeds train and resume."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import pytest
import torch

from ludus import registry
from ludus.collect.collector import Collector
from ludus.contract import Episode, Feed, Fifo, Uniform, Unroll, Values
from ludus.envs.config import EnvConfig
from ludus.envs.make import make_envs
from ludus.errors import LudusError
from ludus.learn.eager import EagerUpdates
from ludus.learn.learner import Learner
from ludus.nets.normalize import Normalizer
from ludus.replay.samplers.uniform import UniformSampler
from ludus.replay.store import build_store
from tests.contract.tiny import NAMES, fitting, tiny


def parts_of(name, **changes):
    """A learner of three environments, and its store with a chunk of each version 0, 7 .. 35."""
    algorithm = registry.make(tiny(name, "CartPole-v1").algo)
    view = algorithm.plan.view
    short = {"max_episode_steps": 4} if isinstance(view, Episode) else {}
    changes = ({"capacity": 0} if short else {}) | changes  # all episodes wait
    object.__setattr__(algorithm, "plan", replace(algorithm.plan, **changes))
    plan = algorithm.plan.for_envs(3)
    envs = make_envs(EnvConfig(id=fitting(name, "CartPole-v1")[0], num=3, **short), seed=0)
    learner, collector = Learner(algorithm, envs.spec, seed=0), Collector(algorithm, envs, seed=0)
    collector.barrier(0)
    store = build_store(plan, envs.spec, 3, seed=0, horizon=1000)
    values, steps = Values(plan, 1000).at(500), max(plan.chunk, 8)
    if isinstance(view, Unroll) and view.length == 1:
        steps = 1  # a sample of each version
    for version in range(0, 42, 7):
        chunk = collector.collect(learner.net, steps, values).chunk
        store.add(chunk._replace(version=version))
    return learner, store, values


@pytest.mark.parametrize("name", NAMES)
def test_items_have_a_feed_an_environment_and_a_version(name):
    learner, store, values = parts_of(name)
    envs, versions = set(), set()
    for _ in range(5):
        sample = store.sample()
        for field in (sample.batch.feed, sample.batch.env, sample.batch.version):
            assert field.shape == sample.ids.shape and field.dtype == torch.int64
        assert not sample.batch.feed.any()
        envs |= set(sample.batch.env.tolist())
        versions |= set(sample.batch.version.tolist())
    assert envs == {0, 1, 2} and len(versions) > 1
    assert versions <= set(range(0, 42, 7))
    learner.set_counts(20, 0)
    learner.learn(sample, values)
    lag = 20 - sample.batch.version.double().mean()
    assert learner.take_metrics()["policy_lag"] == pytest.approx(float(lag))


class Ranked(Uniform):
    """A sampler of the test: it only remembers the features it is given."""

    needs_features: ClassVar[bool] = True


class Remembering(UniformSampler):
    ranked: ClassVar[list] = []

    def rank(self, slots, features):
        self.ranked.append((slots, features))


def test_features_of_a_sample_reach_the_sampler_that_ranks_by_them():
    learner, store, values = parts_of("dqn", sampler=Ranked())
    seen, sample = [], store.sample

    def watched():
        seen.append(sample())
        return seen[-1]

    store.sample, store.sampler.__class__ = watched, Remembering
    with pytest.raises(LudusError, match="ranks by features"):
        EagerUpdates(store, learner).start(values)
    type(learner.algorithm).features = lambda self, net, batch, ctx: batch.obs[:, :2] * 3
    try:
        EagerUpdates(store, learner).start(values)
    finally:
        del type(learner.algorithm).features
    assert len(Remembering.ranked) == len(seen) - 1 > 0
    slots, features = Remembering.ranked[-1]
    assert torch.equal(slots, seen[-1].ids % store.ring.layout.slots)
    assert torch.equal(features, seen[-1].batch.obs[:, :2] * 3) and not features.requires_grad


def test_features_are_computed_of_normalised_observations():
    learner, store, _ = parts_of("dqn")
    seen, batch = [], store.sample().batch
    learner.net["normalizer"] = scaled = Normalizer(learner.ctx.spec, 3, reward=False)
    scaled._merge("0", 5 + 3 * batch.obs, None)
    type(learner.algorithm).features = lambda self, net, b, ctx: seen.append(b.obs) or b.obs
    try:
        learner.features(batch)
    finally:
        del type(learner.algorithm).features
    torch.testing.assert_close(seen[0], scaled.obs(batch.obs))
    assert not torch.allclose(seen[0], batch.obs, atol=0.1)


def test_impala_learns_from_a_queue_and_a_replay():
    """Half of every batch is fresh, half is replayed (Espeholt et al. 2018, with replay)."""
    length = registry.make(tiny("impala", "CartPole-v1").algo).plan.view.length
    feeds = (
        Feed("queue", Unroll(length), Fifo(), share=0.5),
        Feed("standard", Unroll(length), Uniform(), 10 * length, 0.5),
    )
    learner, store, values = parts_of(
        "impala", view=None, sampler=None, capacity=0, feeds=feeds, batch=4
    )
    assert store.ready()
    before = [p.clone() for p in learner.params]
    EagerUpdates(store, learner).start(values)
    assert learner.updates > 1 and not store.ready()
    assert any(not torch.equal(a, b) for a, b in zip(before, learner.params, strict=True))
