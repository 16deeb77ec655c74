"""Who is drawn and with which importance weight: uniform and proportional. No data, no episodes.

A sampler sees flat slots. Items enter with `put` when they become drawable (fresh=True) or leave
(fresh=False), and are drawn with replacement.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from ludus.contract import Prioritized
from ludus.replay.samplers.host_tree import HostTree

Where = slice | np.ndarray[Any, Any]
Bools = np.ndarray[Any, Any]


class Draw(NamedTuple):
    slots: Tensor  # [B] int64, flat
    weight: Tensor  # [B] float32


class Drawn(NamedTuple):
    """Slots before their weights are known."""

    slots: Tensor  # [B] int64, flat
    value: Tensor  # [B] what each was drawn in proportion to


class Members:
    """The set of drawable slots and its size, on the host."""

    def __init__(self, slots: int) -> None:
        self.valid = np.zeros(slots, bool)
        self.count = 0

    def put(self, where: Where, valid: Bools) -> None:
        self.count += int(np.count_nonzero(valid)) - int(np.count_nonzero(self.valid[where]))
        self.valid[where] = valid


class Sampler(Protocol):
    members: Members

    def put(self, where: Where, valid: Bools, fresh: Bools, priority: Tensor | None) -> None: ...

    def draw(self, batch: int, rng: torch.Generator, written: int) -> Drawn: ...

    def weights(self, value: Tensor, beta: float) -> Tensor: ...

    def feedback(self, slots: Tensor, priority: Tensor) -> None: ...

    def state(self) -> tuple[dict[str, Tensor], dict[str, float]]: ...

    def load(self, tensors: dict[str, Tensor], numbers: dict[str, float]) -> None: ...


class UniformSampler:
    """Every drawable slot equally likely: draw any written slot, redraw those not drawable."""

    def __init__(self, slots: int, device: torch.device) -> None:
        self.members, self.device = Members(slots), device

    def put(self, where: Where, valid: Bools, fresh: Bools, priority: Tensor | None) -> None:
        self.members.put(where, valid)

    def draw(self, batch: int, rng: torch.Generator, written: int) -> Drawn:
        valid = self.members.valid
        slots = torch.randint(written, (batch,), generator=rng)
        view = slots.numpy()
        for _ in range(8):
            bad = np.flatnonzero(~valid.take(view))
            if not len(bad):
                break
            view[bad] = torch.randint(written, (len(bad),), generator=rng).numpy()
        else:  # few of the written slots are drawable: list them
            every = np.flatnonzero(valid[:written])
            bad = np.flatnonzero(~valid.take(view))
            view[bad] = every[torch.randint(len(every), (len(bad),), generator=rng).numpy()]
        return Drawn(slots.to(self.device), torch.ones(batch, device=self.device))

    def weights(self, value: Tensor, beta: float) -> Tensor:
        """All alike, whatever beta is."""
        return value

    def feedback(self, slots: Tensor, priority: Tensor) -> None:
        """Uniform sampling has no use for priorities."""

    def state(self) -> tuple[dict[str, Tensor], dict[str, float]]:
        return {"valid": torch.from_numpy(self.members.valid.copy())}, {}

    def load(self, tensors: dict[str, Tensor], numbers: dict[str, float]) -> None:
        self.members.valid[:] = tensors["valid"].numpy()
        self.members.count = int(self.members.valid.sum())


class PrioritizedSampler:
    """P(i) = p_i^alpha / sum p^alpha, one draw from each of B equal shares of the mass.

    w_i = (N P(i))^-beta with N the number of drawable items now, divided by the largest weight of
    the batch, or of the whole buffer, or not at all. Schaul et al. 2016, section 3.
    """

    def __init__(self, config: Prioritized, slots: int, device: torch.device) -> None:
        self.config, self.device = config, device
        self.members = Members(slots)
        self.tree = HostTree(slots)
        self.max_priority = 1.0  # largest seen; what new items get
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

    def draw(self, batch: int, rng: torch.Generator, written: int) -> Drawn:
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
        return Drawn(torch.from_numpy(slots).to(self.device), torch.from_numpy(value))

    def weights(self, value: Tensor, beta: float) -> Tensor:
        """Importance weights of leaves with these values."""
        if self.config.normalize == "none":
            scaled = value * (self.members.count / self.tree.total)
        else:  # N and the sum cancel
            scaled = value / (self._least() if self.config.normalize == "buffer" else value.min())
        return scaled.pow_(-beta).to(self.device, torch.float32)

    def _least(self) -> Tensor:
        """The smallest priority of a drawable item: a full scan.

        One CPU thread took 1.2 ms for a million slots, and 11 ms when selecting leaves > 0 first.
        """
        leaves = self.tree.leaves[: self.tree.capacity]
        return torch.where(leaves > 0, leaves, torch.inf).min()

    def feedback(self, slots: Tensor, priority: Tensor) -> None:
        p = priority.to("cpu", torch.float64).numpy() + self.config.epsilon
        low, high = float(p.min()), float(p.max())
        if not 0 <= low <= high < float("inf"):
            raise ValueError(f"priorities must be finite and not negative; got {low} to {high}")
        self.max_priority = max(self.max_priority, high)
        # torch's power: numpy's differs in the last bit, and so would what is drawn.
        self.tree.set(slots.cpu().numpy(), torch.from_numpy(p).pow_(self.config.alpha).numpy())

    def state(self) -> tuple[dict[str, Tensor], dict[str, float]]:
        tensors = {
            "valid": torch.from_numpy(self.members.valid.copy()),
            "leaves": self.tree.leaves[: self.tree.capacity].clone(),
        }
        return tensors, {"max_priority": self.max_priority}

    def load(self, tensors: dict[str, Tensor], numbers: dict[str, float]) -> None:
        self.members.valid[:] = tensors["valid"].numpy()
        self.members.count = int(self.members.valid.sum())
        self.tree.leaves[: self.tree.capacity] = tensors["leaves"]
        self.tree.rebuild()
        self.max_priority = float(numbers["max_priority"])
