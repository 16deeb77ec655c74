"""The sum tree of a CPU on numpy arrays, to the bit what `SumTree` computes there.

torch searches 512 values with all its threads, which costs more than the search and stalls where
another process has one of the cores; and between two gathers of many megabytes no code is in the
caches, so what counts is how much of it runs. Most of numpy's is smaller.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from ludus.replay.sumtree import TOP, WIDTH, SumTree

Array = np.ndarray[Any, Any]
_SIZES = 4  # of batches for which room is kept


class HostTree:
    """Non-negative leaves in float64, drawn in proportion to their values."""

    def __init__(self, capacity: int, width: int = WIDTH, top: int = TOP) -> None:
        self.capacity, self.width = capacity, width
        self._tree = tree = SumTree(capacity, "cpu", width, top)
        self.leaves = tree.leaves
        self.values: Array = tree.leaves.numpy()  # the same memory
        self._top, self._ends = tree.top, tree.edges[1:]
        self._edges: Array = tree.edges.numpy()
        # Of each level its nodes, for torch and for numpy, and their sums, leaves first.
        above = [level.view(-1) for level in tree.levels[1:]] + [tree.top]
        self._levels = [
            (level, level.numpy(), sums.numpy())
            for level, sums in zip(tree.levels, above, strict=True)
        ]
        self._room: dict[int, tuple[Tensor, Array]] = {}

    @property
    def total(self) -> Tensor:
        return self._tree.total

    @property
    def nbytes(self) -> int:
        return self._tree.nbytes

    def rebuild(self) -> None:
        """Recompute every sum, after the leaves were written directly."""
        self._tree.rebuild()

    def set(self, where: slice | Array, values: Array) -> None:
        """Write leaves, one value each, and recompute the sums above them."""
        self.values[where] = values
        if isinstance(where, slice):
            lo, hi = where.start, where.stop
            for nodes, _, sums in self._levels:
                lo, hi = lo // self.width, (hi - 1) // self.width + 1
                sums[lo:hi] = nodes[lo:hi].sum(1).numpy()
            return
        node = where
        found, room = self._nodes(len(where))
        for _, level, sums in self._levels:
            node = node // self.width
            level.take(node, 0, out=room, mode="clip")
            sums[node] = found.sum(1).numpy()

    def find(self, u: Array) -> Array:
        """The leaf under each fraction u in [0, 1) of the total mass."""
        torch.cumsum(self._top, 0, out=self._ends)
        edges = self._edges
        x = u * edges[-1]
        i: Array = edges[1:].searchsorted(x, "right")
        np.minimum(i, len(edges) - 2, out=i)
        x -= edges.take(i)
        found, room = self._nodes(len(i))
        for nodes, level, _ in reversed(self._levels):
            level.take(i, 0, out=room, mode="clip")
            found.cumsum_(1)
            beyond = room > x[:, None]
            beyond[:, -1] = True  # rounding may leave x behind the last edge
            k = beyond.argmax(1)
            i *= self.width
            i += k
            if nodes is not self._levels[0][0]:
                x -= room[np.arange(len(i)), k] - level.reshape(-1).take(i)
        np.minimum(i, self.capacity - 1, out=i)
        return i

    def _nodes(self, count: int) -> tuple[Tensor, Array]:
        """Room for that many nodes, for torch and for numpy."""
        if count not in self._room:
            if len(self._room) >= _SIZES:
                self._room.clear()
            made = torch.zeros((count, self.width), dtype=torch.float64)
            self._room[count] = made, made.numpy()
        return self._room[count]
