"""The least positive leaf of a sum tree, at a cost that does not grow with the number of leaves.

`MinTree` runs in plain tensor operations on any device and waits for none. `HostMins` is the same
tree on a CPU, by C where it could be compiled, else by numpy. A minimum is exact, so all agree to
the bit with a scan of the leaves.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ludus.replay.native import bindings as native

Array = np.ndarray[Any, Any]


def min_nodes(nodes: int, width: int) -> list[int]:
    """Nodes of each level above `nodes` nodes of leaves; the last level has one."""
    sizes = [-(-nodes // width)]
    while sizes[-1] > 1:
        sizes.append(-(-sizes[-1] // width))
    return sizes


class MinTree:
    """Each entry is the least positive leaf below it, infinity where there is none."""

    def __init__(self, leaves: Tensor) -> None:
        self.leaves = leaves  # [nodes, width], the sum tree's own
        nodes, self.width = leaves.shape
        self.levels = [
            torch.full((n, self.width), torch.inf, dtype=leaves.dtype, device=leaves.device)
            for n in min_nodes(nodes, self.width)
        ]
        self._parents = [level.view(-1) for level in self.levels]

    @property
    def least(self) -> Tensor:
        """The least positive leaf, 0-d; infinity if there is none."""
        return self.levels[-1].min()

    @property
    def nbytes(self) -> int:
        return sum(level.numel() * level.element_size() for level in self.levels)

    def set(self, where: slice | Tensor) -> None:
        """These leaves were written."""
        below = self.leaves
        if isinstance(where, slice):
            lo, hi = where.start, where.stop
            for level, parent in zip(self.levels, self._parents, strict=True):
                lo, hi = lo // self.width, (hi - 1) // self.width + 1
                parent[lo:hi] = _least(below[lo:hi])
                below = level
            return
        node = where
        for level, parent in zip(self.levels, self._parents, strict=True):
            node = node.div(self.width, rounding_mode="floor")
            parent.scatter_(0, node, _least(below.index_select(0, node)))
            below = level

    def rebuild(self) -> None:
        """All leaves were written."""
        self.set(slice(0, self.leaves.numel()))


def _least(nodes: Tensor) -> Tensor:
    return torch.where(nodes > 0, nodes, torch.inf).amin(1)


class HostMins:
    """A `MinTree` in host memory, updated by C or numpy."""

    def __init__(self, tree: MinTree) -> None:
        self.width = tree.width
        self._leaves: Array = tree.leaves.numpy()
        self._levels: list[Array] = [level.numpy() for level in tree.levels]
        self._library = native.library() if len(self._levels) <= native.LEVELS else None
        if self._library is not None:
            self._place = native.MinsStruct()
            self._place.levels[0] = native.address(self._leaves)
            for d, level in enumerate(self._levels):
                self._place.levels[d + 1] = native.address(level)
            self._place.depth, self._place.width = len(self._levels), self.width
            self._at = ctypes.addressof(self._place)

    @property
    def least(self) -> float:
        return float(self._levels[-1].min())

    def set(self, where: slice | Array) -> None:
        """These leaves were written."""
        if isinstance(where, slice):
            self._set_range(where.start, where.stop)
        elif self._library is not None:
            where = np.ascontiguousarray(where, np.int64)
            self._library.ludus_mins_set(self._at, native.address(where), len(where))
        else:
            below, node = self._leaves, where
            for level in self._levels:
                node = node // self.width
                level.reshape(-1)[node] = _least_of(below[node])
                below = level

    def _set_range(self, lo: int, hi: int) -> None:
        if self._library is not None:
            self._library.ludus_mins_range(self._at, lo, hi)
            return
        below = self._leaves
        for level in self._levels:
            lo, hi = lo // self.width, (hi - 1) // self.width + 1
            level.reshape(-1)[lo:hi] = _least_of(below[lo:hi])
            below = level


def _least_of(nodes: Array) -> Array:
    least: Array = np.where(nodes > 0, nodes, np.inf).min(1)
    return least
