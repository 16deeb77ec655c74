"""Replay of unrolls: one column per unroll, drawn uniformly with replacement. (Rule 4.)"""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ludus.contract import Fifo, Plan, Prioritized, Uniform, Unroll
from ludus.errors import LudusError
from ludus.replay.store import build_store
from ludus.replay.unrolls.ring import FifoInserter
from ludus.run.replay_state import ReplayFiles
from ludus.types import Chunk, tree_leaves
from tests.replay.build import SPEC, rows_of
from tests.replay.recorder import Recorder, spec_of
from tests.skips import needs_gpu


def ring_of(length=2, *, capacity=20, batch=4, columns=2, spec=SPEC, sampler=None, **plan):
    made = Plan(Unroll(length), sampler or Uniform(), batch, length, capacity=capacity, **plan)
    return build_store(made, spec, columns, seed=1, horizon=100)


def feed(ring, count, start=0, width=2, length=2):
    """Chunk k of every column starts at observation 10 k and has its number as actor state."""
    for k in range(start, start + count):
        rows = rows_of(10 * k, [float(k)] * length, width=width)
        ring.add(Chunk(rows, sequence=k))


@pytest.mark.accept(42)
@pytest.mark.parametrize("chunks", [4, 37])
def test_unrolls_are_drawn_uniformly_with_replacement(chunks):
    """chi-square over the unrolls held: a part of the ring, and a ring gone round thrice."""
    ring = ring_of(2, capacity=50, batch=200)
    feed(ring, chunks)
    held = min(2 * chunks, 25)
    assert ring.size == held and ring.fill == held / 25
    drawn = [ring.sample() for _ in range(40)]
    ids = torch.cat([s.ids for s in drawn])
    newest = range(2 * chunks - held, 2 * chunks)  # the last ones that came, each in its column
    every = [n * 25 + n % 25 for n in newest]
    counts = torch.tensor([int((ids == i).sum()) for i in every]).double()
    assert counts.sum() == len(ids)
    want, dof = len(ids) / held, held - 1
    chi2 = float(((counts - want) ** 2 / want).sum())
    assert chi2 < dof + 4 * (2 * dof) ** 0.5
    # With replacement: even the first 8 of a draw, fewer than are held, repeat now and then.
    assert any(len(set(s.ids[:8].tolist())) < 8 for s in drawn)
    for s in drawn[:3]:  # an id is what came with it
        assert s.batch.reward[0].tolist() == [float(i // 25 // 2) for i in s.ids.tolist()]
        assert s.weight.tolist() == [1.0] * 200


def same_unroll(a, i, b, j):
    for name in ("action", "reward", "discount", "last", "first", "mask", "obs"):
        assert torch.equal(getattr(a, name)[:, i], getattr(b, name)[:, j]), name
    for name in ("prev_action", "prev_reward"):
        assert torch.equal(getattr(a, name)[:, i], getattr(b, name)[:, j]), name
    assert a.extras.keys() == b.extras.keys()
    assert all(torch.equal(a.extras[k][:, i], b.extras[k][:, j]) for k in a.extras)
    for x, y in zip(tree_leaves(a.state), tree_leaves(b.state), strict=True):
        assert torch.equal(x[i], y[j])


@settings(max_examples=40)
@given(
    seed=st.integers(0, 2**31),
    sources=st.sampled_from([1, 2]),
    length=st.integers(1, 6),
    capacity=st.integers(1, 60),
    stack=st.sampled_from([1, 2, 4]),
    end=st.sampled_from([0.0, 0.2, 0.8]),
)
def test_the_ring_holds_the_last_unrolls_of_the_queue(seed, sources, length, capacity, stack, end):
    """The queue hands out each unroll in order and is checked against the naive recorder; the ring
    must hold the newest of the same, stacks, state and extras included, and nothing else."""
    rng, columns, spec = np.random.default_rng(seed), 2 * sources, spec_of(stack)
    ring = ring_of(length, capacity=capacity, batch=32, columns=columns, spec=spec)
    plan = Plan(Unroll(length), Fifo(), 1, length)
    queue = build_store(plan, spec, columns, seed=1, horizon=100)
    recorder, truth = Recorder(seed, columns, sources, end), []
    for _ in range(25):
        lost, source = bool(rng.random() < 0.1), int(rng.integers(sources))
        chunk = recorder.chunk(int(rng.integers(1, 8)), source, lost)
        if lost:
            continue
        for store in (ring, queue):
            store.add(chunk)
        while queue.ready():  # before a break, which drops what waits
            truth.append(queue.sample().batch)
        if rng.random() < 0.05:
            recorder.restart()
            ring.break_streams()
            queue.break_streams()
        n = ring.capacity
        assert n == max(-(-capacity // length), columns) and ring.size == min(len(truth), n)
        if ring.size:
            sample = ring.sample()
            for j, i in enumerate(sample.ids.tolist()):
                serial = i // n
                assert max(0, len(truth) - n) <= serial < len(truth) and i % n == serial % n
                same_unroll(sample.batch, j, truth[serial], 0)
    assert ring.steps_inserted == queue.steps_inserted
    assert ring.rows == sum(int(t.mask.sum()) for t in truth[-ring.capacity :])


def with_state(k, width=2):
    """Actor state of two kinds of trees, and a vector extra."""
    h = torch.arange(width, dtype=torch.float32)[:, None] + 10 * k
    logits = torch.randn(2, width, 3, generator=torch.Generator().manual_seed(k))
    rows = rows_of(10 * k, [1.0, 1.0], width=width, extras={"logits": logits})
    return Chunk(rows._replace(state={"lstm": (h, -h), "age": h[:, 0]}), sequence=k)


def files_of(store):
    return ReplayFiles(store, "on", 0)


class Disk:
    """Segments as checkpoints keep them: by name, linked from the checkpoint before."""

    def __init__(self):
        self.arrays = {}

    def save(self, files):
        parts, state = files.pack(set(self.arrays))
        self.arrays = {p.name: self.arrays[p.name] if p.arrays is None else p.arrays for p in parts}
        self.state = json.loads(json.dumps(state))
        return [p.name for p in parts if p.arrays is not None and p.name.startswith("rows")]

    @property
    def names(self):
        return tuple(self.arrays)

    def load(self, name, limit):
        assert limit > 0
        return self.arrays[name]


@pytest.mark.accept(66)
def test_a_ring_restored_from_checkpoint_files_goes_on_like_the_original():
    """Three checkpoints share segments; the first one's die when all its unrolls are gone."""
    store = ring_of(capacity=20, replay_ratio=4.0)
    files, disk, sizes = files_of(store), Disk(), []
    at = 0
    for chunks in (3, 1, 2, 3):
        for k in range(at, at + chunks):
            store.add(with_state(k))
            store.sample()
        at += chunks
        store.break_streams()
        written = disk.save(files)
        sizes.append((len(written), len(disk.arrays)))
    assert sizes == [(1, 2), (1, 3), (1, 4), (1, 3)]
    other = ring_of(capacity=20, replay_ratio=4.0)
    files_of(other).restore(disk, disk.state)
    assert other.size == store.size == 10 and other.steps_inserted == store.steps_inserted == 36
    for k in range(at, at + 8):
        x, y = store.sample(), other.sample()
        assert torch.equal(x.ids, y.ids)
        assert x.batch.state["lstm"][1].tolist() == (-x.batch.state["lstm"][0]).tolist()
        for j in range(4):
            same_unroll(x.batch, j, y.batch, j)
        for s in (store, other):
            s.add(with_state(k)._replace(breaks=k == at))
        assert other.ready() == store.ready()
    tensors, numbers = store.state()
    again, more = other.state()
    assert more == numbers and all(torch.equal(v, again[k]) for k, v in tensors.items())


@pytest.mark.accept(66)
def test_without_saved_unrolls_the_ring_refills_before_learning_goes_on():
    store = ring_of(capacity=20, replay_ratio=100.0)
    feed(store, 3)
    store.sample()
    parts, state = ReplayFiles(store, "off", 0).pack(set())
    assert parts is None
    other = ring_of(capacity=20, replay_ratio=100.0)
    ReplayFiles(other, "off", 0).restore(None, json.loads(json.dumps(state)))
    assert other.steps_inserted == 12 and other.samples_drawn == store.samples_drawn
    assert torch.equal(other.rng.get_state(), store.rng.get_state())
    feed(other, 2)
    assert not other.ready() and other.steps_inserted == 12
    feed(other, 1, start=2)
    assert other.ready() and other.steps_inserted == 12 and other.size == 6


def test_pacing_follows_the_steps():
    """One update at warm-up; then an unroll of two steps pays for one of two steps."""
    ring = ring_of(capacity=100, batch=2, warmup=8)
    seen = []
    for k in range(5):
        feed(ring, 1, start=k)
        seen.append(0)
        while ring.ready():
            ring.sample()
            seen[-1] += 1
    assert seen == [0, 1, 1, 1, 1] and ring.samples_drawn == 16


def test_the_inserter_picks_the_column():
    """Ring order by default; another inserter may overwrite what it likes."""

    class Stubborn(FifoInserter):
        def pick(self, count, rng):
            assert isinstance(rng, torch.Generator)
            return super().pick(count, rng) if self.at < 4 else np.array([2])

    ring = ring_of(capacity=10, columns=1, batch=64)
    ring.inserter = Stubborn(5)
    feed(ring, 9, width=1)
    assert ring.serial.tolist() == [0, 1, 8, 3, -1] and ring.size == 4
    assert set(ring.sample().batch.reward[0].tolist()) == {0.0, 1.0, 8.0, 3.0}
    order = FifoInserter(3)
    rng = torch.Generator()
    assert [order.pick(2, rng).tolist() for _ in range(3)] == [[0, 1], [2, 0], [1, 2]]
    other = FifoInserter(3)
    other.load(order.state())
    assert other.pick(3, rng).tolist() == order.pick(3, rng).tolist()
    with pytest.raises(AssertionError, match="at once"):
        order.pick(4, rng)


def test_samples_do_not_change_when_the_ring_moves_on():
    ring = ring_of(capacity=4, batch=3)
    feed(ring, 2)
    batch = ring.sample().batch
    before = batch.reward.clone(), batch.obs.clone()
    feed(ring, 5, start=2)
    assert torch.equal(batch.reward, before[0]) and torch.equal(batch.obs, before[1])


def test_what_a_ring_of_unrolls_refuses():
    with pytest.raises(ValueError, match="saved replay"):
        ring_of(capacity=40).load(*ring_of(capacity=20).state())
    with pytest.raises(LudusError, match="Prioritized"):
        ring_of(sampler=Prioritized())
    with pytest.raises(AssertionError, match="in rows"):
        ring_of(capacity=0)


@needs_gpu
def test_a_ring_on_a_gpu_draws_what_one_on_the_host_draws():
    plan = Plan(Unroll(2), Uniform(), 4, 2, capacity=20)
    rings = [build_store(plan, SPEC, 2, seed=1, horizon=100, device=d) for d in ("cpu", "cuda")]
    for ring in rings:
        feed(ring, 7)
    for _ in range(5):
        a, b = (ring.sample() for ring in rings)
        assert b.batch.reward.is_cuda and torch.equal(a.ids, b.ids.cpu())
        assert torch.equal(a.weight, b.weight.cpu())
        assert torch.equal(a.batch.obs, b.batch.obs.cpu())
