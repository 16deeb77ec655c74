"""Drawing without the host gives what drawing with it gives: frequencies, weights, priorities of
new items, state. What differs: a priority that is not finite leaves the old one, unreported."""

from __future__ import annotations

import pytest
import torch

from ludus.contract import NStep, Prioritized, Uniform
from ludus.replay.samplers.device import DEVICE_TOP, DEVICE_WIDTH, SumTree, tree_bytes
from ludus.replay.storage.memory import estimate_bytes
from ludus.schedules import ramp
from ludus.types import Chunk
from tests.replay.build import fill, rows_of, store_of

P = torch.tensor([0.1, 0.5, 1.0, 3.0, 7.0, 0.02, 2.0, 1.5])
ON_DEVICE = ["on_device", "tensors"]


def eight(kind="on_device", **options):
    """A store of eight items with priorities P."""
    batch = options.pop("batch", 4)
    sampler = Prioritized(**{"epsilon": 0.0, **options})
    store = store_of(sampler=sampler, capacity=20, batch=batch, kind=kind)
    fill(store, 8)
    store.feedback(torch.arange(8), P)
    return store


def chi2(store, want, draws=400):
    ids = torch.cat([store.sample().ids for _ in range(draws)])
    counts = torch.bincount(ids, minlength=len(want)).double()
    assert len(counts) == len(want), "something was drawn that is not there"
    want = want.double() / want.sum() * counts.sum()
    return float(((counts - want) ** 2 / want).sum())


@pytest.mark.parametrize("kind", ON_DEVICE)
@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0])
def test_frequencies_follow_the_priorities(alpha, kind):
    assert chi2(eight(kind, alpha=alpha, batch=250), P.double() ** alpha) < 24.3  # p = 0.001


@pytest.mark.parametrize("kind", ON_DEVICE)
def test_uniform_draws_are_uniform(kind):
    store = store_of(sampler=Uniform(), capacity=20, batch=250, kind=kind)
    fill(store, 8)
    assert chi2(store, torch.ones(8)) < 24.3
    sample = store.sample()
    assert (sample.weight == 1).all()
    # Stratified: every item within one of its share, in every single batch.
    assert torch.bincount(sample.ids, minlength=8).sub(250 / 8).abs().max() <= 2


@pytest.mark.parametrize("normalize", ["batch", "buffer", "none"])
@pytest.mark.parametrize(("alpha", "beta"), [(0.6, 0.4), (1.0, 1.0), (0.3, 0.0)])
def test_weights_are_exact(normalize, alpha, beta):
    store = eight(alpha=alpha, beta=ramp(beta), normalize=normalize)
    for _ in range(20):
        sample = store.sample()
        prob = P.double() ** alpha / (P.double() ** alpha).sum()
        every = (8 * prob) ** -beta
        want = every[sample.ids]
        top = {"batch": want.max(), "buffer": every.max(), "none": 1.0}[normalize]
        torch.testing.assert_close(sample.weight, (want / top).float())


def test_new_items_get_the_largest_priority_seen():
    store = store_of(sampler=Prioritized(alpha=1.0, epsilon=0.0), capacity=50, kind="on_device")
    leaves = store.sampler.tree.leaves
    fill(store, 4, per=4)
    assert leaves[:4].tolist() == [1.0] * 4
    store.feedback(torch.tensor([0, 1]), torch.tensor([5.0, 0.5]))
    store.feedback(torch.tensor([0]), torch.tensor([0.1]))
    fill(store, 2, start=4, sequence=1)
    assert leaves[:6].tolist() == pytest.approx([0.1, 0.5, 1.0, 1.0, 5.0, 5.0])


@pytest.mark.parametrize("kind", ["host", *ON_DEVICE])
def test_priorities_of_the_actor_are_used_and_are_no_maximum(kind):
    extras = {"priority": ((), torch.float32)}
    sampler = Prioritized(alpha=0.5, epsilon=0.0)
    store = store_of(NStep(3), sampler, capacity=50, extras=extras, kind=kind)
    for k in range(3):
        given = torch.tensor([[4.0 + 5 * k], [9.0 + 7 * k]])
        store.add(Chunk(rows_of(2 * k, [0.0, 0.0], extras={"priority": given}), 0, k))
    leaves = store.sampler.tree.leaves[:6].tolist()
    assert leaves == pytest.approx([x**0.5 for x in (4.0, 9.0, 9.0, 16.0)] + [0.0, 0.0])
    assert store.sampler.max_priority == 1.0
    assert "priority" not in store.sample().batch.extras


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -1.0])
def test_a_bad_priority_leaves_the_old_one(bad):
    store = eight(alpha=1.0)
    store.feedback(torch.tensor([0, 1]), torch.tensor([4.0, bad]))
    assert store.sampler.tree.leaves[:2].tolist() == pytest.approx([4.0, 0.5])
    assert store.sampler.max_priority == pytest.approx(7.0)


@pytest.mark.parametrize("sampler", [Uniform(), Prioritized(alpha=0.7, epsilon=0.0)])
@pytest.mark.parametrize(("saved", "loaded"), [("host", "on_device"), ("tensors", "host"),
                                               ("on_device", "tensors")])  # fmt: skip
def test_a_checkpoint_goes_from_one_kind_to_another(sampler, saved, loaded):
    a = store_of(sampler=sampler, capacity=20, batch=250, kind=saved)
    sequence = fill(a, 30)
    a.feedback(torch.arange(22, 30), P)
    b = store_of(sampler=sampler, capacity=20, batch=250, kind=loaded)
    b.restore([a.new_rows_since(None)])
    b.load(*a.state())
    b.reseed(1)
    assert b.size == a.size and b.samples_drawn == a.samples_drawn
    assert (a.sampler.members.valid == b.sampler.members.valid).all()
    if isinstance(sampler, Prioritized):
        assert a.sampler.max_priority == b.sampler.max_priority == 7.0
        n = a.sampler.tree.capacity
        assert torch.equal(a.sampler.tree.leaves[:n], b.sampler.tree.leaves[:n])
        torch.testing.assert_close(a.sampler.tree.total, b.sampler.tree.total)
    for store in (a, b):
        fill(store, 4, start=30, sequence=sequence)
    ids = sorted(set(a.sample().ids.tolist()) | set(b.sample().ids.tolist()))
    assert min(ids) >= 34 - 20 and max(ids) <= 33
    one, two = (s.view.gather(s.ring.index(torch.arange(5, 12).numpy())) for s in (a, b))
    assert torch.equal(one.obs, two.obs) and torch.equal(one.reward, two.reward)


@pytest.mark.parametrize("slots", [5, 128, 129, 20_000, 3_000_000])
def test_the_estimate_knows_the_wider_tree(slots):
    tree = SumTree(slots, "cpu", DEVICE_WIDTH, DEVICE_TOP)
    assert tree_bytes(slots, DEVICE_WIDTH, DEVICE_TOP) == tree.nbytes


@pytest.mark.parametrize("sampler", [Uniform(), Prioritized(), Prioritized(normalize="buffer")])
def test_the_estimate_is_what_is_allocated_without_the_host(sampler):
    store = store_of(sampler=sampler, columns=3, capacity=1000, kind="tensors")
    held = sum(t.nbytes for t in store.ring.tensors.values())
    held += store.sampler.members.valid.nbytes + store.sampler.tree.nbytes
    assert estimate_bytes(store.plan, store.spec, 3, on_device=True) == held
