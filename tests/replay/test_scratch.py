"""Memory of large samples is used again, and never while somebody holds it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ludus.replay.native.bindings import KEPT, Scratch

BYTES = np.dtype(np.uint8)


@pytest.mark.parametrize(
    "hold",
    [lambda a: a, lambda a: a[1:, 2:], lambda a: torch.from_numpy(a).view(2, -1)[1], np.transpose],
)
def test_what_is_held_is_not_taken_and_what_is_dropped_is(hold):
    scratch = Scratch()
    first = scratch.take((4, 8), BYTES)
    first[:] = 7
    address, held = first.ctypes.data, hold(first)
    del first
    second = scratch.take((4, 8), BYTES)
    assert second.ctypes.data != address
    second[:] = 1
    assert bool((held == 7).all())
    del held
    assert scratch.take((4, 8), BYTES).ctypes.data == address


def test_another_shape_or_type_is_another_array():
    scratch = Scratch()
    scratch.take((4, 8), BYTES)
    assert scratch.take((8, 4), BYTES).shape == (8, 4)
    assert scratch.take((4, 8), np.dtype(np.float32)).dtype == np.float32


def test_no_more_than_a_few_are_kept():
    scratch = Scratch()
    held = [scratch.take((2,), BYTES) for _ in range(KEPT + 3)]
    assert len({a.ctypes.data for a in held}) == KEPT + 3
    assert len(scratch._arrays) == KEPT
