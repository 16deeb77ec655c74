"""Large frames lie column by column in host memory. Everything else must not notice: samples,
wrap-around, episode starts and checkpoints are what a plain list of rows gives."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from ludus.contract import NStep, Plan, Prioritized, Sequence, Uniform
from ludus.replay.native import bindings as native
from ludus.replay.replay_store import ReplayStore
from ludus.replay.storage.ring import Ring, layout_of
from ludus.replay.store import build_store
from ludus.types import ArraySpec, Chunk, Discrete, EnvSpec, Rows

SIDE, STACK = 32, 4
SPEC = EnvSpec("fake", ArraySpec((SIDE, SIDE), "uint8", stack=STACK, layout="hw"), Discrete(2))


class Games:
    """Columns of games of random lengths. A frame is one number, told by its row and column."""

    def __init__(self, columns, seed):
        self.columns, self.rng = columns, np.random.default_rng(seed)
        self.kind = [[0] for _ in range(columns)]  # per row: 0 first, 1 inside, 2 the masked end
        self.rows = 0

    def _grow(self, upto):
        for kinds in self.kind:
            while len(kinds) <= upto + 1:
                if kinds[-1] == 2:
                    kinds.append(0)
                else:
                    kinds.append(2 if self.rng.random() < 0.12 else 1)

    def value(self, row, column):
        return (7 * row + 3 * column) % 250 + 1

    def chunk(self, steps, number):
        t, n = self.rows, self.columns
        self._grow(t + steps)
        kind = np.array([k[t : t + steps + 1] for k in self.kind]).T  # [T+1, N]
        value = np.array([[self.value(r, c) for c in range(n)] for r in range(t, t + steps + 1)])
        obs = torch.from_numpy(value.astype(np.uint8))[..., None, None]
        last = torch.from_numpy((kind[1:] == 2) & (kind[:-1] != 2))
        zero = torch.zeros(steps, n)
        self.rows += steps
        rows = Rows(
            obs.expand(steps + 1, n, SIDE, SIDE), zero.long(), zero, zero, 1.0 - last.float(), last,
            torch.from_numpy(kind == 0), torch.from_numpy(kind[:-1] != 2),
        )  # fmt: skip
        return Chunk(rows, 0, number)

    def stack(self, row, column):
        """Frame by frame, the slow way."""
        frames, back = [], row
        for _ in range(STACK):
            frames.append(self.value(back, column) if back is not None else 0)
            if back is not None:
                back = None if back == 0 or self.kind[column][back] == 0 else back - 1
        return frames[::-1]

    def after(self, row, column, n):
        """The row whose observation bootstraps an item of at most n rows."""
        for _ in range(n):
            row += 1
            if self.kind[column][row] == 2:
                break
        return row


def plan_of(n=1, sampler=None, view=None, capacity=90):
    return Plan(view or NStep(n), sampler or Uniform(), batch=16, chunk=3, capacity=capacity)


def fill(store, games, chunks, seed=5):
    rng = np.random.default_rng(seed)
    for number in range(chunks):
        store.add(games.chunk(int(rng.integers(1, 4)), number))


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("columns", [1, 3])
@pytest.mark.parametrize("n", [1, 3])
def test_stacks_equal_a_list_of_rows_wherever_the_ring_is(n, columns, threads, compiled, request):
    """After every chunk, so the end of the ring lies at every place of a stack."""
    monkeypatch = request.getfixturevalue("monkeypatch")
    monkeypatch.setattr(native, "ALONE", 0)
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    if not compiled:
        monkeypatch.setattr(native, "library", lambda: None)
    store = build_store(plan_of(n), SPEC, columns, seed=1, horizon=100)
    assert store.ring.column_major == {"obs", "begin"}
    games, rng = Games(columns, 11), np.random.default_rng(2)
    chunks = 3 * store.ring.length // 2
    for number in range(chunks):
        store.add(games.chunk(int(rng.integers(1, 4)), number))
        slots = np.flatnonzero(store.sampler.members.valid)
        if not len(slots):
            continue
        batch, ids = store.view.gather(slots), store.ring.ids(slots)
        want, then = [], []
        for row, column in zip(ids // columns, ids % columns, strict=True):
            want.append(games.stack(row, column))
            then.append(games.stack(games.after(row, column, n), column))
        for got, truth in ((batch.obs, want), (batch.next_obs, then)):
            assert got[:, :, 3, 5].tolist() == truth
            assert torch.equal(got, got[:, :, :1, :1].expand_as(got))
    assert games.rows > 2 * store.ring.length


def test_only_large_observations_with_a_history_lie_that_way():
    small = replace(SPEC, obs=ArraySpec((4,), stack=STACK))
    flat = replace(SPEC, obs=ArraySpec((SIDE, SIDE), "uint8", layout="hw"))
    tree = replace(SPEC, obs={"a": SPEC.obs, "b": small.obs})
    for spec, names in ((small, set()), (flat, set()), (tree, {"obs.a", "begin"})):
        assert Ring(layout_of(plan_of(), spec, 2)).column_major == names
    wide_extra = {"logits": ((512,), torch.float32)}
    assert "extras.logits" not in Ring(layout_of(plan_of(), SPEC, 2, wide_extra)).column_major
    assert not Ring(layout_of(plan_of(), SPEC, 2), on_host=False).column_major


@pytest.mark.parametrize("columns", [1, 3])
@pytest.mark.parametrize("view", [NStep(1), NStep(3), Sequence(5, 2, 1)], ids=str)
def test_a_checkpoint_is_the_same_and_read_by_both_layouts(view, columns):
    """The other layout is the one of a device, and was everybody's before."""
    plan = plan_of(view=view, sampler=Prioritized())
    column_major = build_store(plan, SPEC, columns, seed=1, horizon=100, on_device=True)
    ring = Ring(layout_of(plan, SPEC, columns), on_host=False)
    level = ReplayStore(plan, SPEC, ring, on_device=True)
    level.start(1, 100)
    for store in (column_major, level):
        fill(store, Games(columns, 4), 70)
    one, two = column_major.new_rows_since(None), level.new_rows_since(None)
    assert one.meta == two.meta and one.tensors.keys() == two.tensors.keys()
    assert all(torch.equal(one.tensors[k], two.tensors[k]) for k in one.tensors)
    assert all(t.is_contiguous() for t in one.tensors.values())
    again = build_store(plan, SPEC, columns, seed=1, horizon=100, on_device=True)
    again.restore([two])
    again.load(*level.state())
    truth = _tensors(level.sample())
    for store in (column_major, again):
        pairs = zip(_tensors(store.sample()), truth, strict=True)
        for got, want in pairs:  # numpy and torch round products of discounts differently
            near = 1e-6 if got.is_floating_point() else 0
            torch.testing.assert_close(got, want, rtol=near, atol=0)


def _tensors(value):
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = [value[k] for k in sorted(value)]
    return [t for v in value for t in _tensors(v)] if isinstance(value, tuple | list) else []


def test_a_lost_chunk_makes_the_next_one_bring_its_first_frame():
    """A frame that came as the last of the chunk before is not written again; after a break it
    must be."""
    store, games = build_store(plan_of(), SPEC, 2, seed=1, horizon=100), Games(2, 3)
    games.kind = [[0] + [1] * 30 for _ in range(2)]
    store.add(games.chunk(3, 0))
    games.chunk(3, 1)  # lost
    store.add(games.chunk(3, 2))
    frames = store.ring.arrays["obs"][:8, 1, 0, 0].tolist()
    assert frames == [games.value(r, 1) for r in (0, 1, 2, 3, 6, 7, 8, 9)]
