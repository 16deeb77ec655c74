"""The queue of unrolls: order, once each, waiting, cutting, stacks across chunks. (Rule 4.)"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ludus.contract import Fifo, Plan, Unroll
from ludus.replay.store import build_store
from ludus.replay.unrolls.queue import UnrollQueue
from ludus.types import Chunk
from tests.contract.tiny import run, tiny
from tests.replay.build import SPEC, rows_of
from tests.replay.recorder import Recorder, spec_of


def queue_of(length, batch, *, capacity=0, chunk=None, spec=SPEC, columns=2):
    plan = Plan(Unroll(length), Fifo(), batch, chunk or length, capacity=capacity)
    return build_store(plan, spec, columns, seed=1, horizon=100)


@pytest.mark.accept(41)
def test_each_unroll_once_in_the_order_of_arrival():
    """Batches that cut through chunks keep the order of columns."""
    queue = queue_of(2, batch=3)
    seen = []
    for k in range(6):
        queue.add(Chunk(rows_of(10 * k, [1.0, 2.0], width=2), sequence=k))
        while queue.ready():
            sample = queue.sample()
            assert sample.batch.obs.shape == (3, 3, 1) and sample.weight.tolist() == [1.0] * 3
            seen += sample.batch.obs[0, :, 0].tolist()
    assert seen == [10.0 * k for k in range(6) for _ in range(2)]
    assert queue.size == 0 and queue.samples_drawn == 24 and queue.steps_inserted == 24
    assert not queue.ready()


@pytest.mark.accept(41)
def test_the_producer_waits_when_the_queue_is_full():
    """Capacity of one unroll, one unroll per batch: strictly one after the other."""
    queue = queue_of(2, batch=1, capacity=2, columns=1)
    for k in range(3):
        assert not queue.full
        queue.add(Chunk(rows_of(10 * k, [1.0, 2.0]), sequence=k))
        assert queue.full and queue.ready()
        with pytest.raises(BufferError, match="full"):
            queue.add(Chunk(rows_of(99, [1.0, 2.0]), sequence=k + 1))
        assert float(queue.sample().batch.obs[0, 0, 0]) == 10.0 * k


@settings(max_examples=30)
@given(seed=st.integers(0, 2**31), length=st.integers(1, 7), stack=st.sampled_from([1, 2, 4]))
def test_any_chunking_gives_the_rows_in_one_piece(seed, length, stack):
    """Chunks of random lengths, joined and cut, equal the whole stream; stacks cross chunks."""
    rng = np.random.default_rng(seed)
    spec = spec_of(stack)
    whole, parts = Recorder(seed, 2, end=0.2), Recorder(seed, 2, end=0.2)
    # One column at a time is drawn from the recorder's generator, so play in single rows.
    single = [whole.chunk(1) for _ in range(24)]
    queue, alone = queue_of(length, 2, spec=spec, chunk=7), queue_of(24, 2, spec=spec)
    rows = [parts.chunk(1).rows for _ in range(24)]
    for k, chunk in enumerate(single):
        alone.add(chunk._replace(sequence=k))
    truth = alone.sample().batch
    at = sequence = 0
    while at < 24:
        t = min(int(rng.integers(1, 8)), 24 - at)
        joined = rows[at]._replace(
            **{
                name: torch.cat([getattr(r, name) for r in rows[at : at + t]])
                for name in ("action", "reward", "raw_reward", "discount", "last", "mask")
            },
            obs=torch.cat([r.obs[:1] for r in rows[at : at + t]] + [rows[at + t - 1].obs[1:]]),
            first=torch.cat(
                [r.first[:1] for r in rows[at : at + t]] + [rows[at + t - 1].first[1:]]
            ),
            extras={},
        )
        queue.add(Chunk(joined, sequence=sequence))
        at, sequence = at + t, sequence + 1
    for k in range(24 // length):
        batch, lo, hi = queue.sample().batch, k * length, (k + 1) * length
        for name in ("action", "reward", "discount", "last", "mask"):
            assert torch.equal(getattr(batch, name), getattr(truth, name)[lo:hi])
        for name in ("obs", "first", "prev_action", "prev_reward"):
            assert torch.equal(getattr(batch, name), getattr(truth, name)[lo : hi + 1])
    assert not queue.ready()


@pytest.mark.accept(58)
def test_stacks_of_an_unroll_by_hand():
    """Zeros before an episode's first frame; the final observation still belongs to the old one."""
    queue = queue_of(4, 1, spec=spec_of(3), columns=1)

    def chunk(frames, sequence, **flags):
        rows = rows_of(0, [0.0] * 4, **flags)
        f = torch.tensor(frames, dtype=torch.float32)[:, None, None].expand(5, 1, 2)
        return Chunk(rows._replace(obs=f), sequence=sequence)

    queue.add(chunk([1, 2, 3, 4, 5], 0, first=[0]))
    queue.add(chunk([5, 6, 7, 8, 9], 1, last=[0], dummy=[1], first=[2]))
    first, second = (queue.sample().batch.obs[:, 0, :, 0].tolist() for _ in range(2))
    assert first == [[0, 0, 1], [0, 1, 2], [1, 2, 3], [2, 3, 4], [3, 4, 5]]
    assert second == [[3, 4, 5], [4, 5, 6], [0, 0, 7], [0, 7, 8], [7, 8, 9]]


