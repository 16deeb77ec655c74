"""The sum tree in plain tensor operations, and sampling by it on the device.

Nothing here waits for a device or looks at a value, so drawing, learning and feedback can be
captured as one CUDA graph. Values that change between launches (beta, the largest priority) are
0-d tensors. The host keeps the set of drawable slots too, to count and to check.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ludus.contract import Prioritized
from ludus.replay.samplers.min_tree import MinTree, min_nodes
from ludus.replay.samplers.uniform import Bools, Draw, Members, WeightedDraw, Where

# Measured at one million leaves, one CPU core, 512 draws: the cumulative sum over the 31k nodes of
# the top (28 us) costs what one more level of gathers would, and updates touch one level only.
WIDTH = 32
TOP = 1 << 15
# Fewer, wider levels than on a CPU: a kernel launch costs more than the sums it computes.
DEVICE_WIDTH, DEVICE_TOP = 128, 1 << 14
REDRAWS = 2  # rounding ends a search on an empty leaf once in a million; twice running is never


def level_nodes(capacity: int, width: int = WIDTH, top: int = TOP) -> list[int]:
    """Nodes of each level, leaves first; the last number is also the size of the top."""
    nodes = [-(-capacity // width)]
    while nodes[-1] > top:
        nodes.append(-(-nodes[-1] // width))
    return nodes


def tree_bytes(capacity: int, width: int = WIDTH, top: int = TOP, least: bool = False) -> int:
    """Memory of a tree, the scratch of its top included."""
    nodes = level_nodes(capacity, width, top)
    mins = min_nodes(nodes[0], width) if least else []
    return 8 * (width * sum((*nodes, *mins)) + 2 * nodes[-1] + 1)


class SumTree:
    """Non-negative leaves in float64, drawn in proportion to their values, on a CPU or a GPU.

    Two levels reach two million leaves: the top is one cumulative sum and one binary search, each
    level below gathers one node per draw. Node sums are recomputed, never incremented: no drift.
    With `least` it also keeps the least positive leaf.
    """

    def __init__(
        self,
        capacity: int,
        device: str | torch.device = "cpu",
        width: int = WIDTH,
        top: int = TOP,
        *,
        least: bool = False,
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
        self.mins = MinTree(self.levels[0]) if least else None

    @property
    def total(self) -> Tensor:
        return self.top.sum()

    @property
    def nbytes(self) -> int:
        return sum(t.numel() * t.element_size() for t in self.tensors())

    def tensors(self) -> list[Tensor]:
        """All that the tree holds and writes."""
        mins = self.mins.levels if self.mins is not None else []
        return [*self.levels, self.top, self.edges, *mins]

    def set(self, where: slice | Tensor, values: Tensor) -> None:
        """Write leaves, one value each, and recompute the sums above them."""
        if isinstance(where, slice):
            self.leaves[where] = values
            if self.mins is not None:
                self.mins.set(where)
            lo, hi = where.start, where.stop
            for level, parent in zip(self.levels, self._parents, strict=True):
                lo, hi = lo // self.width, (hi - 1) // self.width + 1
                torch.sum(level[lo:hi], 1, out=parent[lo:hi])
            return
        self.leaves.scatter_(0, where, values)  # index_put takes three times as long
        if self.mins is not None:
            self.mins.set(where)
        node = where
        for level, parent in zip(self.levels, self._parents, strict=True):
            node = node.div(self.width, rounding_mode="floor")
            parent.scatter_(0, node, level.index_select(0, node).sum(1))

    def rebuild(self) -> None:
        """Recompute every sum, after the leaves were written directly."""
        for level, parent in zip(self.levels, self._parents, strict=True):
            parent[: level.shape[0]] = level.sum(1)
        if self.mins is not None:
            self.mins.rebuild()

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


class DeviceSampler:
    """Uniform or proportional. Uniform is a tree of ones: exact, and never a rejected draw."""

    def __init__(self, config: Prioritized | None, slots: int, device: torch.device) -> None:
        self.config, self.device = config, device
        self.members = Members(slots)
        self.needs_least = config is not None and config.needs_least
        self.tree = SumTree(slots, device, DEVICE_WIDTH, DEVICE_TOP, least=self.needs_least)
        self.largest = torch.ones((), dtype=torch.float64, device=device)  # of new items
        self.beta = torch.zeros((), dtype=torch.float64, device=device)
        self.count = torch.zeros((), dtype=torch.float64, device=device)  # drawable items
        self.rng = torch.Generator(device=device)
        self._steps: dict[int, Tensor] = {}

    @property
    def max_priority(self) -> float:
        return float(self.largest)

    def put(self, where: Where, valid: Bools, fresh: Bools, priority: Tensor | None) -> None:
        at = where if isinstance(where, slice) else self._to_device(torch.from_numpy(where))
        new = self._to_device(torch.from_numpy(fresh))
        if self.config is None:
            value = torch.ones((), dtype=torch.float64, device=self.device)
        else:
            if priority is None:
                start = self.largest
            else:  # an actor computed them (Horgan et al. 2018)
                known = self._to_device(priority).double()
                known = torch.where(known.isfinite(), known, self.largest)
                start = known + self.config.epsilon
            value = start**self.config.alpha
        if valid is fresh:
            self.tree.set(at, new.double() * value)
        else:
            kept = self._to_device(torch.from_numpy(valid)) * self.tree.leaves[at]
            self.tree.set(at, torch.where(new, value, kept))
        self.members.put(where, valid)
        self.count.fill_(self.members.count)

    def _to_device(self, x: Tensor) -> Tensor:
        if x.device.type == self.device.type:  # "cuda" and "cuda:0" are the same, yet not equal
            return x
        # Through pinned memory: a copy from pageable memory would wait for the stream.
        return x.pin_memory().to(self.device, non_blocking=True)

    def draw(self, batch: int, rng: torch.Generator, written: int) -> Draw:
        return self._find(batch)

    def weights(self, value: Tensor, beta: float) -> Tensor:
        self.beta.fill_(beta)
        return self._weights(value)

    def draw_on_device(self, batch: int) -> WeightedDraw:
        """Stratified draws and their weights, from what is on the device alone."""
        slots, value = self._find(batch)
        return WeightedDraw(slots, self._weights(value))

    def _find(self, batch: int) -> Draw:
        u = torch.rand(batch, generator=self.rng, dtype=torch.float64, device=self.device)
        if batch not in self._steps:
            self._steps[batch] = torch.arange(batch, dtype=torch.float64, device=self.device)
        slots = self.tree.find((u + self._steps[batch]) / batch)
        value = self.tree.leaves.index_select(0, slots)
        for _ in range(REDRAWS - 1):
            u = torch.rand(batch, generator=self.rng, dtype=torch.float64, device=self.device)
            again = self.tree.find(u)
            slots = torch.where(value > 0, slots, again)
            value = self.tree.leaves.index_select(0, slots)
        return Draw(slots, value)

    def _weights(self, value: Tensor) -> Tensor:
        config = self.config
        if config is None:
            return torch.ones_like(value, dtype=torch.float32)
        if config.normalize == "none":
            weight = (value * (self.count / self.tree.total)) ** -self.beta
        else:
            weight = (value / self._least(value)) ** -self.beta
        return torch.where(value > 0, weight, 0.0).float()

    def _least(self, value: Tensor) -> Tensor:
        """The smallest priority of the buffer, or of a batch with these."""
        if not self.needs_least:
            return torch.where(value > 0, value, torch.inf).min()
        assert self.tree.mins is not None
        return self.tree.mins.least

    def feedback(self, slots: Tensor, priority: Tensor) -> None:
        if self.config is not None:
            self.feedback_on_device(slots.to(self.device), priority)

    def feedback_on_device(self, slots: Tensor, priority: Tensor) -> None:
        """New priorities of slots just drawn; one that is not finite leaves the old value, and a
        slot that may not be drawn stays so."""
        assert self.config is not None
        p = priority.double() + self.config.epsilon
        fine = torch.isfinite(p) & (p >= 0)
        p = torch.where(fine, p, 0.0)
        torch.maximum(self.largest, p.max(), out=self.largest)
        old = self.tree.leaves.index_select(0, slots)
        self.tree.set(slots, torch.where(fine & (old > 0), p**self.config.alpha, old))

    def changing(self) -> list[Tensor]:
        """The tensors that drawing and feedback write."""
        return [*self.tree.tensors(), self.largest]

    def state(self) -> tuple[dict[str, Tensor], dict[str, float]]:
        tensors = self.members.state()
        if self.config is None:
            return tensors, {}
        tensors["leaves"] = self.tree.leaves[: self.tree.capacity].cpu().clone()
        return tensors, {"max_priority": self.max_priority}

    def load(self, tensors: dict[str, Tensor], numbers: dict[str, float]) -> None:
        self.members.load(tensors)
        self.count.fill_(self.members.count)
        leaves = tensors["valid"].double() if self.config is None else tensors["leaves"]
        self.tree.leaves[: self.tree.capacity] = leaves.to(self.device)
        self.tree.rebuild()
        if self.config is not None:
            self.largest.fill_(float(numbers["max_priority"]))
