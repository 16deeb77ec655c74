"""The row buffers of one chunk, which a policy runner fills."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ludus.envs.adapter import EnvStep
from ludus.types import Before, EnvSpec, Rows, tree_map


class RowBuffers:
    """[T, N, ...] and [T+1, N, ...] for N environments; new for each chunk, so a store may keep
    them.

    Rewards and flags are NumPy views of host memory, which a GPU can read. Observations, actions
    and extras are tensors on `device`, or without one NumPy views too.
    """

    def __init__(self, rows: int, spec: EnvSpec, n: int, device: torch.device | None) -> None:
        self.count, self.n, self.device = rows, n, device
        self._pin = device is not None and device.type == "cuda"
        self._flags: dict[str, Tensor] = {}
        self.states: list[Any] = []  # of each group, as is `before`
        self.before: list[Before] = []
        self.extras: dict[str, Any] = {}
        self.obs = tree_map(lambda s: self._new((rows + 1, n, *s.shape), s.torch_dtype), spec.obs)
        self.action = self._new((rows, n, *spec.action_shape), spec.action_dtype)
        self.reward = self._flag("reward", (rows, n), torch.float32)
        self.raw_reward = self._flag("raw_reward", (rows, n), torch.float32)
        self.discount = self._flag("discount", (rows, n), torch.float32)
        self.last = self._flag("last", (rows, n))
        self.mask = self._flag("mask", (rows, n))
        self.first = self._flag("first", (rows + 1, n))
        self.action_mask: np.ndarray | None = None
        if spec.has_action_mask:
            self.action_mask = self._flag("action_mask", (rows + 1, n, spec.mask_width))

    def _new(self, shape: tuple[int, ...], dtype: torch.dtype) -> Any:
        if self.device is None:  # np.empty is several times as fast as torch.empty
            return np.empty(shape, _numpy_dtype(dtype))
        return torch.empty(shape, dtype=dtype, device=self.device)

    def _flag(
        self, name: str, shape: tuple[int, ...], dtype: torch.dtype = torch.bool
    ) -> np.ndarray:
        array: np.ndarray
        if self._pin:
            self._flags[name] = torch.empty(shape, dtype=dtype, pin_memory=True)
            array = self._flags[name].numpy()
        else:
            array = np.empty(shape, _numpy_dtype(dtype))
            self._flags[name] = torch.from_numpy(array)
        return array

    def extra(self, name: str, like: Tensor) -> Any:
        if name not in self.extras:
            self.extras[name] = self._new((self.count, self.n, *like.shape[1:]), like.dtype)
        return self.extras[name]

    def store_flags(self, t: int, envs: slice, got: EnvStep) -> None:
        self.reward[t, envs] = got.reward
        self.raw_reward[t, envs] = got.raw_reward
        self.discount[t, envs] = got.discount
        self.last[t, envs] = got.last
        self.mask[t, envs] = got.mask
        self.first[t + 1, envs] = got.first
        if self.action_mask is not None:
            self.action_mask[t + 1, envs] = got.action_mask

    def rows(self) -> Rows:
        wrap = torch.from_numpy if self.device is None else torch.as_tensor
        states = self.states
        return Rows(
            obs=tree_map(wrap, self.obs),
            action=wrap(self.action),
            extras={name: wrap(x) for name, x in self.extras.items()},
            state=states[0] if len(states) == 1 else tree_map(lambda *x: torch.cat(x), *states),
            **self._flags,
        )


@cache
def _numpy_dtype(dtype: torch.dtype) -> Any:
    return torch.empty(0, dtype=dtype).numpy().dtype


def before_chunk(older: Sequence[Tensor | None], action: Tensor, reward: Tensor) -> Before:
    """`older`: the frames [B, stack - 1, ...] of each leaf that has some."""
    none = reward.new_zeros((0, *reward.shape))
    frames = tuple(none if x is None else x.transpose(0, 1).clone() for x in older)
    return Before(frames, action.clone(), reward.clone())


def join_groups(groups: Sequence[Before]) -> Before | None:
    """The `Before` of all environments; None where it is not kept."""
    if not groups:
        return None
    frames = tuple(torch.cat(parts, 1) for parts in zip(*(b.frames for b in groups), strict=True))
    action, reward = (torch.cat([getattr(b, k) for b in groups]) for k in ("action", "reward"))
    return Before(frames, action, reward)