@pytest.mark.parametrize("how", ["barrier", "gap", "breaks"])
def test_a_break_drops_what_is_incomplete(how):
    queue = queue_of(4, 1, spec=spec_of(2), columns=1)

    def chunk(frame, sequence, **more):
        f = torch.arange(frame, frame + 4.0)[:, None, None].expand(4, 1, 2)
        return Chunk(rows_of(0, [0.0] * 3)._replace(obs=f), sequence=sequence, **more)

    queue.add(chunk(1, 0))
    if how == "barrier":
        queue.break_streams()
    queue.add(chunk(11, 7 if how == "gap" else 1, breaks=how != "gap"))
    assert not queue.ready()
    queue.add(chunk(14, 8 if how == "gap" else 2))
    stacks = queue.sample().batch.obs[:, 0, :, 0].tolist()
    assert stacks == [[0, 11], [11, 12], [12, 13], [13, 14], [14, 15]]


@pytest.mark.accept(41)
def test_actor_state_travels_with_its_column():
    queue = queue_of(2, batch=3)
    for k in range(3):
        state = {"h": torch.tensor([[2.0 * k], [2.0 * k + 1]])}
        queue.add(Chunk(rows_of(0, [1.0, 1.0], width=2)._replace(state=state), sequence=k))
    assert queue.sample().batch.state["h"].flatten().tolist() == [0, 1, 2]
    assert queue.sample().batch.state["h"].flatten().tolist() == [3, 4, 5]


def test_state_is_counters_only():
    queue, other = queue_of(2, batch=2), queue_of(2, batch=2)
    queue.add(Chunk(rows_of(0, [1.0, 2.0], width=2)))
    queue.sample()
    tensors, numbers = queue.state()
    other.load(tensors, numbers)
    assert other.steps_inserted == 4 and other.samples_drawn == 4
    other.add(Chunk(rows_of(0, [1.0, 2.0], width=2), sequence=9))
    assert other.sample().ids.tolist() == [2, 3]


def test_steps_are_counted_where_chunks_and_unrolls_do_not_align():
    """A chunk as long as an unroll, after half of one: its mask is not the unroll's."""
    queue = queue_of(4, batch=1, chunk=2, columns=1)
    queue.add(Chunk(rows_of(0, [0.0] * 2, dummy=[0]), 0, 0))
    queue.add(Chunk(rows_of(2, [0.0] * 4, dummy=[2, 3]), 0, 1))
    assert queue.ready() and queue.sample().batch.mask.sum() == 3
    assert queue.samples_drawn == 3 and queue.steps_inserted == 3


@pytest.mark.accept(41)
@pytest.mark.parametrize(("queue", "most"), [(0, 6), (1, 2), (4, 4)])
def test_a_setting_bounds_the_queue_of_a_run(tmp_path, monkeypatch, queue, most):
    """Three actors bring two unrolls each at once. The learner takes what fills the queue before
    more is added, and every unroll is used once, in the order of arrival."""
    settings = ("actors=3", "env.num=2", "batch=1", "unroll=4", f"queue={queue}", "steps=200")
    waiting, added, taken = [], [], []
    add, sample = UnrollQueue.add, UnrollQueue.sample

    def watched_add(self, chunk):
        add(self, chunk)
        waiting.append(self.columns)
        added.extend(chunk.rows.obs[0].tolist())

    def watched_sample(self):
        got = sample(self)
        taken.extend(got.batch.obs[0].tolist())
        return got

    monkeypatch.setattr(UnrollQueue, "add", watched_add)
    monkeypatch.setattr(UnrollQueue, "sample", watched_sample)
    result = run(tiny("impala", "CartPole-v1", *settings), tmp_path)
    assert max(waiting) == most and taken == added and len(added) == result.updates > 40
