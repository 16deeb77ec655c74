"""Two learners in real processes, by gloo: what they compute from half a batch each equals what one
learner computes from the whole, to 1e-5, also with packed gradients."""

from __future__ import annotations

import multiprocessing
from typing import Any

import numpy as np
import pytest
import torch

from ludus import registry
from ludus.collect.collector import Collector
from ludus.contract import NStep, Values
from ludus.envs.config import EnvConfig
from ludus.envs.make import make_envs
from ludus.learn.compression import Compression
from ludus.learn.group import LearnerGroup
from ludus.learn.learner import Learner
from ludus.replay.store import build_store
from ludus.run.learners.loop import digest
from ludus.types import Sample, map_fields, map_rows, tree_map
from tests.contract.tiny import tiny

UPDATES = 5
PLAIN = ("rollout=16", "epochs=1", "minibatches=1", "env.num=4", "unroll=8", "batch=4", "t_max=8")
# One case of each: the algorithm, its compression, and the share that topk sends.
CASES = {
    "dqn": ("dqn", "off", 1.0),
    "impala": ("impala", "off", 1.0),
    "ppo": ("ppo", "off", 1.0),
    "a2c": ("a2c", "off", 1.0),
    "a2c zlib": ("a2c", "zlib", 1.0),
    "a2c bf16": ("a2c", "bf16", 1.0),
    "a2c topk of all": ("a2c", "topk", 1.0),
    "a2c topk": ("a2c", "topk", 0.3),
}


def config(name: str) -> Any:
    words = [w for w in PLAIN if w.split("=")[0] in registry.config_class(name).model_fields]
    return tiny(name, "CartPole-v1", "env.num=4", *words)


def batches(name: str) -> list[Any]:
    """The same in every process: whole batches, with rows masked in the second half."""
    algorithm = registry.make(config(name).algo)
    envs = make_envs(EnvConfig(id="CartPole-v1", num=4, max_episode_steps=5), seed=0)
    plan, values = algorithm.plan.for_envs(4), Values(algorithm.plan, 1000).at(0)
    collector = Collector(algorithm, envs, seed=0)
    collector.barrier(0)
    net = Learner(algorithm, envs.spec, seed=0).net
    store = build_store(plan, envs.spec, 4, seed=0, horizon=1000)
    found = []
    while len(found) < UPDATES:
        store.add(collector.collect(net, max(plan.chunk, 16), values).chunk)
        while store.ready() and len(found) < UPDATES:
            batch = store.sample().batch
            if not isinstance(plan.view, NStep):
                scale = torch.tensor([1.0, 2.0, 30.0, 4.0])
                batch = batch._replace(reward=batch.reward * scale)
                batch.mask[3:, 3] = False
            found.append(batch)
    return found


def half(batch: Any, rank: int) -> Any:
    if not hasattr(batch, "mask") or batch.mask is None or batch.mask.dim() == 1:
        size = len(batch.reward) // 2
        return map_fields(lambda x: x[rank * size : (rank + 1) * size], batch)
    columns = slice(2 * rank, 2 * rank + 2)
    part = map_rows(lambda _, x: x[:, columns], batch)
    own = {k: getattr(batch, k)[columns] for k in ("feed", "env", "version") if hasattr(batch, k)}
    return part._replace(state=tree_map(lambda x: x[columns], batch.state), **own)


def learned(name: str, parts: list[Any], group: Any = None, kind: str = "off", share: float = 1.0):
    """The learner after all updates, its losses, and its digests after each."""
    cfg = config(name)
    algorithm = registry.make(cfg.algo)
    envs = make_envs(EnvConfig(id="CartPole-v1", num=4), seed=0)
    learner = Learner(algorithm, envs.spec, seed=0)
    learner.ctx.group = group
    if kind != "off":
        learner.compression = Compression(kind, group, share)
    values, losses, digests = Values(algorithm.plan, 1000).at(0), [], []
    for part in parts:
        count = part.reward.shape[-1]
        learner.learn(Sample(part, torch.arange(count), torch.ones(count)), values)
        losses.append(learner.take_metrics()["loss"])
        digests.append(digest(learner.net))
    return learner, losses, digests


def work(rank: int, folder: Any, pipe: Any) -> None:
    torch.set_num_threads(1)
    group, found = LearnerGroup(folder, rank, 2), {}
    for case, (name, kind, share) in CASES.items():
        parts = [half(batch, rank) for batch in batches(name)]
        learner, losses, digests = learned(name, parts, group, kind, share)
        weights = torch.cat([p.detach().flatten() for p in learner.params]).numpy()
        sent = learner.compression.sent if learner.compression is not None else 0
        found[case] = (weights, losses, digests, sent)
    pipe.send(found)
    pipe.recv()


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """What each of two learners found, in every case."""
    context, folder = multiprocessing.get_context("spawn"), tmp_path_factory.mktemp("group")
    pipes = [context.Pipe() for _ in range(2)]
    started = [
        context.Process(target=work, args=(rank, folder, theirs), daemon=True)
        for rank, (_, theirs) in enumerate(pipes)
    ]
    for process, (_, theirs) in zip(started, pipes, strict=True):
        process.start()
        theirs.close()  # the pipe then ends when the process fails
    try:
        yield [ours.recv() for ours, _ in pipes]
    finally:
        for process in started:
            process.kill()
            process.join()


@pytest.fixture(scope="module")
def alone():
    return {name: learned(name, batches(name)) for name in {name for name, *_ in CASES.values()}}


EXACT = [case for case in CASES if case not in ("a2c bf16", "a2c topk")]


@pytest.mark.accept(24, 79)
@pytest.mark.parametrize("case", EXACT)
def test_a_group_of_two_equals_one_learner_with_both_batches(case, pair, alone) -> None:
    one, losses, digests = alone[CASES[case][0]]
    weights = torch.cat([p.detach().flatten() for p in one.params]).numpy()
    assert len(set(digests)) == UPDATES
    for found, curve, _, _ in (pair[0][case], pair[1][case]):
        np.testing.assert_allclose(found, weights, rtol=0, atol=1e-5)
        np.testing.assert_allclose(curve, losses, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("case", CASES)
def test_both_learners_hold_the_same_weights_after_each_update(case, pair) -> None:
    assert pair[0][case][2] == pair[1][case][2]
    assert pair[0][case][1] == pair[1][case][1]


@pytest.mark.accept(24)
def test_packed_gradients_are_smaller_and_bit_equal(pair) -> None:
    assert pair[0]["a2c"][2] == pair[0]["a2c zlib"][2]
    size = pair[0]["a2c"][0].nbytes * UPDATES
    assert 0 < pair[0]["a2c zlib"][3] < size
    assert pair[0]["a2c bf16"][3] == size / 2
    assert pair[0]["a2c topk"][3] == pytest.approx(0.6 * size, rel=0.01)


def test_rounded_and_partial_gradients_are_only_near(pair, alone) -> None:
    """What they do not send follows with the next gradients."""
    one = torch.cat([p.detach().flatten() for p in alone["a2c"][0].params]).numpy()
    rounded, partial = (np.abs(pair[0][f"a2c {kind}"][0] - one).max() for kind in ("bf16", "topk"))
    assert 0 < rounded < 1e-3 < partial
