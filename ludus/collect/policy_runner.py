"""Policy runners: they act for the environments of a collector and fill the row buffers of its
chunks. This one runs on the host; `device_runner` keeps observations and actions on a GPU."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ludus.contract import ActorState, Algorithm, overrides, stored_state
from ludus.envs.adapter import Envs, EnvStep
from ludus.nets.normalize import normalized
from ludus.types import (
    ArraySpec,
    Before,
    Ctx,
    EnvSpec,
    Rows,
    Step,
    Tree,
    numpy_dtype,
    tree_leaves,
    tree_map,
)


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
        self.states: list[Any] = []  # stored state of each group, as is `before`
        self.lasting: list[Any] = []  # of each group that has some: the lasting state before row 0
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
            return np.empty(shape, numpy_dtype(dtype))
        return torch.empty(shape, dtype=dtype, device=self.device)

    def _flag(
        self, name: str, shape: tuple[int, ...], dtype: torch.dtype = torch.bool
    ) -> np.ndarray:
        array: np.ndarray
        if self._pin:
            self._flags[name] = torch.empty(shape, dtype=dtype, pin_memory=True)
            array = self._flags[name].numpy()
        else:
            array = np.empty(shape, numpy_dtype(dtype))
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


class PolicyRunner(ABC):
    """Acts for one group of environments at a time. The net comes with each call."""

    captured = must_capture = False
    mode = "eager"  # for the status: "captured", or "eager" and why
    capture_seconds = 0.0

    def __init__(
        self, algorithm: Algorithm, envs: Envs, ctx: Ctx, *, device: torch.device, precision: str
    ) -> None:
        self.algorithm, self.ctx, self.device, self.precision = algorithm, ctx, device, precision
        self.spec, self.num_envs, self.groups = envs.spec, envs.num, envs.groups
        self.keeps_before = False  # chunks may be lost: each says what preceded it
        self.follows = overrides(algorithm, "after_step")

    @abstractmethod
    def reset(self, g: int, got: EnvStep, state: Any) -> None:
        """A group begins new episodes."""

    @abstractmethod
    def state(self, g: int) -> Any:
        """The actor state of a group as it is now."""

    @abstractmethod
    def set_lasting(self, g: int, lasting: Any) -> None:
        """Replace the lasting part of a group's state."""

    @abstractmethod
    def buffers(self, rows: int) -> RowBuffers: ...

    @abstractmethod
    def open(self, g: int, out: RowBuffers) -> None:
        """Write row 0 of the observations: the one that waits for an action."""

    @abstractmethod
    def act(self, net: nn.ModuleDict, g: int, t: int, out: RowBuffers) -> np.ndarray:
        """Choose the actions of row t."""

    @abstractmethod
    def receive(self, g: int, t: int, out: RowBuffers, got: EnvStep) -> None:
        """Finish row t with what the environments returned."""

    @abstractmethod
    def follow(self, net: nn.ModuleDict, g: int, t: int, out: RowBuffers) -> None:
        """Call `after_step` for row t, which `receive` has finished; only if `follows`."""

    def undo(self, out: RowBuffers) -> None:
        """Forget what the rows of `out` did to the lasting state: they are dropped."""
        for g, lasting in enumerate(out.lasting):
            self.set_lasting(g, lasting)

    def after(
        self, net: nn.ModuleDict, step: Step, next: Step, state: Any
    ) -> tuple[dict[str, Tensor], Any]:
        """`after_step` on what `act` sees: normalised, in the run's precision."""
        if "normalizer" in net:
            step, next = normalized(net, step), normalized(net, next)
        low = self.precision != "fp32"
        with torch.autocast(self.device.type, torch.bfloat16, low, cache_enabled=False):
            return self.algorithm.after_step(net, step, next.prev_action, next, state, self.ctx)

    def answer(
        self, net: nn.ModuleDict, step: Step, state: Any
    ) -> tuple[Tensor, dict[str, Tensor], Any]:
        if "normalizer" in net:
            step = normalized(net, step)
        if self.precision == "fp32":
            return self.algorithm.act(net, step, state, self.ctx)
        with torch.autocast(self.device.type, torch.bfloat16, cache_enabled=False):
            return self.algorithm.act(net, step, state, self.ctx)


