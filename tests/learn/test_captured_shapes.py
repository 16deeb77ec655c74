"""Captured updates on sequences, on replayed unrolls and on batches that arrive from elsewhere: the
same weights, priorities and pace as eager updates on the same draws."""

from __future__ import annotations

import copy
import functools
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import nn

from ludus.compute.cuda_graph import Streams
from ludus.contract import Defaults, Plan, Prioritized, Sequence, Uniform, Unroll
from ludus.errors import LudusError
from ludus.learn.captured import CapturedReplay, CapturedUnrolls, build_updates
from ludus.learn.eager import EagerUpdates
from ludus.learn.learner import Learner
from ludus.learn.staged import CapturedStaged, build_staged
from ludus.replay.arrivals import Arrivals
from ludus.replay.store import build_store
from ludus.schedules import ramp
from ludus.types import ArraySpec, Chunk, Discrete, EnvSpec, Loss, Rows
from tests.skips import needs_gpu

DEVICES = ["cpu", pytest.param("cuda", marks=needs_gpu)]
SPEC = EnvSpec("games", ArraySpec((3,)), Discrete(2))
STATE = {"state": ((4,), torch.float32)}
ENVS = 3
PLANS = {
    "sequences": (Sequence(5, 3, 2), Uniform(), {}),
    "prioritized sequences": (Sequence(5, 3, 2), Prioritized(normalize="buffer"), {}),
    "no burn-in": (Sequence(4, 2), Prioritized(), {}),
    "unrolls": (Unroll(4), Uniform(), {}),
    "unrolls, minibatches": (Unroll(4), Uniform(), {"epochs": 2, "minibatches": 3}),
    "sequences, minibatches": (Sequence(4, 2, 2), Uniform(), {"minibatches": 4}),
}


class Flat(NamedTuple):
    """Rows that are learned from one by one."""

    obs: torch.Tensor
    reward: torch.Tensor
    mask: torch.Tensor


class Recurrent(Defaults):
    """A recurrent value of the reward; rows of the burn-in only move the state."""

    def __init__(self, view, sampler, **plan) -> None:
        given = {"batch": 6, "capacity": 120, "chunk": 4, "warmup": 30, "replay_ratio": 2.0} | plan
        schedules = {"lr": ramp(0.01)}
        self.plan = Plan(view, sampler, schedules=schedules, **given)

    def build(self, spec):
        return nn.ModuleDict({"core": nn.GRUCell(3, 4), "head": nn.Linear(4, 1)})

    def optimizer(self, net):
        return torch.optim.Adam(net.parameters(), lr=0.0, fused=True)

    def loss(self, net, batch, ctx):
        if batch.obs.dim() == 2:  # rows of a minibatch
            hidden = net["core"](batch.obs)
            return Loss((net["head"](hidden)[:, 0] - batch.reward) ** 2)
        steps, width = batch.mask.shape
        hidden = batch.state if torch.is_tensor(batch.state) else batch.obs.new_zeros(width, 4)
        values = []
        for t in range(steps):
            hidden = net["core"](batch.obs[t], hidden)
            if batch.burn_in is not None:
                hidden = torch.where(batch.burn_in[t][:, None], hidden.detach(), hidden)
            values.append(net["head"](hidden)[:, 0])
        error = (torch.stack(values) - batch.reward) ** 2
        trained = torch.where(batch.mask, error, 0.0)
        # A random number of the learner's, as a loss with noise draws it.
        noise = torch.rand((), generator=ctx.rng, device=error.device)
        priority = trained.detach().amax(0)
        return Loss(error * (1 + 0.1 * noise), {"rows": batch.mask.sum().float()}, priority)

    def prepare(self, net, batch, ctx):
        if self.plan.minibatches == 1:
            return batch
        return Flat(batch.obs[:-1], batch.reward, batch.mask)


def chunks(count, steps=4, seed=0):
    """Random games of 1 to 9 steps, with their dummy rows."""
    rng = np.random.default_rng(seed)
    left, age = rng.integers(1, 10, ENVS), np.zeros(ENVS, int)
    flags = np.zeros((count * steps + 1, ENVS, 3), bool)  # last, first, dummy
    for t in range(len(flags)):
        for e in range(ENVS):
            if left[e] == 0:
                flags[t, e, 2] = True
                left[e], age[e] = rng.integers(1, 10), -1
            else:
                flags[t, e, 1] = age[e] == 0
                left[e] -= 1
                flags[t, e, 0] = left[e] == 0
            age[e] += 1
    last, first, dummy = torch.from_numpy(flags).unbind(-1)
    numbers = torch.from_numpy(rng.random((len(flags), ENVS, 8))).float()
    for k in range(count):
        at = slice(k * steps, (k + 1) * steps)
        ahead = slice(k * steps, (k + 1) * steps + 1)
        reward = numbers[at, :, 3]
        rows = Rows(
            numbers[ahead, :, :3], (reward > 0.5).long(), reward, reward, 1 - last[at].float(),
            last[at], first[ahead], ~dummy[at], extras={"state": numbers[at, :, 4:]},
        )  # fmt: skip
        yield Chunk(rows, 0, k)


