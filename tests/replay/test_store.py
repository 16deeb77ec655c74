"""The ring's rules by hand-made examples: when rows may be drawn, stops, breaks, uniformity."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ludus.contract import NStep, Prioritized, Sequence, Uniform
from ludus.replay.views import Items
from ludus.types import ArraySpec, Chunk, Discrete, EnvSpec, tree_map
from tests.replay.build import KINDS, SPEC, fill, rows_of, store_of
from tests.replay.recorder import Recorder


def ids_of(store):
    return sorted(int(i) for i in store.ring.ids(np.flatnonzero(store.sampler.members.valid)))


def item(store, id_):
    batch = store.view.gather(np.array([id_ % store.ring.layout.slots]))
    return float(batch.reward[0]), float(batch.discount[0]), float(batch.next_obs[0, 0])


@pytest.mark.accept(59)
def test_two_step_episodes_with_n_three():
    """P0.3: the return at t=1 is r_1 only; termination kills the bootstrap, truncation keeps it."""
    store = store_of(NStep(3, 0.9))
    rows = rows_of(
        0, [1.0, 2.0, 0.0, 4.0, 8.0, 0.0], over=[1], last=[4], dummy=[2, 5], first=[0, 3]
    )
    store.add(Chunk(rows))
    assert ids_of(store) == [0, 1, 3, 4]  # tails are flushed at the end, dummies never drawn
    assert item(store, 1) == (2.0, 0.0, 2.0)
    assert item(store, 0) == pytest.approx((1 + 0.9 * 2, 0.0, 2.0))
    assert item(store, 4) == pytest.approx((8.0, 0.9, 5.0))  # bootstraps from the final observation
    assert item(store, 3) == pytest.approx((4 + 0.9 * 8, 0.81, 5.0))


@pytest.mark.accept(59)
def test_exactly_n_rewards_and_only_when_row_t_plus_n_is_there():
    store = store_of(NStep(3, 0.5), chunk=1)
    for t in range(5):
        store.add(Chunk(rows_of(t, [2.0**t]), sequence=t))
        assert ids_of(store) == list(range(max(0, t - 1)))  # row t-2 and older
    assert item(store, 1) == pytest.approx((2 + 0.5 * 4 + 0.25 * 8, 0.125, 4.0))


def test_a_lost_life_is_a_soft_terminal():
    """discount 0 without an end: nothing after it counts, the stack and the rows go on."""
    store = store_of(NStep(3, 1.0))
    rows = rows_of(0, [1.0, 2.0, 4.0, 8.0])
    rows.discount[1] = 0.0
    store.add(Chunk(rows))
    assert item(store, 0)[:2] == (3.0, 0.0)
    assert ids_of(store) == [0, 1]


@pytest.mark.parametrize("how", ["gap", "breaks", "barrier"])
def test_a_broken_stream_ends_in_a_masked_row(how):
    """No view reads past the break; it bootstraps from the last observation before it."""
    store = store_of(NStep(3, 1.0))
    store.add(Chunk(rows_of(0, [1.0, 2.0])))
    assert ids_of(store) == []
    if how == "barrier":
        store.break_streams()
        store.break_streams()  # nothing left to cut
        assert ids_of(store) == [0, 1]
    sequence = 5 if how == "gap" else 1
    store.add(Chunk(rows_of(100, [50.0] * 4), sequence=sequence, breaks=how != "gap"))
    assert item(store, 0) == (3.0, 1.0, 2.0) and item(store, 1) == (2.0, 1.0, 2.0)
    assert ids_of(store) == [0, 1, 3, 4]  # row 2 is the masked one
    assert item(store, 3) == (150.0, 1.0, 103.0)
    assert store.steps_inserted == 6 and not bool(store.ring.tensors["mask"][2, 0])


def test_rows_leave_before_their_slot_or_history_is_overwritten():
    """Every drawable stack is intact at every moment of many turns around the ring."""
    spec = EnvSpec("s", ArraySpec((1,), stack=3), Discrete(2))
    store = store_of(spec=spec, capacity=12, chunk=2)
    for k in range(40):
        store.add(Chunk(rows_of(2 * k + 1, [0.0, 0.0]), sequence=k))
        slots = np.flatnonzero(store.sampler.members.valid)
        newest = store.view.gather(slots).obs[:, :, 0]  # [items, 3]
        assert (newest[:, 2] == torch.from_numpy(store.ring.ids(slots)) + 1).all()
        older = torch.stack((newest[:, 2] - 2, newest[:, 2] - 1), 1).clamp(min=0)
        assert torch.equal(newest[:, :2], older)
    assert store.size == 12 and store.fill == 1.0


def test_heads_are_per_column():
    """A source may run ahead of another; each column has its own newest row."""
    store = store_of(columns=2, capacity=20)
    fill(store, 13, source=0)
    fill(store, 3, source=1, start=100)
    assert store.ring.head.tolist() == [13, 3]
    mine = [i for i in ids_of(store) if i % 2]
    assert mine == [1, 3, 5]
    batch = store.view.gather(np.array(mine))
    assert batch.obs[:, 0].tolist() == [100, 101, 102]


@pytest.mark.accept(42)
@pytest.mark.parametrize("columns", [1, 3])
def test_uniform_is_uniform_over_valid_rows_with_replacement(columns):
    """chi-square over drawable rows only, with masked rows, a full ring and unequal heads."""
    recorder = Recorder(5, columns, columns, end=0.3)
    spec = EnvSpec("fake", ArraySpec((2,)), Discrete(3))
    store = store_of(NStep(2), columns=columns, capacity=40, batch=500, spec=spec)
    for k in range(40):
        store.add(recorder.chunk(3, k * k % columns))
    ids = torch.cat([store.sample().ids for _ in range(40)])
    every = ids_of(store)
    counts = torch.tensor([int((ids == i).sum()) for i in every]).double()
    assert counts.sum() == len(ids) and len(every) > 15
    want = len(ids) / len(every)
    chi2, dof = float(((counts - want) ** 2 / want).sum()), len(every) - 1
    assert chi2 < dof + 4 * (2 * dof) ** 0.5
    assert len(set(ids[:500].tolist())) < 500  # with replacement


def test_uniform_when_hardly_any_row_is_drawable():
    store = store_of(NStep(40), capacity=400, batch=64)
    sequence = fill(store, 41)
    assert store.size == 2
    sample = store.sample()
    assert set(sample.ids.tolist()) == {0, 1} and sample.weight.tolist() == [1.0] * 64
    assert sequence == 6


def test_a_chunk_that_does_not_fit_is_refused():
    store = store_of(capacity=10, chunk=2)
    with pytest.raises(ValueError, match="does not fit"):
        store.add(Chunk(rows_of(0, [0.0] * 11)))


def test_a_source_may_not_change_its_width():
    store = store_of(columns=4)
    store.add(Chunk(rows_of(0, [0.0], width=2)))
    with pytest.raises(ValueError, match="environments"):
        store.add(Chunk(rows_of(0, [0.0], width=4), sequence=1))


def test_trees_of_observations_and_action_masks():
    """Dict and tuple leaves with different stacks; masks of both ends of a transition."""
    tree = {
        "image": ArraySpec((2, 2), "uint8", stack=2),
        "pair": (ArraySpec((1,)), ArraySpec((3,))),
    }
    spec = EnvSpec("tree", tree, Discrete(3), has_action_mask=True)
    store = store_of(NStep(2), spec=spec)
    rng = torch.Generator().manual_seed(0)

    def leaf(s):
        return (torch.rand(6, 1, *s.shape, generator=rng) * 200).to(s.torch_dtype)

    masks = torch.rand(6, 1, 3, generator=rng) < 0.5
    rows = rows_of(0, [0.0] * 5, first=[0])._replace(obs=tree_map(leaf, tree), action_mask=masks)
    store.add(Chunk(rows))
    batch = store.view.gather(np.array([0, 3]))
    image = rows.obs["image"][:, 0]
    assert batch.obs["image"].dtype == torch.uint8
    assert torch.equal(batch.obs["image"][0], torch.stack((torch.zeros_like(image[0]), image[0])))
    assert torch.equal(batch.next_obs["image"][1], image[4:6])
    assert torch.equal(batch.obs["pair"][1], rows.obs["pair"][1][[0, 3], 0])
    assert torch.equal(batch.action_mask, masks[[0, 3], 0])
    assert torch.equal(batch.next_action_mask, masks[[2, 5], 0])


@pytest.mark.accept(60)
def test_sequences_overlap_and_skip_what_trains_nothing():
    """length 4, period 2, burn-in 2: starts 0, 2, 4, ...; the last row alone is burn-in only."""
    extras = {"state.h": ((2,), torch.float32), "state.c": ((), torch.float32)}
    store = store_of(Sequence(4, 2, 2), capacity=60, extras=extras, chunk=12)
    h = torch.arange(11.0)[:, None, None].expand(11, 1, 2)
    rows = rows_of(0, [1.0] * 11, over=[8], dummy=[9], first=[0, 10])
    store.add(Chunk(rows._replace(extras={"state.h": h, "state.c": h[..., 0] * 10})))
    assert ids_of(store) == [0, 2, 4, 6]  # 8 has one row left, within its burn-in
    batch = store.view.gather(np.array([2, 6]))
    assert batch.obs.shape == (7, 2, 1) and batch.mask.sum(0).tolist() == [4, 1]
    assert batch.burn_in.sum(0).tolist() == [2, 2]
    assert batch.obs[:, 0, 0].tolist() == [2, 3, 4, 5, 6, 7, 8]  # overlaps the one from 4
    assert batch.obs[:, 1, 0].tolist() == [6, 7, 8, 9, 0, 0, 0]
    assert batch.state["h"].tolist() == [[2, 2], [6, 6]] and batch.state["c"].tolist() == [20, 60]
    sample = store.sample()
    assert store.samples_drawn == int(sample.batch.mask.sum())  # only rows that train count


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("per", [4, 14])
def test_an_episode_as_short_as_the_burn_in_trains_on_all_its_rows(kind, per):
    """Its state is known at its first row: no burn-in. Episodes of 12 steps, burn-in 10, rows in
    chunks of `per`; the last episode has 3 steps, less than the burn-in."""
    store = store_of(Sequence(10, 5, 10), capacity=200, batch=32, chunk=per, kind=kind)
    ends, first = [11, 24, 37, 41], [0, 13, 26, 39]
    flags = {"over": ends, "dummy": [e + 1 for e in ends], "first": first}
    for k, lo in enumerate(range(0, 43, per)):
        steps = min(per, 43 - lo)
        mine = {
            name: [i - lo for i in at if lo <= i < lo + steps + (name == "first")]
            for name, at in flags.items()
        }
        store.add(Chunk(rows_of(lo, [1.0] * steps, **mine), sequence=k))
    assert ids_of(store) == first  # a start at row 5 has 7 rows, all burn-in
    batch = store.gather(torch.tensor(first))
    assert batch.mask.shape == (20, 4) and batch.mask.sum(0).tolist() == [12, 12, 12, 3]
    assert not batch.burn_in.any() and batch.reward[batch.mask].sum() == 39
    sample = store.sample()
    lengths = torch.tensor([12, 12, 12, 3])[torch.searchsorted(torch.tensor(first), sample.ids)]
    assert store.samples_drawn == int(sample.batch.mask.sum()) == int(lengths.sum())


def test_a_sequence_after_a_lost_chunk_burns_in():
    """It opens its stream, not its episode: the state there is not exact."""
    store = store_of(Sequence(2, 3, 3), capacity=60, chunk=6)
    store.add(Chunk(rows_of(0, [1.0] * 6, first=[0]), sequence=0))
    store.add(Chunk(rows_of(12, [1.0] * 6), sequence=2))
    assert ids_of(store) == [0, 7]  # row 6 is masked: there the stream broke
    batch = store.view.gather(np.array([0, 7]))
    assert batch.burn_in.sum(0).tolist() == [0, 3] and batch.mask.sum(0).tolist() == [5, 2]


def test_short_episodes_push_old_states_out():
    """Fewer state slots than starts: an item goes with its state, and its id is stale then."""
    store = store_of(
        Sequence(2, 8), Prioritized(alpha=1.0), capacity=40, chunk=2,
        extras={"state": ((), torch.float32)},
    )  # fmt: skip
    slots = store.ring.layout.starts
    for k in range(19):
        rows = rows_of(2 * k, [1.0, 0.0], over=[0], dummy=[1], first=[0, 2])
        rows = rows._replace(extras={"state": rows.obs[:-1, :, 0]})
        store.add(Chunk(rows, sequence=k))
    assert slots < 19 and store.size == slots
    assert ids_of(store) == [2 * k for k in range(19 - slots, 19)]
    batch = store.view.gather(np.array(ids_of(store)))
    assert torch.equal(batch.state, batch.obs[0, :, 0])
    before = store.sampler.tree.leaves.clone()
    store.feedback(torch.tensor([0]), torch.tensor([9.0]))
    assert torch.equal(store.sampler.tree.leaves, before)


@pytest.mark.accept(64)
@pytest.mark.parametrize("ratio", [0.1, 0.5, 1.0, 8.0])
def test_learning_starts_at_warmup_and_keeps_the_ratio(ratio):
    """ready <=> inserted >= warmup and drawn <= ratio * (inserted - warmup), step by step."""
    store = store_of(batch=4, replay_ratio=ratio, warmup=10, chunk=1)
    drawn = 0
    for step in range(1, 200):
        store.add(Chunk(rows_of(step, [0.0]), sequence=step))
        while store.ready():
            assert step >= 10
            store.sample()
            drawn += 4
        if step < 10:
            assert drawn == 0
        elif step == 10:
            assert drawn == 4  # exactly one batch
        else:
            paid = ratio * (step - 10)
            assert paid < drawn <= paid + 4 + 1e-6
    assert store.samples_drawn == drawn and store.steps_inserted == 199


def test_dummy_rows_do_not_pay_for_samples():
    store = store_of(warmup=3, batch=1)
    store.add(Chunk(rows_of(0, [1.0, 1.0, 0.0, 0.0], last=[1], dummy=[2, 3])))
    assert store.steps_inserted == 2 and not store.ready()
    store.add(Chunk(rows_of(4, [1.0]), sequence=1))
    assert store.ready()


def test_a_refill_counts_no_step_twice():
    """After a resume without rows, what is missing is collected before learning goes on."""
    store = store_of(warmup=2, batch=2, replay_ratio=1.0)
    store.ratio.steps_inserted, store.ratio.samples_drawn, store.ratio.missing = 50, 40, 16
    sequence = fill(store, 15)
    assert not store.ready() and store.steps_inserted == 50
    fill(store, 1, start=15, sequence=sequence)
    assert store.ready() and store.steps_inserted == 50 and store.samples_drawn == 40


def test_uniform_ignores_feedback_and_has_no_beta():
    store = store_of(sampler=Uniform(), spec=SPEC)
    fill(store, 5)
    valid = store.sampler.members.valid.copy()
    store.feedback(torch.tensor([0]), torch.tensor([9.0]))
    assert np.array_equal(valid, store.sampler.members.valid) and store.beta == 0.0


def test_flags_that_are_kept_do_not_change_with_the_memory_they_came_in():
    """A mailbox is written again while the last windows of its rows are still open."""
    items, mask = Items(span=3), np.ones((4, 1), bool)
    stop = np.zeros((4, 1), bool)
    items.extend(0, stop, mask)
    mask[:] = False
    older, fresh = items.extend(0, stop, np.ones((4, 1), bool))
    assert older == 2 and fresh[:2].all()
