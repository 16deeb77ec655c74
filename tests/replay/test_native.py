"""C gives the same bits as numpy, whatever it is asked; without a compiler nothing is missing."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import threading
import weakref

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ludus.contract import NStep, Plan, Prioritized, Sequence
from ludus.replay.native import bindings as native
from ludus.replay.native.bindings import Columns, Scratch, Stacks
from ludus.replay.samplers.host_tree import HostTree
from ludus.replay.samplers.uniform import Members
from ludus.replay.storage.ring import Ids, Ring, layout_of
from ludus.replay.store import build_store
from ludus.types import ArraySpec, Discrete, EnvSpec
from tests.replay.test_column_major import SPEC, Games
from tests.replay.test_sumtree import changes
from tests.skips import needs_compiler

pytestmark = needs_compiler


@pytest.fixture(scope="module", autouse=True)
def always_c():
    """C is called for the smallest batch, too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "FEW", 0)
        yield


@pytest.fixture
def eager(monkeypatch):
    """Helpers are called for the smallest copy."""
    monkeypatch.setattr(native, "ALONE", 0)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)


def without(make):
    """What `make` builds where nothing can be compiled."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "library", lambda: None)
        return make()


def random_ring(rng, side=3, k=4, columns=3, length=11, dtype="uint8"):
    spec = EnvSpec("fake", ArraySpec((side, side), dtype, stack=k, layout="hw"), Discrete(2))
    capacity = columns * (length - k)
    ring = Ring(layout_of(Plan(NStep(1), Prioritized(), 4, capacity=capacity), spec, columns))
    for name, array in ring.flat.items():
        array[:] = (
            rng.random(array.shape) < 0.2
            if name == "begin"
            else rng.integers(0, 2 if array.dtype == bool else 250, array.shape)
        )
    return ring


@settings(max_examples=60)
@given(
    seed=st.integers(0, 2**31), side=st.sampled_from([1, 3, 32, 33]), k=st.integers(1, 5),
    columns=st.integers(1, 4), length=st.integers(8, 14), threads=st.integers(1, 4),
    dtype=st.sampled_from(["uint8", "float32"]),
)  # fmt: skip
def test_stacks_are_those_of_numpy(seed, side, k, columns, length, threads, dtype):
    """Small and large frames lie differently; every slot is read, so stacks begin at every place
    of the ring and of an episode."""
    rng = np.random.default_rng(seed)
    ring = random_ring(rng, side, k, columns, length, dtype)
    slots = rng.permutation(np.tile(np.arange(ring.layout.slots), 3))[: 2 * ring.layout.slots]
    slots = slots.reshape(2, -1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "ALONE", 0)
        patch.setattr(torch, "get_num_threads", lambda: threads)
        got, opened = Stacks(ring, "obs", k, Scratch()).begin(slots).finish()
        plain = without(lambda: Stacks(ring, "obs", k, Scratch()))
        want, expected = plain.begin(slots).finish()
    assert got.shape == want.shape and got.dtype == want.dtype
    assert np.array_equal(got, want) and opened == expected


def test_a_newest_frame_that_opens_its_episode_is_reported():
    ring = random_ring(np.random.default_rng(0))
    for begun in (False, True):
        ring.arrays["begin"][:] = False
        ring.arrays["begin"][5, 1] = begun
        for make in (lambda f: f(), without):
            read = make(lambda: Stacks(ring, "obs", 4, Scratch()))
            assert read.begin(np.array([5 * 3 + 1, 7 * 3 + 1])).finish()[1] is begun
            assert read.begin(np.array([6 * 3 + 1, 5 * 3])).finish()[1] is False


@pytest.mark.parametrize("slot", [-1, 10**6])
def test_a_slot_that_does_not_exist_is_refused(slot, eager):
    ring = random_ring(np.random.default_rng(0), side=32)
    with pytest.raises(IndexError, match="slot"):
        Stacks(ring, "obs", 4, Scratch()).begin(np.array([1, slot, 2])).finish()


def test_columns_are_those_of_numpy():
    rng = np.random.default_rng(1)
    extras = {"logits": ((5,), torch.float32), "level": ((), torch.int16)}
    plan = Plan(NStep(1), Prioritized(), 4, capacity=60)
    ring = Ring(layout_of(plan, EnvSpec("fake", ArraySpec((4,)), Discrete(2)), 3, extras))
    names = ["action", "reward", "stop", "extras.logits", "extras.level", "obs"]
    for name in names:
        ring.flat[name][:] = rng.integers(0, 2, ring.flat[name].shape)
    slots = rng.integers(0, ring.layout.slots, 40)
    want = without(lambda: Columns(ring, names)).read(slots)
    for got, plain in zip(Columns(ring, names).read(slots), want, strict=True):
        assert got.dtype == plain.dtype and np.array_equal(got, plain)


@settings(max_examples=60)
@given(
    capacity=st.integers(1, 3000),
    width=st.one_of(st.integers(2, 33), st.just(32)),
    top=st.integers(1, 40),
    seed=st.integers(0, 2**31),
)
def test_the_tree_is_that_of_numpy_to_the_bit(capacity, width, top, seed):
    rng = np.random.default_rng(seed)
    c, plain = HostTree(capacity, width, top), without(lambda: HostTree(capacity, width, top))
    assert plain._library is None
    for where, values in changes(capacity, rng):
        values = values * 10.0 ** rng.integers(-9, 9, len(values))
        if not isinstance(where, slice):  # the last of two values for one leaf stays
            where, values = np.tile(where, 2), np.concatenate((values[::-1], values))
        for tree in (c, plain):
            tree.set(where, values)
        assert torch.equal(c.leaves, plain.leaves) and torch.equal(c.total, plain.total)
        assert all(map(np.array_equal, c._sums, plain._sums))
        strata = (rng.random(50) + np.arange(50)) / 50
        for u in (rng.random(60), strata, np.array([0.0, 1 - 2**-53])):
            pairs = zip(c.find(u), plain.find(u), strict=True)
            assert all(np.array_equal(got, want) for got, want in pairs)
    c.rebuild()
    assert torch.equal(c.total, plain.total)


@settings(max_examples=40)
@given(seed=st.integers(0, 2**31), columns=st.integers(1, 4), same=st.booleans())
def test_ids_are_those_of_numpy(seed, columns, same):
    rng = np.random.default_rng(seed)
    ring = random_ring(rng, columns=columns)
    ring.head[:] = rng.integers(0, 40, 1 if same else columns)
    members = Members(ring.layout.slots)
    members.valid[:] = rng.random(ring.layout.slots) < 0.8
    slots = np.arange(ring.layout.slots)
    c, plain = Ids(ring, members.valid), without(lambda: Ids(ring, members.valid))
    assert np.array_equal(c.of(slots), plain.of(slots))
    ids = c.of(slots) - rng.integers(0, 2, len(slots)) * ring.layout.slots
    members.valid[:3] = True
    for given_ids in (ids, c.of(slots)[:3]):
        got, want = (x.current(torch.from_numpy(given_ids)) for x in (c, plain))
        assert np.array_equal(got[0], want[0]) and (got[1] is None) == (want[1] is None)
        assert got[1] is None or np.array_equal(got[1], want[1])


@pytest.mark.parametrize("view", [NStep(1), NStep(3), Sequence(5, 2, 1)], ids=str)
def test_a_store_gives_the_same_samples(view, eager):
    """Adds, draws and feedback round and round the ring, and a checkpoint of one for the other."""
    plan = Plan(view, Prioritized(), batch=16, chunk=3, capacity=90)

    def make():
        return build_store(plan, SPEC, 3, seed=1, horizon=100)

    stores, games = [make(), without(make)], [Games(3, 5), Games(3, 5)]
    rng = torch.Generator().manual_seed(0)
    for number in range(120):
        for store, game in zip(stores, games, strict=True):
            store.add(game.chunk(1 + number % 3, number))
        if not all(store.size for store in stores):
            continue
        if number == 60:
            state, rows = stores[1].state(), stores[1].new_rows_since(None)
            stores[0] = make()
            stores[0].restore([rows])
            stores[0].load(*state)
        one, two = (store.sample() for store in stores)
        pairs = zip(_leaves(one), _leaves(two), strict=True)
        assert all(torch.equal(a, b) for a, b in pairs)
        priority = torch.rand(16, generator=rng, dtype=torch.float64)
        for store, sample in zip(stores, (one, two), strict=True):
            store.feedback(sample.ids, priority)


def _leaves(value):
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = [value[k] for k in sorted(value)]
    return [t for v in value for t in _leaves(v)] if isinstance(value, tuple | list) else []


def test_several_threads_may_read_at_once(eager):
    ring = random_ring(np.random.default_rng(0), side=32)
    want = without(lambda: Stacks(ring, "obs", 4, Scratch()))
    failed = []

    def work(seed):
        rng, mine = np.random.default_rng(seed), Stacks(ring, "obs", 4, Scratch())
        for _ in range(50):
            slots = rng.integers(0, ring.layout.slots, 200)
            if not np.array_equal(mine.begin(slots).finish()[0], want.begin(slots).finish()[0]):
                failed.append(seed)

    workers = [threading.Thread(target=work, args=(s,)) for s in range(4)]
    for w in workers:
        w.start()
    for w in workers:
        w.join()
    assert not failed


def test_what_was_begun_and_given_up_is_ended(eager):
    """An interrupt between the two must not leave helpers writing to freed memory."""
    ring = random_ring(np.random.default_rng(0), side=32)
    read, slots = Stacks(ring, "obs", 4, Scratch()), np.arange(33)
    for _ in range(200):
        begun = read.begin(slots)
        del begun
    want = without(lambda: Stacks(ring, "obs", 4, Scratch())).begin(slots).finish()[0]
    assert np.array_equal(read.begin(slots).finish()[0], want)


def _in_a_fork(answers):
    ring = random_ring(np.random.default_rng(0), side=32)
    got = Stacks(ring, "obs", 1, Scratch()).begin(np.arange(30)).finish()[0]
    answers.put(bool(np.array_equal(got, ring.rows("obs", np.arange(30)))))


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="no fork here")
def test_a_forked_process_has_helpers_of_its_own(eager):
    ring = random_ring(np.random.default_rng(0), side=32)
    begun = Stacks(ring, "obs", 4, Scratch()).begin(np.arange(30))  # not ended in the child
    context = multiprocessing.get_context("fork")
    answers = context.Queue()
    child = context.Process(target=_in_a_fork, args=(answers,))
    child.start()
    assert answers.get(timeout=30)
    child.join(30)
    assert child.exitcode == 0
    begun.finish()


def test_helpers_leave_signals_to_the_interpreter(eager):
    """A signal must interrupt the main thread's waiting."""
    ring = random_ring(np.random.default_rng(0), side=32)
    Stacks(ring, "obs", 4, Scratch()).begin(np.arange(30)).finish()
    blocked = 0
    for task in os.listdir("/proc/self/task") if os.path.isdir("/proc/self/task") else []:
        with open(f"/proc/self/task/{task}/status") as file:
            masks = [line.split()[1] for line in file if line.startswith("SigBlk")]
        blocked += bool(int(masks[0], 16) >> (signal.SIGINT - 1) & 1)
    assert blocked >= 2 or not os.path.isdir("/proc/self/task")


