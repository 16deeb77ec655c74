"""How many numbers a draw reads, as the buffer grows. Counted, not timed: seconds are in
benchmarks/sample_cost.py."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ludus.contract import Prioritized
from ludus.replay.samplers.device import DeviceSampler
from ludus.replay.samplers.host_tree import HostTree
from ludus.replay.samplers.prioritized import PrioritizedSampler
from ludus.replay.samplers.uniform import UniformSampler
from tests.replay.test_native import without
from tests.skips import needs_compiler

CPU = torch.device("cpu")
PICKS = ("index_select", "gather", "take", "index", "searchsorted", "scatter_", "select")
NORMALIZE = ["batch", "buffer", "none"]


class TensorReads(TorchDispatchMode):
    """Counts the elements that torch's operations read: all of their inputs, but of one that picks
    some elements only those."""

    elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if not func.is_view and isinstance(out, torch.Tensor):
            given = [x.numel() for x in (*args, out) if isinstance(x, torch.Tensor)]
            name = func.overloadpacket.__name__
            self.elements += out.numel() if name in PICKS else max(given)
        return out


class Counted(np.ndarray):
    """An array that counts its elements as they are read."""

    elements = 0

    @classmethod
    def read(cls, *arrays):
        cls.elements += sum(np.asarray(x).size for x in arrays)

    def __getitem__(self, at):
        out = super().__getitem__(at)
        if np.may_share_memory(np.asarray(out), np.asarray(self)):  # a view: nothing is read yet
            return out
        self.read(out)
        return np.asarray(out)

    def take(self, at, *args, **kwargs):
        self.read(at)
        return np.asarray(self).take(at, *args, **kwargs)

    def cumsum(self, *args, **kwargs):
        self.read(self)
        return np.asarray(self).cumsum(*args, **kwargs)

    def searchsorted(self, values, *args, **kwargs):
        self.read(values)
        return np.asarray(self).searchsorted(values, *args, **kwargs)

    def __array_ufunc__(self, ufunc, method, *inputs, out=None, **kwargs):
        self.read(*inputs)
        plain = [np.asarray(x) if isinstance(x, Counted) else x for x in inputs]
        if out is not None:
            kwargs["out"] = tuple(np.asarray(x) for x in out)
        return getattr(ufunc, method)(*plain, **kwargs)

    def __array_function__(self, func, types, args, kwargs):
        self.read(*(x for x in args if isinstance(x, Counted)))
        plain = [np.asarray(x) if isinstance(x, Counted) else x for x in args]
        kwargs = {k: np.asarray(x) if isinstance(x, Counted) else x for k, x in kwargs.items()}
        return func(*plain, **kwargs)


def count_arrays(*parts):
    """Let the arrays of these objects count."""
    for part in parts:
        for name, value in vars(part).items():
            if isinstance(value, np.ndarray):
                setattr(part, name, value.view(Counted))
            elif isinstance(value, list) and value and isinstance(value[0], np.ndarray):
                setattr(part, name, [x.view(Counted) for x in value])


def full(make, slots):
    """A sampler of many items with various priorities, and one empty slot in fifty."""
    sampler = make(slots)
    yes = np.arange(slots) % 50 > 0
    sampler.put(slice(0, slots), yes, yes, torch.rand(slots) + 0.1)
    return sampler


def reads(sampler, slots):
    """Elements read for one draw of 512 and its weights."""
    tree = getattr(sampler, "tree", None) or getattr(sampler, "ranks", None)
    count_arrays(sampler.members)
    if isinstance(tree, HostTree):
        count_arrays(tree, *([tree.mins] if tree.mins is not None else []))
    Counted.elements = 0
    with TensorReads() as counted:
        draw = sampler.draw(512, torch.Generator().manual_seed(1), slots)
        sampler.weights(draw.value, 0.5)
    return counted.elements + Counted.elements


def growth(make):
    small, large = (reads(full(make, slots), slots) for slots in (10_000, 2_000_000))
    assert small > 512
    return large / small


@pytest.mark.accept(92)
@pytest.mark.parametrize("normalize", NORMALIZE)
@pytest.mark.parametrize("kind", [PrioritizedSampler, DeviceSampler])
def test_a_prioritized_draw_reads_little_more_of_a_large_buffer(kind, normalize):
    """At most 2.5 times the elements from 1e4 to 2e6 items."""
    config = Prioritized(normalize=normalize)
    assert without(lambda: growth(lambda slots: kind(config, slots, CPU))) <= 2.5


@pytest.mark.accept(92)
@needs_compiler
@pytest.mark.parametrize("normalize", NORMALIZE)
def test_compiled_code_looks_at_no_leaf_that_was_not_drawn(normalize):
    """Every leaf off the drawn nodes is changed behind the tree's back: a scan would see it."""
    sampler = full(lambda slots: PrioritizedSampler(Prioritized(normalize=normalize), slots, CPU),
                   200_000)  # fmt: skip
    rng = torch.Generator()
    draw = sampler.draw(64, rng.manual_seed(1), 200_000)
    want = sampler.weights(draw.value.clone(), 0.5)
    leaves = sampler.tree.leaves.view(-1, sampler.tree.width)
    other = torch.ones(len(leaves), dtype=torch.bool)
    other[draw.slots // sampler.tree.width] = False
    leaves[other] = 1e-9
    again = sampler.draw(64, rng.manual_seed(1), 200_000)
    assert torch.equal(again.slots, draw.slots) and torch.equal(again.value, draw.value)
    assert torch.equal(sampler.weights(again.value, 0.5), want)


def test_a_uniform_draw_reads_little_more_of_a_large_buffer():
    def make(slots):
        return UniformSampler(slots, CPU)

    assert without(lambda: growth(make)) <= 2.5


def test_a_uniform_draw_of_few_starts_reads_little_more_of_a_large_buffer():
    def make(slots):
        sampler = UniformSampler(slots, CPU, HostTree(slots))
        put = sampler.put
        few = np.arange(slots) % 40 == 0
        sampler.put = lambda where, valid, fresh, _: put(where, few, few, None)
        return sampler

    assert without(lambda: growth(make)) <= 2.5
