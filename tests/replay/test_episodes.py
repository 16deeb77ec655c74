"""Whole episodes, the same number from every slot. (Rule 5 of the ring.)"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ludus.contract import Episode, Fifo, Plan
from ludus.replay.store import build_store
from ludus.types import ArraySpec, Chunk, Discrete, EnvSpec
from tests.replay.build import SPEC, rows_of
from tests.replay.recorder import Recorder, spec_of, stacked


def queue_of(view=None, *, columns=2, spec=SPEC, **plan):
    made = Plan(view or Episode(), Fifo(), **plan).for_envs(columns)
    return build_store(made, spec, columns, seed=1, horizon=100)


class Truth:
    """Per column the whole episodes in order, by the naive recorder: since the last barrier,
    whatever was not handed out yet."""

    def __init__(self, recorder, view):
        self.recorder, self.view = recorder, view
        self.done = [0] * len(recorder.columns)  # stretches behind us, per column

    def waiting(self):
        most = self.view.max_length or 10**9
        return [
            [
                s
                for s in c.stretches[k:]
                if s.first and (s.ended or len(s) >= most)  # cut after `most` rows: whole for us
            ]
            for c, k in zip(self.recorder.columns, self.done, strict=True)
        ]

    def take(self):
        taken = [w[: self.view.per_env] for w in self.waiting()]
        for k, mine in enumerate(taken):
            stretches = self.recorder.columns[k].stretches
            at = next(i for i, s in enumerate(stretches) if s is mine[-1])
            self.done[k] = at + 1
        return [s for mine in taken for s in mine]

    def barrier(self):
        self.recorder.restart()
        self.done = [len(c.stretches) for c in self.recorder.columns]


def check_episode(batch, b, s, most, k):
    n, longest = min(len(s), most or len(s)), batch.reward.shape[0]
    pad = longest - n

    def padded(values):
        return [float(v) for v in values[:n]] + [0.0] * pad

    assert batch.mask[:, b].tolist() == [True] * n + [False] * pad
    assert batch.last[:, b].tolist() == [False] * (n - 1) + [True] + [False] * pad
    assert batch.first[:, b].tolist() == [True] + [False] * longest
    frames = [stacked(s, j, k) for j in range(n + 1)]  # the observation after the end is kept
    assert batch.obs[: n + 1, b, ..., 0].reshape(n + 1, k).tolist() == frames
    assert not batch.obs[n + 1 :, b].any()
    assert batch.action[:, b].tolist() == padded(s.actions)
    assert batch.reward[:, b].tolist() == padded(s.rewards)
    assert batch.discount[:, b].tolist() == padded(s.discounts)
    assert batch.extras["noise"][:, b].tolist() == padded([3 * f for f in s.frames])
    assert batch.prev_action[:, b].tolist() == [0.0, *padded(s.actions)]
    assert batch.prev_reward[:, b].tolist() == [0.0, *padded(s.rewards)]


@settings(max_examples=60)
@given(
    seed=st.integers(0, 2**31),
    sources=st.sampled_from([1, 1, 2, 3]),
    width=st.integers(1, 3),
    per_env=st.integers(1, 3),
    max_length=st.sampled_from([None, None, 1, 4]),
    most=st.integers(1, 9),
    stack=st.sampled_from([1, 1, 2, 4]),
    end=st.sampled_from([0.1, 0.3, 0.8]),
)
def test_samples_equal_the_naive_recorder(
    seed, sources, width, per_env, max_length, most, stack, end
):
    """Random chunks of several sources, some lost, with barriers; the ring grows from 3 rows."""
    view, rng = Episode(per_env, max_length), np.random.default_rng(seed)
    recorder = Recorder(seed, sources * width, sources, end)
    store = queue_of(view, columns=sources * width, spec=spec_of(stack), chunk=most)
    truth, steps, drawn = Truth(recorder, view), 0, 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ludus.replay.episodes._START_ROWS", 3)
        for _ in range(60):
            lost, source = bool(rng.random() < 0.05), int(rng.integers(sources))
            chunk = recorder.chunk(int(rng.integers(1, most + 1)), source, lost)
            if not lost:
                store.add(chunk)
                steps += int(chunk.rows.mask.sum())
            if rng.random() < 0.04:
                truth.barrier()
                store.break_streams()
            if any(c.gap for c in recorder.columns):
                continue  # the store learns of a lost chunk with the next one
            counts = [len(w) for w in truth.waiting()]
            assert store.count.tolist() == counts and store.size == sum(counts)
            assert store.ready() == (min(counts) >= per_env)
            while store.ready() and rng.random() < 0.7:
                sample, want = store.sample(), truth.take()
                assert sample.ids.tolist() == list(range(drawn, drawn + len(want)))
                assert sample.weight.tolist() == [1.0] * len(want)
                lengths = [min(len(s), max_length or len(s)) for s in want]
                assert sample.batch.reward.shape == (max(lengths), len(want))
                for b, s in enumerate(want):
                    check_episode(sample.batch, b, s, max_length, stack)
                drawn += len(want)
    assert store.steps_inserted == steps


def play(store, *lengths, sequence=0):
    """Slot k plays episodes of lengths[k] rows over and over; every row pays its slot number."""
    total, width = 40, len(lengths)
    rows = rows_of(0, [0.0] * total, width=width)
    for k, n in enumerate(lengths):
        place = (torch.arange(total) + total * sequence) % (n + 1)
        rows.reward[:, k] = float(k)
        rows.first[:-1, k], rows.last[:, k] = place == 0, place == n - 1
        rows.mask[:, k] = place < n
    store.add(Chunk(rows, sequence=sequence))


def test_every_slot_gives_the_same_number_however_long_its_episodes():
    """The first two to finish would both be slot 0's."""
    store = queue_of()
    play(store, 1, 9)
    batch = store.sample().batch
    assert batch.mask.sum(0).tolist() == [1, 9] and batch.reward[0].tolist() == [0.0, 1.0]
    two = queue_of(Episode(2))
    play(two, 1, 9)
    batch = two.sample().batch
    assert batch.mask.sum(0).tolist() == [1, 1, 9, 9]
    assert two.samples_drawn == 20 and two.steps_inserted == 20 + 36


