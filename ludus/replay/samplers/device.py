"""Sampling on the device: every step is a fixed sequence of tensor operations.

Nothing here waits for a device or looks at a value, so drawing, learning and feedback can be
captured as one CUDA graph. Values that change between launches (beta, the largest priority) are
0-d tensors. The host keeps the set of drawable slots too, to count and to check.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ludus.contract import Prioritized
from ludus.replay.samplers.sum_tree import SumTree
from ludus.replay.samplers.uniform import Bools, Draw, Members, WeightedDraw, Where

# Fewer, wider levels than on a CPU: a kernel launch costs more than the sums it computes.
WIDTH, TOP = 128, 1 << 14
REDRAWS = 2  # rounding ends a search on an empty leaf once in a million; twice running is never


class DeviceSampler:
    """Uniform or proportional. Uniform is a tree of ones: exact, and never a rejected draw."""

    def __init__(self, config: Prioritized | None, slots: int, device: torch.device) -> None:
        self.config, self.device = config, device
        self.members = Members(slots)
        self.tree = SumTree(slots, device, WIDTH, TOP)
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
            all_ = self.tree.leaves if config.normalize == "buffer" else value
            least = torch.where(all_ > 0, all_, torch.inf).min()
            weight = (value / least) ** -self.beta
        return torch.where(value > 0, weight, 0.0).float()

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
        return [*self.tree.levels, self.tree.top, self.tree.edges, self.largest]

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
