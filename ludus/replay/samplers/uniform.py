"""The protocol of a sampler, the set of drawable slots, and the uniform sampler.

A sampler sees flat slots: no data, no episodes. Items enter with `put` when they become
drawable (fresh=True) or leave (fresh=False), and are drawn with replacement.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from ludus.replay.samplers.host_tree import HostTree

Where = slice | np.ndarray[Any, Any]
Bools = np.ndarray[Any, Any]


class Draw(NamedTuple):
    slots: Tensor  # [B] int64, flat
    value: Tensor  # [B] each slot was drawn in proportion to its value


class WeightedDraw(NamedTuple):
    slots: Tensor  # [B] int64, flat
    weight: Tensor  # [B] float32, importance weights


class Members:
    """The set of drawable slots and its size, on the host."""

    def __init__(self, slots: int) -> None:
        self.valid = np.zeros(slots, bool)
        self.count = 0

    def put(self, where: Where, valid: Bools) -> None:
        self.count += int(np.count_nonzero(valid)) - int(np.count_nonzero(self.valid[where]))
        self.valid[where] = valid

    def state(self) -> dict[str, Tensor]:
        return {"valid": torch.from_numpy(self.valid.copy())}

    def load(self, tensors: dict[str, Tensor]) -> None:
        self.valid[:] = tensors["valid"].numpy()
        self.count = int(self.valid.sum())


@runtime_checkable
class Ranking(Protocol):
    """A sampler that ranks items by features."""

    def rank(self, slots: Tensor, features: Tensor) -> None:
        """Features [B, F] of items just drawn."""


class Sampler(Protocol):
    members: Members

    def put(self, where: Where, valid: Bools, fresh: Bools, priority: Tensor | None) -> None: ...

    def draw(self, batch: int, rng: torch.Generator, written: int) -> Draw: ...

    def weights(self, value: Tensor, beta: float) -> Tensor: ...

    def feedback(self, slots: Tensor, priority: Tensor) -> None: ...

    def state(self) -> tuple[dict[str, Tensor], dict[str, float]]: ...

    def load(self, tensors: dict[str, Tensor], numbers: dict[str, float]) -> None: ...


class UniformSampler:
    """Every drawable slot equally likely: draw any written slot, redraw those not drawable.

    `ranks`, a tree of ones, finds the k-th drawable slot where few slots are: listing them all
    would cost more with every slot.
    """

    def __init__(self, slots: int, device: torch.device, ranks: HostTree | None = None) -> None:
        self.members, self.device, self.ranks = Members(slots), device, ranks

    def put(self, where: Where, valid: Bools, fresh: Bools, priority: Tensor | None) -> None:
        self.members.put(where, valid)
        if self.ranks is not None:
            self.ranks.set(where, valid.astype(np.float64))

    def draw(self, batch: int, rng: torch.Generator, written: int) -> Draw:
        valid = self.members.valid
        slots = torch.randint(written, (batch,), generator=rng)
        view = slots.numpy()
        for _ in range(8):
            good = valid.take(view)
            if b"\x00" not in good.tobytes():
                break
            bad = np.flatnonzero(~good)
            view[bad] = torch.randint(written, (len(bad),), generator=rng).numpy()
        else:  # few of the written slots are drawable
            bad = np.flatnonzero(~valid.take(view))
            rank = torch.randint(self.members.count, (len(bad),), generator=rng).numpy()
            view[bad] = self._of_rank(rank)
        return Draw(slots.to(self.device), torch.ones(batch, device=self.device))

    def _of_rank(self, rank: Bools) -> Bools:
        """The drawable slots with these numbers, counted from the first."""
        if self.ranks is None:
            return np.flatnonzero(self.members.valid)[rank]
        return self.ranks.find((rank + 0.5) / self.members.count)[0]

    def weights(self, value: Tensor, beta: float) -> Tensor:
        """All alike, whatever beta is."""
        return value

    def feedback(self, slots: Tensor, priority: Tensor) -> None:
        """Uniform sampling has no use for priorities."""

    def state(self) -> tuple[dict[str, Tensor], dict[str, float]]:
        return self.members.state(), {}

    def load(self, tensors: dict[str, Tensor], numbers: dict[str, float]) -> None:
        self.members.load(tensors)
        if self.ranks is not None:
            self.ranks.values[: len(self.members.valid)] = self.members.valid
            self.ranks.rebuild()