@pytest.mark.parametrize("shape", [(8,), (1,), (16, 1), (16, 2), ()])
@pytest.mark.parametrize("compiled", [True, False])
def test_priorities_of_another_shape_are_refused(shape, compiled):
    """C would read what lies behind them."""
    plan = Plan(NStep(1), Prioritized(), batch=16, chunk=1, capacity=100)
    games = Games(columns=2, seed=1)

    def make():
        return build_store(plan, SPEC, 2, seed=1, horizon=100)

    store = make() if compiled else without(make)
    for number in range(40):
        store.add(games.chunk(1, number))
    sample = store.sample()
    before = store.sampler.tree.values.copy()
    with pytest.raises(ValueError, match="priorities of shape"):
        store.feedback(sample.ids, torch.ones(shape))
    assert np.array_equal(store.sampler.tree.values, before)
    tree = HostTree(32) if compiled else without(lambda: HostTree(32))
    with pytest.raises(ValueError, match="values"):
        tree.set(np.arange(16), np.ones(shape))


def test_what_was_read_is_given_out_once():
    ring = random_ring(np.random.default_rng(1), side=33)
    reading = Stacks(ring, "obs", 4, Scratch()).begin(np.arange(3))
    reading.finish()
    with pytest.raises(RuntimeError, match="called twice"):
        reading.finish()


def test_a_reading_keeps_its_ring():
    ring = random_ring(np.random.default_rng(1), side=33)
    gone = weakref.ref(ring)
    reading = Stacks(ring, "obs", 4, Scratch()).begin(np.arange(3))
    del ring
    assert gone() is not None
    reading.finish()
    del reading
    gc.collect()
    assert gone() is None


def test_slots_of_any_integer_type_are_read():
    ring = random_ring(np.random.default_rng(1))
    slots = np.array([3, 1, 2], np.int32)
    read, plain = Columns(ring, ["reward"]), without(lambda: Columns(ring, ["reward"]))
    assert np.array_equal(read.read(slots)[0], plain.read(slots)[0])
    ids = Ids(ring, np.zeros(ring.layout.slots, bool))
    assert np.array_equal(ids.of(slots), ids.of(slots.astype(np.int64)))
