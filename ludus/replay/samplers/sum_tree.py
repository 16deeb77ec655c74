"""A wide sum tree in plain tensor operations, the same on CPU and GPU. It knows no replay.

Two levels reach two million leaves: the top is one cumulative sum and one binary search, each
level below gathers one node per draw. Node sums are recomputed, never incremented: no drift.
"""

from __future__ import annotations

import torch
from torch import Tensor

# Measured at one million leaves, one CPU core, 512 draws: the cumulative sum over the 31k nodes of
# the top (28 us) costs what one more level of gathers would, and updates touch one level only.
WIDTH = 32
TOP = 1 << 15


def level_nodes(capacity: int, width: int = WIDTH, top: int = TOP) -> list[int]:
    """Nodes of each level, leaves first; the last number is also the size of the top."""
    nodes = [-(-capacity // width)]
    while nodes[-1] > top:
        nodes.append(-(-nodes[-1] // width))
    return nodes


def tree_bytes(capacity: int, width: int = WIDTH, top: int = TOP) -> int:
    """Memory of a tree, the scratch of its top included."""
    nodes = level_nodes(capacity, width, top)
    return 8 * (width * sum(nodes) + 2 * nodes[-1] + 1)


class SumTree:
    """Non-negative leaves in float64, drawn in proportion to their values."""

    def __init__(
        self, capacity: int, device: str | torch.device = "cpu", width: int = WIDTH, top: int = TOP
    ) -> None:
        self.capacity, self.width = capacity, width
        sizes = level_nodes(capacity, width, top)
        nodes = sizes[-1]

        def zeros(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.float64, device=device)

        self.levels = [zeros(n, width) for n in sizes]  # leaves first
        self.top = zeros(nodes)
        self.leaves = self.levels[0].view(-1)  # [>= capacity]
        self.edges = zeros(nodes + 1)  # scratch: cumulative sums of the top
        # Sums of level d are the entries of level d + 1, or of the top.
        self._parents = [level.view(-1) for level in self.levels[1:]] + [self.top]

    @property
    def total(self) -> Tensor:
        return self.top.sum()

    @property
    def nbytes(self) -> int:
        tensors = (*self.levels, self.top, self.edges)
        return sum(t.numel() * t.element_size() for t in tensors)

    def set(self, where: slice | Tensor, values: Tensor) -> None:
        """Write leaves, one value each, and recompute the sums above them."""
        if isinstance(where, slice):
            self.leaves[where] = values
            lo, hi = where.start, where.stop
            for level, parent in zip(self.levels, self._parents, strict=True):
                lo, hi = lo // self.width, (hi - 1) // self.width + 1
                torch.sum(level[lo:hi], 1, out=parent[lo:hi])
            return
        self.leaves.scatter_(0, where, values)  # index_put takes three times as long
        node = where
        for level, parent in zip(self.levels, self._parents, strict=True):
            node = node.div(self.width, rounding_mode="floor")
            parent.scatter_(0, node, level.index_select(0, node).sum(1))

    def rebuild(self) -> None:
        """Recompute every sum, after the leaves were written directly."""
        for level, parent in zip(self.levels, self._parents, strict=True):
            parent[: level.shape[0]] = level.sum(1)

    def find(self, u: Tensor) -> Tensor:
        """The leaf under each fraction u in [0, 1) of the total mass."""
        ends = self.edges[1:]
        torch.cumsum(self.top, 0, out=ends)
        x = u * ends[-1]
        i = torch.searchsorted(ends, x, right=True).clamp_(max=ends.numel() - 1)  # [B]
        x = x - self.edges.index_select(0, i)
        for level in reversed(self.levels):
            node = level.index_select(0, i)  # [B, width]
            edges = node.cumsum(1)
            k = torch.searchsorted(edges, x[:, None], right=True).clamp_(max=self.width - 1)
            i = torch.add(k[:, 0], i, alpha=self.width)
            if level is not self.levels[0]:
                x = x - (edges - node).gather(1, k)[:, 0]
        return i.clamp_(max=self.capacity - 1)