class HostRunner(PolicyRunner):
    """Rows in host memory; observations go to the net's device at every step."""

    def __init__(self, algorithm: Algorithm, envs: Envs, ctx: Ctx, **options: Any) -> None:
        super().__init__(algorithm, envs, ctx, **options)
        self.stackers = [FrameStacker(self.spec.obs, s.stop - s.start) for s in self.groups]
        self.steps: list[Step] = [None] * len(self.groups)  # type: ignore[list-item]  # set by reset
        self.states: list[Any] = [()] * len(self.groups)
        self.before: list[Step] = self.steps.copy()  # the step before; kept only if `follows`
        self.one_leaf = isinstance(self.spec.obs, ArraySpec)  # else a tree of them

    def reset(self, g: int, got: EnvStep, state: Any) -> None:
        self.states[g] = state
        shape = (len(got.first), *self.spec.action_shape)
        action = torch.zeros(shape, dtype=self.spec.action_dtype)
        self.steps[g] = self._step(g, tree_map(torch.from_numpy, got.obs), got, action)

    def state(self, g: int) -> Any:
        return self.states[g]

    def set_lasting(self, g: int, lasting: Any) -> None:
        self.states[g] = self.states[g]._replace(lasting=lasting)

    def buffers(self, rows: int) -> RowBuffers:
        return RowBuffers(rows, self.spec, self.num_envs, None)

    def open(self, g: int, out: RowBuffers) -> None:
        step, envs, state = self.steps[g], self.groups[g], self.states[g]
        out.states.append(stored_state(state))
        if isinstance(state, ActorState):
            out.lasting.append(tree_map(torch.clone, state.lasting))
        for place, leaf, spec in zip(
            tree_leaves(out.obs), tree_leaves(step.obs), tree_leaves(self.spec.obs), strict=True
        ):
            newest = leaf[:, -1] if spec.stack > 1 else leaf
            place[0, envs] = newest.cpu().numpy()
        out.first[0, envs] = step.first.cpu().numpy()
        if out.action_mask is not None and step.action_mask is not None:
            out.action_mask[0, envs] = step.action_mask.cpu().numpy()
        if self.keeps_before:
            older = tree_map(
                lambda s, x: x[:, :-1] if s.stack > 1 else None, self.spec.obs, step.obs
            )
            out.before.append(before_chunk(tree_leaves(older), step.prev_action, step.prev_reward))

    def act(self, net: nn.ModuleDict, g: int, t: int, out: RowBuffers) -> np.ndarray:
        action, extras, self.states[g] = self.answer(net, self.steps[g], self.states[g])
        sent: np.ndarray = action.cpu().numpy()
        envs = self.groups[g]
        out.action[t, envs] = sent
        for name, value in extras.items():
            out.extra(name, value)[t, envs] = value.cpu().numpy()
        return sent

    def receive(self, g: int, t: int, out: RowBuffers, got: EnvStep) -> None:
        envs = self.groups[g]
        if self.one_leaf:
            place = out.obs[t + 1, envs]
            place[...] = got.obs
            frames: Tree = torch.from_numpy(place)
        else:
            for place, leaf in zip(tree_leaves(out.obs), tree_leaves(got.obs), strict=True):
                place[t + 1, envs] = leaf
            frames = tree_map(lambda x: torch.from_numpy(x[t + 1, envs]), out.obs)
        out.store_flags(t, envs, got)
        if self.follows:
            self.before[g] = self.steps[g]
        self.steps[g] = self._step(g, frames, got, torch.from_numpy(out.action[t, envs]))

    def follow(self, net: nn.ModuleDict, g: int, t: int, out: RowBuffers) -> None:
        extras, self.states[g] = self.after(net, self.before[g], self.steps[g], self.states[g])
        for name, value in extras.items():
            out.extra(name, value)[t, self.groups[g]] = value.cpu().numpy()

    def _step(self, g: int, frames: Tree, got: EnvStep, action: Tensor) -> Step:
        mask = got.action_mask
        step = Step(
            self.stackers[g].push(frames, got.first),
            torch.from_numpy(got.first),
            torch.from_numpy(got.dummy),
            action,
            torch.from_numpy(got.reward),
            torch.from_numpy(got.raw_reward),
            torch.from_numpy(got.last),
            None if mask is None else torch.from_numpy(mask),
        )
        if self.device.type == "cpu":
            return step
        moved: list[Any] = [f if f is None else tree_map(self._move, f) for f in step]
        return Step(*moved)

    def _move(self, x: Tensor) -> Tensor:
        return x.to(self.device, non_blocking=True)


class FrameStacker:
    """Keeps the newest k frames of n environments for every leaf with stack > 1; other leaves pass
    through.

    Before an episode's first frame there are zeros, as in the replay's views.
    """

    def __init__(self, obs_spec: Tree, n: int) -> None:
        self.spec = obs_spec
        self.active = any(s.stack > 1 for s in tree_leaves(obs_spec))
        self.frames = (
            tree_map(lambda s: torch.zeros((n, s.stack, *s.shape), dtype=s.torch_dtype), obs_spec)
            if self.active
            else None
        )

    def push(self, frames: Tree, first: np.ndarray) -> Tree:
        if not self.active:
            return frames
        starts = torch.from_numpy(np.array(first))

        def one(spec: Any, stack: Tensor, frame: Tensor) -> Tensor:
            if spec.stack == 1:
                return frame
            stack = torch.roll(stack, -1, 1)  # a new tensor: a caller may hold the old one
            stack[starts] = 0
            stack[:, -1] = frame
            return stack

        self.frames = tree_map(one, self.spec, self.frames, frames)
        return self.frames
