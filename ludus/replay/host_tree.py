"""The sum tree of a CPU, to the bit what `SumTree` computes there.

torch searches 512 values with all its threads, which costs more than the search and stalls where
another process has one of the cores; and between two gathers of many megabytes no code is in the
caches, so what counts is how much of it runs. Most of numpy's is smaller.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from ludus.replay.sumtree import SumTree

Array = np.ndarray[Any, Any]


class HostTree(SumTree):
    """`SumTree` on the CPU, one thread."""

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self._leaves, self._edges = self.leaves.numpy(), self.edges.numpy()
        # Of each level its nodes and the sums of its nodes, leaves first.
        self._numpy = [
            (level.numpy(), parent.numpy())
            for level, parent in zip(self.levels, self._parents, strict=True)
        ]
        self._scratch: dict[int, tuple[Tensor, Tensor]] = {}

    def set(self, where: slice | Tensor, values: Tensor) -> None:
        if isinstance(where, slice):
            super().set(where, values)
            return
        node = where.numpy()
        self._leaves[node] = values.numpy()
        rows, _ = self._nodes(len(node))
        for level, parent in self._numpy:
            node = node // self.width
            level.take(node, 0, out=rows.numpy(), mode="clip")
            parent[node] = rows.sum(1).numpy()

    def find(self, u: Tensor) -> Tensor:
        ends = self.edges[1:]
        torch.cumsum(self.top, 0, out=ends)
        x = u.numpy() * self._edges[-1]
        i = self._edges[1:].searchsorted(x, "right")
        np.minimum(i, len(self._edges) - 2, out=i)
        x -= self._edges.take(i)
        rows, edges = self._nodes(len(i))
        for level, _ in reversed(self._numpy):
            level.take(i, 0, out=rows.numpy(), mode="clip")
            torch.cumsum(rows, 1, out=edges)
            beyond = edges.numpy() > x[:, None]
            beyond[:, -1] = True  # rounding may leave x behind the last edge
            k = beyond.argmax(1)
            if level is not self._numpy[0][0]:
                at = np.arange(len(i)), k
                x -= edges.numpy()[at] - rows.numpy()[at]
            i *= self.width
            i += k
        np.minimum(i, self.capacity - 1, out=i)
        return torch.from_numpy(i)

    def _nodes(self, count: int) -> tuple[Tensor, Tensor]:
        """Room for that many nodes and for their cumulative sums."""
        if count not in self._scratch:
            if len(self._scratch) > 4:  # batches of many sizes: no reason to keep room for all
                self._scratch.clear()
            shape = (2, count, self.width)
            made = torch.zeros(shape, dtype=torch.float64)
            self._scratch[count] = made[0], made[1]
        return self._scratch[count]
