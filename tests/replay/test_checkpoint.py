"""Save and restore: a store put together from segments goes on bit for bit like the original."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ludus.contract import NStep, Plan, Prioritized, Sequence, Uniform
from ludus.replay import checkpoint as segments
from ludus.replay.store import build_store
from ludus.types import Traj
from tests.replay.build import fill, store_of
from tests.replay.recorder import Recorder, spec_of

VIEWS = [NStep(1), NStep(3), Sequence(3, 2, 1)]
EXTRAS = {"noise": ((), torch.float32)}


def build(view, sampler, columns, capacity, stack=2):
    extras = dict(EXTRAS)
    if isinstance(view, Sequence):
        extras["state"] = ((), torch.float32)
    plan = Plan(view, sampler, batch=6, chunk=5, capacity=capacity)
    return build_store(plan, spec_of(stack), columns, seed=7, horizon=500, extras_spec=extras)


def same(a, b):
    """Equal samples, and equal again after feedback."""
    for _ in range(3):
        x, y = a.sample(), b.sample()
        assert torch.equal(x.ids, y.ids) and torch.equal(x.weight, y.weight)
        for name in ("obs", "action", "reward", "discount"):
            assert torch.equal(getattr(x.batch, name), getattr(y.batch, name))
        if isinstance(x.batch, Traj):
            assert torch.equal(x.batch.state, y.batch.state)
            assert torch.equal(x.batch.mask, y.batch.mask)
            assert torch.equal(x.batch.last, y.batch.last)
        p = torch.rand(6, generator=torch.Generator().manual_seed(int(x.ids.sum())))
        a.feedback(x.ids, p)
        b.feedback(y.ids, p)


@pytest.mark.accept(66)
@settings(max_examples=40)
@given(
    seed=st.integers(0, 2**31),
    view=st.sampled_from(VIEWS),
    prioritized=st.booleans(),
    sources=st.sampled_from([1, 2]),
    capacity=st.integers(10, 80),
    barrier=st.booleans(),
)
def test_a_restored_store_goes_on_like_the_original(
    seed, view, prioritized, sources, capacity, barrier
):
    rng = np.random.default_rng(seed)
    sampler = Prioritized() if prioritized else Uniform()
    store = build(view, sampler, 2 * sources, capacity)
    recorder = Recorder(seed, 2 * sources, sources)

    def play(stores, chunks):
        for _ in range(chunks):
            lost, source = bool(rng.random() < 0.1), int(rng.integers(sources))
            chunk = recorder.chunk(int(rng.integers(1, 6)), source, lost)
            for s in stores:
                if not lost:
                    s.add(chunk)

    kept, since = [], None
    for _ in range(int(rng.integers(1, 6))):  # checkpoints
        play([store], int(rng.integers(1, 12)))
        if store.size:
            store.feedback(store.sample().ids, torch.rand(6))
        if barrier:
            recorder.restart()
            store.break_streams()
        kept = [s for s in kept if store.is_live(s.meta)]
        kept.append(store.new_rows_since(since))
        since = store.marker()
    tensors, numbers = store.state()
    other = build(view, sampler, 2 * sources, capacity)
    other.restore(kept)
    other.load(tensors, numbers)
    assert other.size == store.size and other.steps_inserted == store.steps_inserted
    if store.size:
        same(store, other)
    play([store, other], 15)
    assert np.array_equal(store.sampler.members.valid, other.sampler.members.valid)
    if store.size:
        same(store, other)


def test_segments_hold_only_what_is_new_and_die_with_their_rows():
    store = store_of(capacity=20, chunk=5)
    sequence = fill(store, 10, per=5)
    one = store.new_rows_since(None)
    since = store.marker()
    assert one.meta["rows"] == {"0": [0, 10]} and one.tensors["0.reward"].shape == (10, 1)
    sequence = fill(store, 5, start=10, sequence=sequence, per=5)
    two = store.new_rows_since(since)
    assert two.meta["rows"] == {"0": [10, 15]} and store.is_live(one.meta)
    assert two.tensors["0.obs"][:, 0, 0].tolist() == [10, 11, 12, 13, 14, 15]
    fill(store, 20, start=15, sequence=sequence, per=5)
    assert not store.is_live(one.meta) and not store.is_live(two.meta)
    last = store.new_rows_since(since)  # what the ring lost is not in it
    assert last.meta["rows"]["0"][0] > 10 and last.tensors["0.reward"].shape[0] < 25


def test_a_segment_does_not_change_when_the_ring_moves_on():
    store = store_of(capacity=10, chunk=2)
    sequence = fill(store, 6, per=2)
    taken = store.new_rows_since(None)
    copy = {k: v.clone() for k, v in taken.tensors.items()}
    fill(store, 20, start=50, sequence=sequence, per=2)
    assert all(torch.equal(v, copy[k]) for k, v in taken.tensors.items())


def test_another_layout_is_refused():
    store = store_of(capacity=20)
    fill(store, 5)
    with pytest.raises(ValueError, match="saved replay"):
        store_of(capacity=30).load(*store.state())


@pytest.mark.accept(66)
def test_resume_without_rows_keeps_counters_and_generator():
    store = store_of(capacity=20, batch=2, replay_ratio=8)
    fill(store, 10)
    store.sample()
    tensors, numbers = store.state()
    other = store_of(capacity=20, batch=2, replay_ratio=8)
    segments.forget_rows(other, tensors, numbers)
    other.ratio.missing = store.size
    assert other.steps_inserted == 10 and other.samples_drawn == 2 and other.size == 0
    fill(other, 9)
    assert not other.ready()
    fill(other, 1, start=9, sequence=50)
    assert other.ready() and other.steps_inserted == 10
    assert torch.equal(other.rng.get_state(), store.rng.get_state())
