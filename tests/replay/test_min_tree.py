"""The least priority without a scan: equal to a scan to the bit, whatever happened before."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ludus.contract import NStep, Prioritized, Sequence, Uniform
from ludus.replay.samplers.device import SumTree, tree_bytes
from ludus.replay.samplers.host_tree import HostTree
from ludus.schedules import ramp
from ludus.types import Chunk
from tests.replay.build import KINDS, fill, rows_of, store_of
from tests.replay.test_native import without
from tests.replay.test_sumtree import changes


def scan(leaves) -> float:
    """The least positive leaf, by reading all of them."""
    return float(torch.where(leaves > 0, leaves, torch.inf).min())


@settings(max_examples=40)
@given(
    capacity=st.integers(1, 3000),
    width=st.integers(2, 33),
    top=st.integers(1, 40),
    seed=st.integers(0, 2**31),
)
def test_the_least_leaf_is_that_of_a_scan(capacity, width, top, seed):
    rng = np.random.default_rng(seed)
    trees = [
        HostTree(capacity, width, top, least=True),
        without(lambda: HostTree(capacity, width, top, least=True)),
    ]
    plain = SumTree(capacity, "cpu", width, top, least=True)
    assert [t.mins.least for t in trees] == [np.inf] * 2 and float(plain.mins.least) == np.inf
    for where, values in changes(capacity, rng):
        for tree in trees:
            tree.set(where, values)
        at = where if isinstance(where, slice) else torch.from_numpy(where)
        plain.set(at, torch.from_numpy(values))
        found = {t.mins.least for t in trees} | {float(plain.mins.least)}
        assert found == {scan(plain.leaves)}
    for tree in (*trees, plain):  # all leave
        tree.set(slice(0, capacity), 0.0)
        assert float(tree.mins.least) == np.inf


def test_memory_is_what_was_estimated():
    for capacity in (10, 5000, 2_000_000):
        assert SumTree(capacity, least=True).nbytes == tree_bytes(capacity, least=True)


def check_weights(store):
    """The weights of a sample against a scan, bit for bit."""
    sample = store.sample()
    tree, beta = store.sampler.tree, store.beta
    slots = sample.ids % store.ring.layout.slots
    value = tree.leaves[slots]
    least = {
        "buffer": scan(tree.leaves),
        "batch": float(value.min()),
        "none": float(tree.total) / store.size,
    }[store.plan.sampler.normalize]
    if store.plan.sampler.normalize == "none":
        torch.testing.assert_close(sample.weight, ((value / least) ** -beta).float())
    else:
        assert torch.equal(sample.weight, ((value / least) ** -beta).float())
    return sample


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("normalize", ["batch", "buffer", "none"])
@pytest.mark.parametrize("view", [NStep(1), NStep(3), Sequence(4, 2, 1)], ids=str)
def test_weights_equal_those_of_a_scan(kind, normalize, view):
    """Items come, get priorities, leave when the ring wraps, and are resumed."""
    sampler = Prioritized(alpha=0.7, beta=ramp(0.5), normalize=normalize, epsilon=1e-3)

    def build():
        return store_of(view, sampler, capacity=40, batch=6, columns=2, kind=kind)

    store, rng, sequence = build(), np.random.default_rng(1), 0
    for k in range(40):
        over = [3] if k % 4 == 1 else []
        rows = rows_of(5 * k, rng.random(5), over=over, dummy=[i + 1 for i in over], width=2)
        store.add(Chunk(rows, 0, sequence))
        sequence += 1
        if not store.size:
            continue
        sample = check_weights(store)
        scale = 10.0 ** rng.integers(-3, 3)
        store.feedback(sample.ids, torch.from_numpy(rng.random(6) * scale).float())
        if k == 20:
            again = build()
            again.restore([store.new_rows_since(None)])
            again.load(*store.state())
            check_weights(again)
            store = again
    assert store.size > 5


@pytest.mark.parametrize("period", [1, 7, 40])
def test_uniform_starts_of_sequences_are_drawn_as_from_a_list(period):
    """A tree of ones finds the k-th drawable slot; the draws are those of a list of all."""
    one, two = (
        store_of(Sequence(4, period), Uniform(), capacity=400, batch=16, columns=1)
        for _ in range(2)
    )
    two.sampler.ranks = None
    sequence = 0
    for start in range(0, 900, 60):
        for store in (one, two):
            fill(store, 60, start=start, sequence=sequence)
        sequence += 8
        for _ in range(5):
            assert torch.equal(one.sample().ids, two.sample().ids)
    three = store_of(Sequence(4, period), Uniform(), capacity=400, batch=16, columns=1)
    three.restore([one.new_rows_since(None)])
    three.load(*one.state())
    assert torch.equal(three.sample().ids, two.sample().ids)
