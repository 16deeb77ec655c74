"""Large stacked frames are copied once for an observation and the one after it."""

import numpy as np
import pytest
import torch

from ludus.contract import NStep, Plan, Uniform
from ludus.replay.native.bindings import WIDE
from ludus.replay.storage.ring import tensor
from ludus.replay.store import build_store
from ludus.types import ArraySpec, Chunk, Discrete, EnvSpec, Rows, tree_leaves
from tests.skips import needs_gpu

SCREEN = ArraySpec((32, 32), "uint8", stack=4, layout="hw")
COLUMNS = 3


def filled(spec, rows=40, episode=7, n=1, device="cpu"):
    """A store whose frames say which row they are; every `episode` rows a game ends."""
    plan = Plan(NStep(n), Uniform(), batch=64, chunk=1, capacity=150)
    seen = EnvSpec("fake", spec, Discrete(2))
    store = build_store(plan, seen, COLUMNS, seed=1, horizon=1000, device=device)
    zero = torch.zeros(1, COLUMNS)
    for t in range(rows):
        age = (torch.tensor([[t], [t + 1]]) + torch.arange(COLUMNS)) % (episode + 1)
        value = (10 * torch.tensor([[t], [t + 1]]) + torch.arange(COLUMNS) + 1) % 256
        frame = value.to(torch.uint8)[..., None, None].expand(2, COLUMNS, 32, 32)
        obs = {"a": frame, "b": value.float()[..., None]} if isinstance(spec, dict) else frame
        last, first = age[:1] == episode - 1, age == 0
        chunk = Rows(obs, zero.long(), zero + t, zero, zero + 1, last, first, age[:1] != episode)
        store.add(Chunk(chunk, 0, t))
    return store


@pytest.fixture(params=[1, 2])
def threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("spec", [SCREEN, {"a": SCREEN, "b": ArraySpec((1,), stack=2)}], ids=str)
def test_both_observations_are_what_each_alone_would_be(spec, threads):
    store = filled(spec)
    reader, ring = store.view.reader, store.ring
    assert ring.layout.fields["obs.a" if isinstance(spec, dict) else "obs"].row_bytes >= WIDE
    assert reader.wide
    slots = np.flatnonzero(store.sampler.members.valid)
    batch = store.view.gather(slots)
    after = (slots + COLUMNS) % ring.layout.slots
    assert not ring.rows("begin", after).any()
    for got, want in ((batch.obs, slots), (batch.next_obs, after)):
        pairs = zip(tree_leaves(got), tree_leaves(reader.observe(want)), strict=True)
        assert all(torch.equal(a, b) for a, b in pairs)
    screens = batch.obs["a"] if isinstance(spec, dict) else batch.obs
    assert (screens[:, 0] == 0).any() and (screens[:, -1] > 0).all()  # some lie near a start


def test_rows_before_a_start_are_read_one_by_one(threads):
    """No item is drawn there; a reader that is asked must still not mix two games."""
    store = filled(SCREEN)
    reader, ring = store.view.reader, store.ring
    after = np.flatnonzero(ring.arrays["begin"])
    after = after[after >= 4 * COLUMNS]
    one, two = reader.pair(after - COLUMNS, after)()
    assert torch.equal(one, reader.observe(after - COLUMNS))
    assert torch.equal(two, reader.observe(after))
    assert (two[:, :-1] == 0).all() and (one[:, -2] > 0).any()


def test_a_sample_that_is_kept_is_not_overwritten_by_the_next(threads):
    """With several threads large frames come in memory that is used again."""
    store = filled(SCREEN)
    first = store.sample()
    obs, after = first.batch.obs.clone(), first.batch.next_obs.clone()
    for _ in range(6):
        store.sample()
    assert torch.equal(first.batch.obs, obs) and torch.equal(first.batch.next_obs, after)


@needs_gpu
@pytest.mark.parametrize("n", [1, 3])
def test_rows_on_a_gpu_are_those_of_the_host(n):
    here, there = filled(SCREEN, 80, n=n), filled(SCREEN, 80, n=n, device="cuda")
    assert (here.sampler.members.valid == there.sampler.members.valid).all()
    slots = torch.from_numpy(np.flatnonzero(here.sampler.members.valid))
    one, two = (s.view.gather(s.ring.lift(slots)) for s in (here, there))
    for x, y in zip(one, two, strict=True):
        if isinstance(x, torch.Tensor):  # discounts differ by 6e-8, numpy against torch
            torch.testing.assert_close(x, y.cpu(), rtol=1e-6, atol=1e-6)
    assert torch.equal(*(tensor(s.ids.of(s.ring.lift(slots))).cpu() for s in (here, there)))