def parts(name, device):
    view, sampler, more = PLANS[name]
    algorithm = Recurrent(view, sampler, **more)
    learner = Learner(algorithm, SPEC, seed=1, device=device)
    extras = STATE if isinstance(view, Sequence) else None
    store = build_store(
        algorithm.plan, SPEC, ENVS, seed=1, horizon=1000, device=device, extras_spec=extras,
        on_device=True,
    )  # fmt: skip
    return store, learner


def to(device, chunk):
    """Rows without a recurrent state where unrolls would keep it."""
    rows = chunk.rows._replace(obs=chunk.rows.obs.to(device))
    return chunk._replace(rows=rows)


@functools.cache
def values_on(device):
    """As in a run, the same tensors every time: a graph reads them where they were."""
    return {"lr": torch.tensor(0.01, device=device)}


def values_of(learner):
    return values_on(learner.device)


def weights(learner):
    return [p.detach().cpu().clone() for p in learner.net.parameters()]


def train(name, device, captured, count=40):
    """Weights and counts after each chunk."""
    store, learner = parts(name, device)
    if captured:
        updates = build_updates(
            store, learner, Streams(learner.device), capture="on", overlap=False
        )
    else:
        updates = EagerUpdates(store, learner)
    history = []
    for chunk in chunks(count):
        store.add(to(device, chunk))
        updates.start(values_of(learner))
        updates.finish()
        history.append((learner.updates, store.samples_drawn))
    return updates, store, learner, history


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", PLANS)
def test_captured_updates_equal_eager_ones(name, device):
    updates, store, learner, history = train(name, device, captured=True)
    split = "minibatches" in name
    assert isinstance(updates, CapturedUnrolls if split else CapturedReplay)
    assert updates.mode == ("captured" if device == "cuda" else "emulated: no GPU")
    _, other, eager, expected = train(name, device, captured=False)
    assert history == expected and learner.updates > 20
    for a, b in zip(weights(learner), weights(eager), strict=True):
        if device == "cpu":
            assert torch.equal(a, b)
        else:
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    assert any(
        not torch.equal(a, b)
        for a, b in zip(weights(learner), weights(parts(name, "cpu")[1]), strict=True)
    )
    if isinstance(store.plan.sampler, Prioritized):
        torch.testing.assert_close(store.sampler.tree.leaves, other.sampler.tree.leaves)
    assert learner.take_metrics() == pytest.approx(eager.take_metrics(), rel=1e-4)


@pytest.mark.parametrize("name", ["sequences", "unrolls"])
def test_the_host_reads_the_count_only_where_it_decides(name, monkeypatch):
    """Far fewer reads than updates while many updates are due."""
    store, learner = parts(name, "cpu")
    updates = build_updates(store, learner, Streams(learner.device), capture="on", overlap=False)
    for chunk in chunks(30):
        store.add(chunk)
    reads, read = [], store.read_count
    monkeypatch.setattr(store, "read_count", lambda: (reads.append(store._unread), read()))
    updates.start(values_of(learner))
    assert learner.updates > 10 and len(reads) < learner.updates / 2
    assert not store.ratio.ready() or store._unread


@pytest.mark.parametrize("name", ["prioritized sequences", "unrolls"])
def test_a_resumed_store_goes_on_as_the_one_that_was_saved(name):
    """The count of rows drawn on the device is in the checkpoint."""
    updates, store, learner, _ = train(name, "cpu", captured=True, count=20)
    store.ratio.steps_inserted += 100  # so that some are due
    updates.start(values_of(learner))
    updates.finish()
    store.count_sample()
    store.sample_on_device()
    assert store._unread, "drawn, and not read by the host"
    tensors, numbers = store.state()
    assert numbers["samples_drawn"] == int(store.counted)
    again, _ = parts(name, "cpu")
    again.restore([store.new_rows_since(None)])
    again.load(tensors, numbers)
    assert again.samples_drawn == store.samples_drawn == numbers["samples_drawn"] > 0
    second = Learner(learner.algorithm, SPEC, seed=1)
    second.net.load_state_dict(learner.net.state_dict())
    second.optimizer.load_state_dict(copy.deepcopy(learner.optimizer.state_dict()))
    second.ctx.rng.set_state(learner.ctx.rng.get_state())
    other = build_updates(again, second, Streams(second.device), capture="on", overlap=False)
    for s in (store, again):
        s.break_streams()
    for chunk in chunks(20, seed=5):
        for s, u, one in ((store, updates, learner), (again, other, second)):
            s.add(chunk._replace(sequence=chunk.sequence + 20))
            u.start(values_of(one))
            u.finish()
        assert store.samples_drawn == again.samples_drawn
    assert all(torch.equal(a, b) for a, b in zip(weights(learner), weights(second), strict=True))


