"""Descriptions of observations, actions and environments, as an algorithm sees them."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeAlias

import numpy as np
import torch

from ludus.types.trees import Tree


@dataclass(frozen=True)
class ArraySpec:
    """One leaf of an observation, as the environment returns it and the ring stores it.

    With stack = k > 1 the environment returns (and the ring stores) one frame of `shape`. The
    Collector and the views stack frames to [k, *shape], newest last, for the policy and the loss.
    """

    shape: tuple[int, ...]
    dtype: str = "float32"  # numpy name
    low: float | None = None
    high: float | None = None
    stack: int = 1
    layout: str | None = None  # "chw", "hwc", "hw" for images, None for vectors
    scale: tuple[float, float] = (0.0, 255.0)  # uint8 values that the network sees as 0 and 1
    rounded: bool = False  # float32 cannot represent all of its integers

    @property
    def seen_shape(self) -> tuple[int, ...]:
        """The shape a network sees."""
        return (self.stack, *self.shape) if self.stack > 1 else self.shape

    @cached_property
    def torch_dtype(self) -> torch.dtype:
        dtype: torch.dtype = torch.from_numpy(np.zeros(0, self.dtype)).dtype
        return dtype

    @property
    def is_image(self) -> bool:
        return self.layout is not None


@dataclass(frozen=True)
class Discrete:
    n: int


@dataclass(frozen=True)
class Continuous:
    """A box of actions. The adapter clips actions outside it."""

    shape: tuple[int, ...]
    low: tuple[float, ...]  # flattened
    high: tuple[float, ...]


@dataclass(frozen=True)
class MultiDiscrete:
    nvec: tuple[int, ...]


ActionSpec: TypeAlias = Discrete | Continuous | MultiDiscrete


@dataclass(frozen=True)
class EnvSpec:
    """The description of an environment that an algorithm may use."""

    id: str
    obs: Tree  # of ArraySpec
    action: ActionSpec
    has_action_mask: bool = False
    max_episode_steps: int | None = None
    # Of the whole training run, over all actors. Not a property of the environment itself.
    num_envs: int = field(default=1, compare=False)

    @property
    def num_actions(self) -> int:
        assert isinstance(self.action, Discrete), "only discrete actions have a number"
        return self.action.n

    @property
    def action_shape(self) -> tuple[int, ...]:
        """Shape of one stored action: () discrete, (k,) multi-discrete, the box's shape."""
        if isinstance(self.action, Discrete):
            return ()
        if isinstance(self.action, MultiDiscrete):
            return (len(self.action.nvec),)
        return self.action.shape

    @property
    def action_dtype(self) -> torch.dtype:
        return torch.float32 if isinstance(self.action, Continuous) else torch.int64

    @property
    def mask_width(self) -> int:
        """Length of one action mask: n actions, or the sum of a MultiDiscrete's choices."""
        if isinstance(self.action, MultiDiscrete):
            return sum(self.action.nvec)
        return self.action.n if isinstance(self.action, Discrete) else 0
