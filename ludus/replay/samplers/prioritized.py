"""Proportional prioritized sampling on the host."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from ludus.contract import Prioritized
from ludus.replay.samplers.host_tree import HostTree
from ludus.replay.samplers.uniform import Bools, Draw, Members, Where


class PrioritizedSampler:
    """P(i) = p_i^alpha / sum p^alpha, one draw from each of B equal shares of the mass.

    w_i = (N P(i))^-beta with N the number of drawable items now, divided by the largest weight of
    the batch, or of the whole buffer, or not at all. Schaul et al. 2016, section 3.
    """

    def __init__(self, config: Prioritized, slots: int, device: torch.device) -> None:
        self.config, self.device = config, device
        self.members = Members(slots)
        self.tree = HostTree(slots, least=config.needs_least)
        self.max_priority = 1.0  # the largest so far, and the priority of new items
        self._steps: dict[int, Bools] = {}

    def put(self, where: Where, valid: Bools, fresh: Bools, priority: Tensor | None) -> None:
        if priority is None:
            value: Any = self.max_priority**self.config.alpha
        else:  # an actor computed them (Horgan et al. 2018)
            known = torch.where(priority.isfinite(), priority.double(), self.max_priority)
            value = ((known + self.config.epsilon) ** self.config.alpha).numpy(force=True)
        if valid is fresh:  # nothing older is touched
            self.tree.set(where, fresh * value)
        else:
            self.tree.set(where, np.where(fresh, value, valid * self.tree.values[where]))
        self.members.put(where, valid)

    def draw(self, batch: int, rng: torch.Generator, written: int) -> Draw:
        if batch not in self._steps:
            self._steps[batch] = np.arange(batch, dtype=np.float64)
        u = torch.rand(batch, generator=rng, dtype=torch.float64).numpy()
        slots, value = self.tree.find((u + self._steps[batch]) / batch)
        for _ in range(100):
            # Rounding may end a search on an empty leaf, about one draw in a million.
            if value.min() > 0:
                break
            u = torch.rand(batch, generator=rng, dtype=torch.float64).numpy()
            slots = np.where(value <= 0, self.tree.find(u)[0], slots)
            value = self.tree.values.take(slots)
        else:
            raise ValueError("every priority is zero: nothing can be drawn")
        return Draw(torch.from_numpy(slots).to(self.device), torch.from_numpy(value))

    def weights(self, value: Tensor, beta: float) -> Tensor:
        """Importance weights of leaves with these values."""
        if self.config.normalize == "none":
            scaled = value * (self.members.count / self.tree.total)
        else:  # N and the sum cancel
            scaled = value / (self._least() if self.config.needs_least else value.min())
        return scaled.pow_(-beta).to(self.device, torch.float32)

    def _least(self) -> float:
        """The smallest priority of a drawable item."""
        assert self.tree.mins is not None
        return self.tree.mins.least

    def feedback(self, slots: Tensor, priority: Tensor) -> None:
        p = priority.to("cpu", torch.float64).numpy() + self.config.epsilon
        low, high = float(p.min()), float(p.max())
        if not 0 <= low <= high < float("inf"):
            raise ValueError(f"priorities must be finite and not negative; got {low} to {high}")
        self.max_priority = max(self.max_priority, high)
        # torch's power: numpy's differs in the last bit, and so would the draws.
        self.tree.set(slots.cpu().numpy(), torch.from_numpy(p).pow_(self.config.alpha).numpy())

    def state(self) -> tuple[dict[str, Tensor], dict[str, float]]:
        leaves = self.tree.leaves[: self.tree.capacity].clone()
        return self.members.state() | {"leaves": leaves}, {"max_priority": self.max_priority}

    def load(self, tensors: dict[str, Tensor], numbers: dict[str, float]) -> None:
        self.members.load(tensors)
        self.tree.leaves[: self.tree.capacity] = tensors["leaves"]
        self.tree.rebuild()
        self.max_priority = float(numbers["max_priority"])
