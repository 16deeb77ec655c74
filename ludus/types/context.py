"""The context that every call of an algorithm gets: randomness, schedules, other learners."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from ludus.types.rows import EnvSpec


class Group(Protocol):
    """Learners that learn together, each from its part of the batch."""

    def sum(self, x: Tensor) -> Tensor:
        """The sum of every learner's `x`, bit-equal in all of them."""
        ...

    def all(self, flag: bool) -> bool:
        """Whether `flag` is true for every learner."""
        ...

    def gather(self, numbers: Sequence[int]) -> list[list[int]]:
        """The numbers of every learner, in the order of their ranks."""
        ...

    def collect(self, x: Tensor) -> list[Tensor]:
        """Every learner's `x`, of the same shape, in the order of their ranks."""
        ...


@dataclass
class Ctx:
    """The context of a call: randomness, the spec, the current values of schedules."""

    rng: torch.Generator
    spec: EnvSpec
    values: dict[str, Tensor] = field(default_factory=dict)  # epsilon, clip, ... as 0-d tensors
    actor: int = 0
    actors: int = 1
    env: int = 0  # of this actor: the first of those that `begin` is asked about
    num_envs: int = 1  # of each actor
    evaluating: bool = False
    seed: int = 0  # of the run, for values sampled once per actor
    # In `loss`: the named parameter groups that step in this update (Plan.periods).
    stepping: frozenset[str] = frozenset()
    group: Group | None = None  # None: this learner is alone
    # 0-d int64, changed in place: the updates applied before this one. 0 for an actor.
    updates: Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.updates = torch.zeros((), dtype=torch.int64, device=self.rng.device)

    def total(self, x: Tensor) -> Tensor:
        """`x` summed over the learners of the group; `x` itself when alone."""
        return x if self.group is None else self.group.sum(x)

    def mean(self, x: Tensor, mask: Tensor) -> Tensor:
        """The mean [] of `x` where the mask of the same shape is true, of all learners."""
        m = mask.to(x.dtype)
        return self.total((x * m).sum()) / self.total(m.sum()).clamp(min=1)

    def moments(self, x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and unbiased variance [] of `x` where the mask is true, of all learners."""
        m = mask.to(x.dtype)
        count = self.total(m.sum()).clamp(min=1)
        mean = self.total((x * m).sum()) / count
        centered = (x - mean) * m  # a single row's is 0
        return mean, self.total((centered**2).sum()) / (count - 1).clamp(min=1)
