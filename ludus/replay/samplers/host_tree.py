"""The sum tree of a CPU, searched and updated by C where it could be compiled, else by numpy.

Both add in the same order, so they agree to the bit. `SumTree` is the one of a device: the same
tree, whose sums a GPU may add in another order. torch searches 512 values with all its threads,
which costs more than the search and stalls where another process has one of the cores.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
from torch import Tensor

from ludus.replay.native import bindings as native
from ludus.replay.samplers.device import TOP, WIDTH, SumTree
from ludus.replay.samplers.min_tree import HostMins

Array = np.ndarray[Any, Any]


class HostTree:
    """Non-negative leaves in float64, drawn in proportion to their values. With `least` the least
    positive leaf is known, too."""

    def __init__(
        self, capacity: int, width: int = WIDTH, top: int = TOP, *, least: bool = False
    ) -> None:
        self.capacity, self.width = capacity, width
        self._tree = tree = SumTree(capacity, "cpu", width, top, least=least)
        self.mins = HostMins(tree.mins) if tree.mins is not None else None
        self.leaves = tree.leaves
        self.values: Array = tree.leaves.numpy()  # the same memory
        self._edges: Array = tree.edges.numpy()
        self._levels: list[Array] = [level.numpy() for level in tree.levels]
        # The sums of a level's nodes are the entries of the next, or of the top.
        self._sums = [level.reshape(-1) for level in self._levels[1:]] + [tree.top.numpy()]
        self._library = native.library() if len(self._levels) <= native.LEVELS else None
        if self._library is not None:
            self._place = self._describe()
            self._at = ctypes.addressof(self._place)

    def _describe(self) -> native.TreeStruct:
        place = native.TreeStruct()
        for d, level in enumerate(self._levels):
            place.levels[d], place.nodes[d] = native.address(level), len(level)
        place.depth, place.width = len(self._levels), self.width
        place.levels[place.depth] = native.address(self._sums[-1])
        place.edges, place.top = native.address(self._edges), len(self._sums[-1])
        place.capacity = self.capacity
        return place

    @property
    def total(self) -> Tensor:
        return self._tree.total

    @property
    def nbytes(self) -> int:
        return self._tree.nbytes

    def rebuild(self) -> None:
        """Recompute every sum, after the leaves were written directly."""
        self._sum_range(0, len(self.values))
        if self.mins is not None:
            self.mins.set(slice(0, len(self.values)))

    def set(self, where: slice | Array, values: Array) -> None:
        """Write leaves, one value each, and recompute the sums above them. Of several values for
        one leaf the last stays."""
        if isinstance(where, slice):
            self.values[where] = values
            self._sum_range(where.start, where.stop)
        else:
            self._set_each(where, values)
        if self.mins is not None:
            self.mins.set(where)

    def _set_each(self, where: Array, values: Array) -> None:
        if values.shape != where.shape:  # C would read beyond them
            raise ValueError(f"values {values.shape} for leaves {where.shape}")
        if self._library is not None:
            where = np.ascontiguousarray(where, np.int64)
            values = np.ascontiguousarray(values, np.float64)
            at, given = native.address(where), native.address(values)
            self._library.ludus_tree_set(self._at, at, given, len(where))
            return
        self.values[where] = values
        node = where
        for level, sums in zip(self._levels, self._sums, strict=True):
            node = node // self.width
            sums[node] = add_halves(level[node])

    def _sum_range(self, lo: int, hi: int) -> None:
        if self._library is not None:
            self._library.ludus_tree_range(self._at, lo, hi)
            return
        for level, sums in zip(self._levels, self._sums, strict=True):
            lo, hi = lo // self.width, (hi - 1) // self.width + 1
            sums[lo:hi] = add_halves(level[lo:hi])

    def find(self, u: Array) -> tuple[Array, Array]:
        """The leaf under each fraction u in [0, 1) of the total mass, and its value."""
        if self._library is not None:
            found, values = np.empty(len(u), np.int64), np.empty(len(u))
            self._library.ludus_tree_find(
                self._at, native.address(u), len(u), native.address(found), native.address(values)
            )
            return found, values
        edges = self._edges
        np.cumsum(self._sums[-1], out=edges[1:])
        x = u * edges[-1]
        i: Array = np.minimum(edges[1:].searchsorted(x, "right"), len(edges) - 2)
        x -= edges[i]
        for level in reversed(self._levels):
            i = np.minimum(i, len(level) - 1)  # rounding may leave x past the last node
            node = level[i]  # [B, width]
            ends = node.cumsum(1)
            beyond = ends > x[:, None]
            beyond[:, -1] = True  # or past the last edge
            k = beyond.argmax(1)
            each = np.arange(len(i))
            x -= ends[each, k] - node[each, k]
            i = i * self.width + k
        i = np.minimum(i, self.capacity - 1)
        return i, self.values[i]


def add_halves(nodes: Array) -> Array:
    """The sum of each node [n, width]: halves are added, then halves of that. An order that any
    implementation can keep, and that vector units are fast in."""
    part = nodes.copy()
    n = part.shape[1]
    while n > 1:
        half = (n + 1) // 2
        part[:, : n - half] += part[:, half:n]
        n = half
    return part[:, 0]