def test_surplus_waits_without_a_capacity_and_the_oldest_goes_with_one():
    """Slot 0 ends 20 episodes in every 40 rows, slot 1 one. A ring of 50 rows per slot grows to
    100 for the first of slot 1, which no other can stand for yet; then episodes that start before
    its oldest row, 301, go."""
    free, bound = queue_of(), queue_of(capacity=100)
    for k in range(10):
        for store in (free, bound):
            play(store, 1, 39, sequence=k)
    assert free.count.tolist() == [200, 10] and free.dropped == 0 and free.ring.length > 400
    assert bound.ring.length == 100 and bound.count.tolist() == [49, 2]
    assert bound.dropped == 151 + 8
    for store in (free, bound):
        assert store.sample().batch.mask.sum(0).tolist() == [1, 39]
    late = queue_of(capacity=100)  # slot 1 finishes nothing: slot 0 must keep one
    for k in range(10):
        play(late, 1, 1000, sequence=k)
    assert late.count[1] == 0 and late.count[0] >= 1 and late.ring.length >= 400


@pytest.mark.parametrize("over", [True, False])
def test_termination_and_truncation_keep_their_discount_and_final_observation(over):
    store = queue_of(columns=1)
    store.add(Chunk(rows_of(1, [1.0, 1.0], first=[0])))
    ends = {"over" if over else "last": [0]}
    store.add(Chunk(rows_of(3, [5.0, 0.0, 1.0], dummy=[1], first=[2], **ends), sequence=1))
    batch = store.sample().batch
    assert batch.obs[:, 0, 0].tolist() == [1, 2, 3, 4]
    assert batch.reward[:, 0].tolist() == [1, 1, 5]
    assert batch.discount[:, 0].tolist() == [1, 1, 0 if over else 1]
    assert batch.last[:, 0].tolist() == [False, False, True]
    assert not store.ready()


