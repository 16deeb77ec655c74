"""Proportional prioritisation: frequencies, weights, beta, new items, stale ids."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ludus.contract import NStep, Prioritized
from ludus.schedules import ramp
from ludus.types import Chunk
from tests.replay.build import fill, rows_of, store_of

P = torch.tensor([0.1, 0.5, 1.0, 3.0, 7.0, 0.02, 2.0, 1.5])


def eight(**options):
    """A store of eight items with priorities P."""
    batch = options.pop("batch", 4)
    sampler = Prioritized(**{"epsilon": 0.0, **options})
    store = store_of(sampler=sampler, capacity=20, batch=batch)
    fill(store, 8)
    store.feedback(torch.arange(8), P)
    return store


def frequencies(store, draws=400):
    ids = torch.cat([store.sample().ids for _ in range(draws)])
    return torch.bincount(ids, minlength=8).double()


@pytest.mark.accept(55)
@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0])
def test_frequencies_follow_the_priorities(alpha):
    counts = frequencies(eight(alpha=alpha, batch=250))  # 1e5 draws
    want = P.double() ** alpha / (P.double() ** alpha).sum() * counts.sum()
    chi2 = float(((counts - want) ** 2 / want).sum())
    assert chi2 < 24.3  # 7 degrees of freedom, p = 0.001


@pytest.mark.accept(55)
@pytest.mark.accept(3)
@pytest.mark.parametrize("normalize", ["batch", "buffer", "none"])
@pytest.mark.parametrize(("alpha", "beta"), [(0.6, 0.4), (1.0, 1.0), (0.3, 0.0)])
def test_weights_are_exact(normalize, alpha, beta):
    store = eight(alpha=alpha, beta=ramp(beta), normalize=normalize)
    seen = set()
    for _ in range(30):
        sample = store.sample()
        prob = P.double() ** alpha / (P.double() ** alpha).sum()
        every = (8 * prob) ** -beta
        want = every[sample.ids]
        top = {"batch": want.max(), "buffer": every.max(), "none": 1.0}[normalize]
        torch.testing.assert_close(sample.weight, (want / top).float())
        seen |= set(sample.ids.tolist())
    assert len(seen) > 4


@pytest.mark.accept(3)
def test_each_setting_changes_what_is_drawn_or_its_weight():
    base = frequencies(eight(alpha=0.6), 100)
    assert not torch.equal(base, frequencies(eight(alpha=0.2), 100))
    weights = {
        name: eight(**options).sample().weight.tolist()
        for name, options in {
            "base": {},
            "beta begin": {"beta": ramp("0.7->1")},
            "none": {"normalize": "none"},
            "buffer": {"normalize": "buffer"},
        }.items()
    }
    assert len({tuple(w) for w in weights.values()}) == 4
    late = {end: eight(beta=ramp(f"0.4->{end}@16")) for end in ("1", "0.6")}
    for store in late.values():
        fill(store, 8, start=8, sequence=1)
    assert late["1"].sample().weight.tolist() != late["0.6"].sample().weight.tolist()


def test_weights_undo_the_bias_at_beta_one():
    """sum_i P(i) w(i) delta(i) equals the plain mean of delta."""
    store = eight(alpha=0.6, beta=ramp(1.0), normalize="none")
    value = store.sampler.tree.leaves[:8]
    delta = torch.linspace(-1, 2, 8).double()
    got = (value / value.sum() * store.sampler.weights(value, 1.0) * delta).sum()
    assert float(got) == pytest.approx(float(delta.mean()), abs=1e-6)


@pytest.mark.accept(56)
def test_beta_reaches_one_where_sampling_happens():
    """Read back from drawn weights: beta = -log w / log (p / p_min), at the start and the end."""
    store = store_of(
        sampler=Prioritized(alpha=1.0, epsilon=0.0), capacity=2000, batch=8, horizon=96
    )
    sequence = fill(store, 8)

    def read_back():
        p = 0.5 + torch.rand(store.size, generator=torch.Generator().manual_seed(0))
        store.feedback(torch.arange(store.size), p)
        sample = store.sample()
        x = (p[sample.ids] / p[sample.ids].min()).log()
        far = x.argmax()
        return float(-sample.weight[far].log() / x[far])

    assert read_back() == pytest.approx(0.4 + 0.6 * 8 / 96, abs=1e-4) == store.beta
    fill(store, 40, start=8, sequence=sequence)
    assert read_back() == pytest.approx(0.7, abs=1e-4)
    fill(store, 48, start=48, sequence=50)
    assert read_back() == pytest.approx(1.0, abs=1e-4)
    fill(store, 8, start=96, sequence=90)
    assert store.beta == 1.0


@pytest.mark.accept(55)
def test_new_items_get_the_largest_priority_seen():
    store = store_of(sampler=Prioritized(alpha=1.0, epsilon=0.0), capacity=50)
    leaves = store.sampler.tree.leaves
    fill(store, 4, per=4)
    assert leaves[:4].tolist() == [1.0] * 4  # at the start
    store.feedback(torch.tensor([0, 1]), torch.tensor([5.0, 0.5]))
    store.feedback(torch.tensor([0]), torch.tensor([0.1]))  # the maximum is remembered
    fill(store, 2, start=4, sequence=1)
    assert leaves[:6].tolist() == pytest.approx([0.1, 0.5, 1.0, 1.0, 5.0, 5.0])


def test_priorities_of_the_actor_are_used_when_they_come_along():
    """Rule 2: they ride in extras, also for rows whose window closes with a later chunk."""
    extras = {"priority": ((), torch.float32)}
    store = store_of(NStep(3), Prioritized(alpha=0.5, epsilon=0.0), capacity=50, extras=extras)
    for k in range(3):
        given = torch.tensor([[4.0 + 5 * k], [9.0 + 7 * k]])
        rows = rows_of(2 * k, [0.0, 0.0], extras={"priority": given})
        store.add(Chunk(rows, 0, k))
    given = [4.0, 9.0, 9.0, 16.0]
    leaves = store.sampler.tree.leaves[:6].tolist()
    assert leaves == pytest.approx([x**0.5 for x in given] + [0.0, 0.0])
    assert "priority" not in store.sample().batch.extras


def test_feedback_for_overwritten_items_is_ignored():
    """Rule 1: ids are absolute."""
    store = store_of(sampler=Prioritized(alpha=1.0), capacity=10, chunk=1)
    sequence = fill(store, 8)
    old = store.sampler.tree.leaves.clone()
    stale = torch.tensor([0, 1, 2, 3])
    fill(store, 8, start=8, sequence=sequence, per=1)
    assert store.ring.ids(np.array([0])) > 3  # the slots live on under other ids
    before = store.sampler.tree.leaves.clone()
    store.feedback(stale, torch.full((4,), 50.0))
    assert torch.equal(store.sampler.tree.leaves, before) and not torch.equal(before, old)
    store.feedback(torch.tensor([2, 12]), torch.tensor([50.0, 2.0]))
    slot = 12 % store.ring.layout.slots
    assert float(store.sampler.tree.leaves[slot]) == pytest.approx(2.0, abs=1e-5)
    assert store.sampler.max_priority == pytest.approx(2.0, abs=1e-5)


def test_a_drawn_empty_leaf_is_drawn_again(monkeypatch):
    """Rule 1: rounding may end a search on an empty leaf."""
    store = eight()
    find, calls = store.sampler.tree.find, []

    def rounded(u):
        calls.append(len(u))
        out = find(u)
        if len(calls) == 1:
            out[0][2], out[1][2] = 15, 0.0  # never written
        return out

    monkeypatch.setattr(store.sampler.tree, "find", rounded)
    assert (store.sample().ids < 8).all() and len(calls) == 2


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -1.0])
def test_bad_priorities_are_refused(bad):
    store = eight()
    before = store.sampler.tree.leaves.clone()
    with pytest.raises(ValueError, match="finite"):
        store.feedback(torch.tensor([0, 1]), torch.tensor([1.0, bad]))
    assert torch.equal(store.sampler.tree.leaves, before)


def test_priorities_that_are_all_zero_end_in_an_error():
    store = eight()
    store.feedback(torch.arange(8), torch.zeros(8))
    with pytest.raises(ValueError, match="zero"):
        store.sample()


def test_equal_seeds_draw_equally_and_barriers_change_the_stream():
    a, b = eight(), eight()
    assert torch.equal(a.sample().ids, b.sample().ids)
    a.reseed(1)
    b.reseed(1)
    one = torch.cat([a.sample().ids for _ in range(5)])
    assert torch.equal(one, torch.cat([b.sample().ids for _ in range(5)]))
    b.reseed(2)
    assert not torch.equal(one, torch.cat([b.sample().ids for _ in range(5)]))


@pytest.mark.parametrize("view", [NStep(1), NStep(2)])
def test_new_leaves_are_exact_in_double_precision(view):
    """A leaf rounded to single precision would not equal the same priority fed back."""
    store = store_of(view, Prioritized(alpha=0.6, epsilon=0.0), capacity=50)
    fill(store, 4, per=4)
    store.feedback(torch.tensor([0]), torch.tensor([1.7]))
    fill(store, 4, start=4, sequence=1, per=4)
    leaves = store.sampler.tree.leaves
    assert leaves.dtype == torch.float64 and leaves[0] == leaves[4] > 1
