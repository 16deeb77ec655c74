"""The sum tree against brute force. (Rule 6 of the ring.)"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ludus.replay.samplers.device import SumTree, tree_bytes
from ludus.replay.samplers.host_tree import HostTree


@settings(max_examples=40)
@given(
    capacity=st.integers(1, 300),
    width=st.integers(2, 9),
    top=st.integers(1, 40),
    seed=st.integers(0, 2**31),
)
def test_sums_and_draws_equal_brute_force(capacity, width, top, seed):
    rng, tree, truth = np.random.default_rng(seed), SumTree(capacity, "cpu", width, top), None
    truth = np.zeros(capacity)
    for _ in range(30):
        if rng.random() < 0.5:
            lo = int(rng.integers(capacity))
            hi = int(rng.integers(lo + 1, capacity + 1))
            values = rng.random(hi - lo) * (rng.random(hi - lo) < 0.7)
            tree.set(slice(lo, hi), torch.from_numpy(values))
            truth[lo:hi] = values
        else:
            at = rng.permutation(capacity)[: int(rng.integers(1, 20))]
            values = rng.random(len(at))
            tree.set(torch.from_numpy(at), torch.from_numpy(values))
            truth[at] = values
        assert np.array_equal(tree.leaves[:capacity].numpy(), truth)
        assert float(tree.total) == pytest.approx(truth.sum(), rel=1e-12)
    if truth.sum() == 0:
        return
    u = rng.random(200)
    edges = truth.cumsum()
    found = tree.find(torch.from_numpy(u)).numpy()
    # Where both agree on which side of an edge u lies; edges themselves may round either way.
    low = np.concatenate(([0.0], edges))[found] / edges[-1]
    high = edges[found] / edges[-1]
    assert (truth[found] > 0).all()
    assert (u >= low - 1e-9).all() and (u <= high + 1e-9).all()


def test_no_drift_after_a_hundred_thousand_updates():
    """Sums are recomputed: they equal a fresh tree to the bit, not to a tolerance."""
    rng = torch.Generator().manual_seed(3)
    tree = SumTree(5000, "cpu", 8, 16)
    for _ in range(200):
        at = torch.randint(5000, (500,), generator=rng)
        scale = 10.0 ** torch.randint(-6, 7, (500,), generator=rng)
        tree.set(at, torch.rand(500, generator=rng).double() * scale)
    fresh = SumTree(5000, "cpu", 8, 16)
    fresh.leaves[:] = tree.leaves
    fresh.rebuild()
    assert torch.equal(tree.top, fresh.top)
    assert all(torch.equal(a, b) for a, b in zip(tree.levels, fresh.levels, strict=True))


def test_memory_is_what_was_estimated():
    for capacity in (10, 5000, 2_000_000):
        assert SumTree(capacity).nbytes == tree_bytes(capacity)


@settings(max_examples=40)
@given(
    capacity=st.integers(1, 3000),
    width=st.integers(2, 33),
    top=st.integers(1, 40),
    seed=st.integers(0, 2**31),
)
def test_the_tree_of_a_cpu_is_that_of_a_device(capacity, width, top, seed):
    """To the bit, with values whose sums need no rounding: the order of adding is its own."""
    rng = np.random.default_rng(seed)
    host, plain = HostTree(capacity, width, top), SumTree(capacity, "cpu", width, top)
    for where, values in changes(capacity, rng):
        values = np.floor(values * 2**20) / 2**20
        host.set(where, values)
        at = where if isinstance(where, slice) else torch.from_numpy(where)
        plain.set(at, torch.from_numpy(values))
        assert torch.equal(host.leaves, plain.leaves) and torch.equal(host.total, plain.total)
        u = np.floor(np.concatenate((rng.random(60), [0.0])) * 2**20) / 2**20
        found, value = host.find(u)
        assert np.array_equal(found, plain.find(torch.from_numpy(u)).numpy())
        assert np.array_equal(value, plain.leaves.numpy()[found])


def changes(capacity, rng, count=10):
    """Runs of leaves and single ones, some of those twice."""
    for _ in range(count):
        lo = int(rng.integers(capacity))
        hi = int(rng.integers(lo + 1, capacity + 1))
        yield slice(lo, hi), rng.random(hi - lo) * (rng.random(hi - lo) < 0.9)
        some = rng.permutation(capacity)[:40]
        yield some, rng.random(len(some)) * (rng.random(len(some)) < 0.7)