@pytest.mark.parametrize("how", ["gap", "breaks"])
def test_a_break_drops_the_running_episode_and_keeps_finished_ones(how):
    """The finished one ended with its chunk, so only its next observation has come."""
    store = queue_of(columns=1)
    store.add(Chunk(rows_of(1, [1.0, 1.0], first=[0], last=[1])))
    store.add(Chunk(rows_of(3, [0.0, 1.0], dummy=[0], first=[1]), sequence=1))
    sequence = 2 if how == "breaks" else 5
    rest = rows_of(50, [1.0, 1.0], last=[0], dummy=[1], first=[2])
    store.add(Chunk(rest, sequence=sequence, breaks=how == "breaks"))
    assert store.size == 1
    assert store.sample().batch.obs[:, 0, 0].tolist() == [1, 2, 3]
    store.add(Chunk(rows_of(52, [1.0], first=[0], last=[0]), sequence=sequence + 1))
    assert store.sample().batch.obs[:, 0, 0].tolist() == [52, 53]
    other = queue_of(columns=1)
    other.add(Chunk(rows_of(1, [1.0, 1.0], first=[0], last=[1])))
    other.add(Chunk(rows_of(70, [1.0, 1.0], first=[0]), sequence=1, breaks=True))
    assert other.sample().batch.obs[:, 0, 0].tolist() == [1, 2, 3]


def test_an_episode_at_the_longest_allowed_is_truncated_not_terminated():
    store = queue_of(Episode(max_length=3), columns=1)
    store.add(Chunk(rows_of(1, [1.0] * 5, first=[0], over=[4])))
    assert store.size == 1  # what follows the cut is not an episode
    batch = store.sample().batch
    assert batch.obs[:, 0, 0].tolist() == [1, 2, 3, 4] and batch.discount.tolist() == [[1.0]] * 3
    assert batch.last[:, 0].tolist() == [False, False, True]


@pytest.mark.accept(66)
def test_after_a_barrier_a_loaded_queue_goes_on_like_the_original():
    """A barrier drops finished episodes, so counters are all that a checkpoint needs."""
    recorder = Recorder(3, 4, 2, end=0.3)
    store, other = (queue_of(Episode(2), columns=4, spec=spec_of(2)) for _ in range(2))
    for k in range(30):
        store.add(recorder.chunk(3, k % 2))
        if store.ready() and k < 20:
            store.sample()
    assert store.size > 0
    recorder.restart()
    store.break_streams()
    assert store.size == 0 and store.dropped > 0 and not store.ready()
    other.load(*store.state())
    compared = 0
    for k in range(30):
        chunk = recorder.chunk(3, k % 2)._replace(breaks=k < 2)
        for s in (store, other):
            s.add(chunk)
        assert store.ready() == other.ready()
        if store.ready():
            x, y = store.sample(), other.sample()
            assert torch.equal(x.ids, y.ids) and torch.equal(x.batch.obs, y.batch.obs)
            assert torch.equal(x.batch.mask, y.batch.mask)
            compared += 1
    assert compared > 2 and other.state()[1] == store.state()[1]


def test_trees_masks_and_multidimensional_leaves():
    tree = {"image": ArraySpec((2, 2), "uint8", stack=2), "pair": (ArraySpec((1,)),)}
    spec = EnvSpec("tree", tree, Discrete(3), has_action_mask=True)
    store = queue_of(columns=1, spec=spec)
    frames = torch.arange(1, 5, dtype=torch.uint8).reshape(4, 1, 1, 1).expand(4, 1, 2, 2)
    masks = torch.zeros(4, 1, 3, dtype=torch.bool)
    masks[:, 0, 1] = True
    rows = rows_of(1, [1.0] * 3, first=[0], last=[2])
    obs = {"image": frames, "pair": (rows.obs,)}
    store.add(Chunk(rows._replace(obs=obs, action_mask=masks)))
    batch = store.sample().batch
    assert batch.obs["image"][:, 0, :, 0, 0].tolist() == [[0, 1], [1, 2], [2, 3], [3, 4]]
    assert batch.obs["pair"][0][:, 0, 0].tolist() == [1, 2, 3, 4]
    assert torch.equal(batch.action_mask, masks)


def test_a_source_may_not_change_its_width_and_batch_is_fixed():
    store = queue_of()
    store.add(Chunk(rows_of(0, [0.0], width=2)))
    with pytest.raises(ValueError, match="environments"):
        store.add(Chunk(rows_of(0, [0.0], width=1), sequence=1))
    with pytest.raises(AssertionError, match="per_env"):
        queue_of(Episode(2), batch=3)
    assert Plan(Episode(3), Fifo()).for_envs(4).batch == 12
