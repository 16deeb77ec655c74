"""Several feeds in one plan: what may be mixed, exact shares, pace, origins, priorities, saving."""

from __future__ import annotations

import json
from typing import ClassVar

import pytest
import torch

from ludus.contract import Feed, Fifo, NStep, Plan, Prioritized, Sequence, Uniform, Unroll
from ludus.errors import LudusError
from ludus.plan.feeds import Shares
from ludus.replay.mixed import MixedStore
from ludus.replay.storage.memory import estimate_bytes
from ludus.replay.store import build_store
from ludus.run.replay_state import ReplayFiles
from ludus.types import Chunk
from tests.replay.build import SPEC, rows_of

QUEUE = Feed("queue", Unroll(4), Fifo(), share=0.5)
STANDARD = Feed("standard", Unroll(4), Uniform(), capacity=80, share=0.5)


def mixed(*feeds, envs=2, **plan) -> MixedStore:
    plan = {"batch": 4, "chunk": 4} | plan
    made = Plan(feeds=feeds or (QUEUE, STANDARD), **plan)
    store = build_store(made, SPEC, envs, seed=1, horizon=1000)
    assert isinstance(store, MixedStore)
    return store


def add(store, count=1, *, start=0, steps=4, width=1, sources=2) -> int:
    """Chunks of every source; rewards tell rows and sources apart, version is the chunk's."""
    for i in range(start, start + count):
        for source in range(sources):
            rewards = [1000.0 * source + steps * i + t for t in range(steps)]
            store.add(Chunk(rows_of(0, rewards, width=width), source, i, version=10 * i))
    return start + count


@pytest.mark.parametrize(
    "shares", [(0.5, 0.5), (0.3, 0.7), (1 / 3, 1 / 3, 1 / 3), (0.05, 0.05, 0.9)]
)
@pytest.mark.parametrize("batch", [1, 2, 5, 32])
def test_shares_are_exact_over_many_batches_and_within_one_item_always(shares, batch):
    split, total = Shares(shares), [0] * len(shares)
    for i in range(1, 601):
        counts = split.take(batch)
        assert sum(counts) == batch and min(counts) >= 0
        total = [a + b for a, b in zip(total, counts, strict=True)]
        for got, share in zip(total, shares, strict=True):
            assert abs(got - share * batch * i) < 2
    assert total == [round(600 * batch * share) for share in shares]


def test_a_short_form_reads_as_one_feed():
    plan = Plan(NStep(3), Uniform(), 32, capacity=100)
    assert plan.feeds == (Feed("all", NStep(3), Uniform(), 100, 1.0),)
    assert plan.for_envs(2).feeds == plan.feeds and Plan(feeds=plan.feeds).view == NStep(3)
    both = Plan(feeds=(STANDARD, QUEUE), batch=4).for_envs(2)
    assert isinstance(both.sampler, Fifo), "the queue paces"
    assert [feed.name for feed in both.feeds] == ["standard", "queue"]


@pytest.mark.parametrize(
    ("feeds", "said"),
    [
        ((QUEUE, Feed("b", Unroll(5), Uniform(), 80, 0.5)), "different batches"),
        ((QUEUE, Feed("b", NStep(), Uniform(), 80, 0.5)), "different batches"),
        ((QUEUE, Feed("b", Unroll(4), Fifo(), share=0.5)), "queues"),
        ((QUEUE, Feed("b", Unroll(4), Uniform(), 80, 0.4)), "shares 0.5, 0.4"),
        ((QUEUE, Feed("queue", Unroll(4), Uniform(), 80, 0.5)), "named queue, queue"),
        ((QUEUE, Feed("b", Unroll(4), Prioritized(), 80, 0.5)), "Prioritized"),
        ((), "without data"),
    ],
)
def test_feeds_that_make_no_batch_are_refused(feeds, said):
    with pytest.raises(LudusError, match=said) as refused:
        Plan(feeds=feeds)
    assert refused.value.code == "E104"


def test_a_view_together_with_feeds_is_refused():
    with pytest.raises(LudusError, match="view= and feeds="):
        Plan(Unroll(8), feeds=(QUEUE, STANDARD))


@pytest.mark.parametrize("batch", [4, 5])
def test_half_of_the_items_come_from_the_queue_each_once_and_half_from_replay(batch):
    store, number = mixed(batch=batch), 0
    feeds, fresh, old = torch.zeros(2, dtype=torch.int64), [], []
    for _ in range(200):
        number = add(store, start=number)
        while store.ready():
            batch_ = store.sample().batch
            assert batch_.reward.shape == (4, batch) and batch_.obs.shape == (5, batch, 1)
            feeds += torch.bincount(batch_.feed, minlength=2)
            fresh += batch_.reward[0, batch_.feed == 0].tolist()
            old += batch_.reward[0, batch_.feed == 1].tolist()
    assert abs(int(feeds[0] - feeds[1])) <= 1 and int(feeds.sum()) > 700
    assert len(set(fresh)) == len(fresh) >= 2 * 200 - batch, "the queue paces, each item once"
    assert len(set(old)) < len(old), "the replay draws with replacement"