def arrivals_of(name, device, captured):
    """A learner fed by a replay of its own process, as a replay role would feed it."""
    source, learner = parts(name, device)
    store = Arrivals()
    streams = Streams(learner.device)
    updates = build_staged(store, learner, streams, capture="on" if captured else "off")
    given = []
    for chunk in chunks(40):
        source.add(to(device, chunk))
        while source.ready():
            store.put(source.sample())  # sometimes several wait
        updates.start(values_of(learner))
        updates.finish()
        for ids, priority in store.take_priorities():
            given.append(priority)
            source.feedback(ids, priority.to(device))
    return updates, learner, source, given


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", ["prioritized sequences", "no burn-in", "unrolls"])
def test_staged_updates_equal_eager_ones(name, device):
    updates, learner, source, given = arrivals_of(name, device, captured=True)
    assert isinstance(updates, CapturedStaged)
    eager, other, second, expected = arrivals_of(name, device, captured=False)
    assert isinstance(eager, EagerUpdates) and learner.updates == other.updates > 20
    same = torch.equal if device == "cpu" else torch.allclose
    assert all(same(a, b) for a, b in zip(weights(learner), weights(other), strict=True))
    assert len(given) == learner.updates
    assert all(same(a, b) for a, b in zip(given, expected, strict=True))
    if isinstance(source.plan.sampler, Prioritized):
        torch.testing.assert_close(source.sampler.tree.leaves, second.sampler.tree.leaves)


def test_a_refused_update_hands_out_no_priorities():
    source, learner = parts("no burn-in", "cpu")
    for chunk in chunks(30):
        source.add(chunk)
    store = Arrivals()
    updates = build_staged(store, learner, Streams(learner.device), capture="on")
    good, bad = source.sample(), source.sample()
    store.put(good)
    # Its priorities are finite: only the loss is not.
    store.put(bad._replace(weight=torch.full_like(bad.weight, torch.nan)))
    updates.start(values_of(learner))
    updates.finish()
    (only,) = store.take_priorities()
    assert torch.equal(only[0], good.ids)
    learner.flush()
    assert learner.skipped == 1 and learner.updates == 1 == int(learner.ctx.updates)


def test_a_failed_capture_still_hands_out_every_priority(monkeypatch):
    source, learner = parts("no burn-in", "cpu")
    for chunk in chunks(30):
        source.add(chunk)
    store, samples, calls = Arrivals(), [source.sample() for _ in range(3)], []
    updates = build_staged(store, learner, Streams(learner.device), capture="on")
    updates.must_capture = False  # as "auto" where there is a GPU
    for sample in samples:
        store.put(sample)
    loss = Recurrent.loss

    def fails_in_the_capture(*arguments):
        calls.append(1)
        if len(calls) == 2:
            raise RuntimeError("not permitted")
        return loss(*arguments)

    monkeypatch.setattr(Recurrent, "loss", fails_in_the_capture)
    updates.start(values_of(learner))
    updates.finish()
    assert updates.mode == "eager: RuntimeError: not permitted" and learner.updates == 3
    given = [ids for ids, _ in store.take_priorities()]
    assert len(given) == 3
    assert all(torch.equal(ids, one.ids) for ids, one in zip(given, samples, strict=True))


def test_what_cannot_be_captured_is_said():
    view, sampler, _ = PLANS["unrolls"]
    learner = Learner(Recurrent(view, sampler, minibatches=5), SPEC, seed=1)
    store = build_store(learner.plan, SPEC, ENVS, seed=1, horizon=10, on_device=True)
    with pytest.raises(LudusError, match="24 rows do not divide into 5"):
        build_updates(store, learner, Streams(learner.device), capture="on", overlap=False)
    with pytest.raises(LudusError, match="one update"):
        build_staged(Arrivals(), learner, Streams(learner.device), capture="on")
    host = build_store(learner.plan, SPEC, ENVS, seed=1, horizon=10, on_device=False)
    with pytest.raises(LudusError, match="draws on the host"):
        build_updates(host, learner, Streams(learner.device), capture="on", overlap=False)