def test_every_item_says_where_it_comes_from():
    store = mixed(envs=4, batch=8)
    add(store, 6, width=2)
    while store.ready():
        batch = store.sample().batch
        # Rewards are 1000 * source + 4 * chunk + row, the same in both environments of a source.
        source, chunk = batch.reward[0] // 1000, batch.reward[0] % 1000 // 4
        assert torch.equal(batch.env // 2, source.long()) and set(batch.env.tolist()) <= {
            0,
            1,
            2,
            3,
        }
        assert torch.equal(batch.version, 10 * chunk.long())
        assert batch.feed.tolist() == [0] * 4 + [1] * 4
        assert batch.feed.dtype == batch.env.dtype == batch.version.dtype == torch.int64


def test_an_unroll_of_several_chunks_has_the_version_of_its_first_row():
    store = mixed()
    add(store, 5, steps=3)
    seen = store.sample().batch
    assert seen.version[:2].tolist() == [0, 0]
    assert store.sample().batch.version[:2].tolist() == [10, 10], "row 4 is the second of chunk 1"


def test_without_a_queue_the_replay_ratio_paces():
    a, b = Feed("a", NStep(), Uniform(), 50, 0.25), Feed("b", NStep(), Uniform(), 100, 0.75)
    store, number = mixed(a, b, batch=8, replay_ratio=2.0, warmup=16), 0
    counts = torch.zeros(2, dtype=torch.int64)
    for _ in range(50):
        number = add(store, start=number)
        while store.ready():
            counts += torch.bincount(store.sample().batch.feed, minlength=2)
    due = 2.0 * (store.steps_inserted - 16)
    assert store.samples_drawn == int(counts.sum()) and due < store.samples_drawn <= due + 8
    assert counts[1] == 3 * counts[0]


def test_priorities_reach_the_feed_that_gave_the_item():
    kept = Feed("kept", NStep(), Prioritized(alpha=1.0, epsilon=0.0), 100, 0.5)
    other = Feed("other", NStep(), Prioritized(alpha=1.0, epsilon=0.0), 60, 0.5)
    store = mixed(kept, other, batch=8)
    add(store, 4)
    sample = store.sample()
    store.feedback(sample.ids, 2.0 + sample.batch.feed.float())
    for number, part in enumerate(store.parts):
        leaves = part.store.sampler.state()[0]["leaves"]
        drawn = sample.ids[sample.batch.feed == number] // 2 % part.store.ring.layout.slots
        assert set(leaves[drawn].tolist()) == {2.0 + number}
        assert 5.0 - number not in leaves.tolist()


class Ranked(Uniform):
    """A sampler of the test."""

    needs_features: ClassVar[bool] = True


def test_features_reach_the_feed_whose_sampler_ranks_by_them_and_no_other():
    feeds = [
        Feed("plain", NStep(), Uniform(), 100, 0.5),
        Feed("ranked", NStep(), Ranked(), 60, 0.5),
    ]
    store, seen = mixed(*feeds, batch=8), {0: [], 1: []}
    add(store, 4)
    for part in store.parts:
        part.store.rank = lambda *given, number=part.number: seen[number].append(given)
    sample = store.sample()
    store.rank(sample.ids, sample.batch.reward[:, None])
    mine = sample.batch.feed == 1
    ((ids, features),) = seen[1]
    assert not seen[0] and torch.equal(ids, sample.ids[mine] // 2)
    assert torch.equal(features[:, 0], sample.batch.reward[mine])


def test_feeds_draw_independently():
    a, b = (Feed(name, NStep(), Uniform(), 100, 0.5) for name in "ab")
    store = mixed(a, b, batch=16)
    add(store, 10)
    reward = store.sample().batch.reward
    assert not torch.equal(reward[:8], reward[8:])


@pytest.mark.parametrize("kind", ["queue", "transitions"])
def test_a_saved_mixed_store_goes_on_as_the_other(kind):
    feeds = (QUEUE, STANDARD)
    if kind == "transitions":
        feeds = (
            Feed("a", NStep(3), Prioritized(), 40, 0.3), Feed("b", NStep(3), Uniform(), 90, 0.7),
        )  # fmt: skip
    one, two = (mixed(*feeds, batch=5) for _ in range(2))
    number, segments, since = 0, [], None
    for _ in range(3):
        number = add(one, 4, start=number)
        while one.ready():
            sample = one.sample()
            one.feedback(sample.ids, sample.batch.reward.reshape(-1, 5)[0])
        one.break_streams()
        segments.append(one.new_rows_since(since))
        since = one.marker()
    two.restore(segments)
    two.load(*one.state())
    assert one.is_live(segments[-1].meta) and two.samples_drawn == one.samples_drawn > 0
    for store in (one, two):
        store.reseed(1)
    add(one, 4, start=number), add(two, 4, start=number)
    while one.ready():
        a, b = one.sample(), two.sample()
        assert torch.equal(a.ids, b.ids) and torch.equal(a.weight, b.weight)
        for name in ("obs", "reward", "feed", "env", "version"):
            assert torch.equal(getattr(a.batch, name), getattr(b.batch, name))
    assert not two.ready()


class Files:
    """The files of a checkpoint, in memory."""

    def __init__(self, parts):
        self.parts = {part.name: part.arrays for part in parts}
        self.names = list(self.parts)

    def load(self, name, limit):
        return self.parts[name]


@pytest.mark.parametrize("save", ["on", "off"])
def test_a_checkpoint_has_the_rows_of_every_replay_or_their_number(save):
    one, two = mixed(batch=5), mixed(batch=5)
    number = add(one, 6)
    while one.ready():
        one.sample()
    one.break_streams()
    parts, state = ReplayFiles(one, save, 1000).pack(set())
    state = json.loads(json.dumps(state))
    ReplayFiles(two, save, 1000).restore(None if parts is None else Files(parts), state)
    assert two.shares.carry == one.shares.carry and two.samples_drawn == one.samples_drawn > 0
    assert two.size == (one.size if save == "on" else 0) and one.size == 12
    assert two.ratio.missing == (0 if save == "on" else 48)
    if save == "on":
        for store in (one, two):
            add(store, 2, start=number)
        a, b = one.sample(), two.sample()
        assert torch.equal(a.ids, b.ids) and torch.equal(a.batch.version, b.batch.version)


def test_a_refill_fills_the_replay_and_not_the_queue():
    one, two = mixed(), mixed()
    number = add(one, 6)
    while one.ready():
        one.sample()
    one.break_streams()
    tensors, numbers = one.state()
    two.forget({"rng": tensors["rng"]}, numbers)
    two.ratio.missing = one.rows
    assert one.rows == 48
    add(two, 6, start=number)
    assert two.steps_inserted == one.steps_inserted and not two.ready() and two.queue.size == 0
    add(two, 2, start=number + 6)
    assert two.ready() and two.rows == 64


def test_a_queue_drops_unrolls_of_the_warm_up():
    """So it never fills up, and actors never wait, before learning may begin."""
    short = Feed("queue", Unroll(4), Fifo(), capacity=16, share=0.5)
    store = mixed(short, STANDARD, warmup=1000)
    for start in range(4):
        add(store, 1, start=start)
        assert not store.full and not store.ready()
    assert store.queue.size == 0 and store.size > 0


def test_a_small_queue_among_three_feeds_holds_what_a_batch_may_need():
    """Remainders may ask for one item more than the share rounded up. A queue that is full before
    it has them would never be sampled from again."""
    shares = (11 / 48, 20 / 48, 17 / 48)
    standard = [Feed(n, Unroll(4), Uniform(), 80, s) for n, s in zip("ab", shares, strict=False)]
    queue = Feed("queue", Unroll(4), Fifo(), capacity=4, share=shares[2])
    store, counts = mixed(*standard, queue, envs=1, batch=25), []
    for i in range(400):
        add(store, 1, start=i, sources=1)
        while store.ready():
            counts.append(int((store.sample().batch.feed == 2).sum()))
        assert not store.full, f"{store.queue.size} unrolls wait, and more are needed"
    assert max(counts) == 10, "25 * 17/48 is 8.9"


def test_sequences_of_two_feeds_are_joined():
    feeds = [Feed(name, Sequence(4, 2), Uniform(), 60, 0.5) for name in "ab"]
    store = mixed(*feeds, batch=6)
    add(store, 8)
    batch = store.sample().batch
    assert batch.mask.shape == (4, 6) and batch.feed.tolist() == [0] * 3 + [1] * 3
    assert torch.equal(batch.env, batch.reward[0].long() // 1000)


def test_the_memory_of_feeds_adds_up():
    plan = Plan(feeds=(QUEUE, STANDARD), batch=4, chunk=4)
    alone = [estimate_bytes(plan.of_feed(feed), SPEC, 2) for feed in plan.feeds]
    assert min(alone) > 0 and estimate_bytes(plan, SPEC, 2) == sum(alone)
