"""Policy runners: they act for the environments of a collector and fill its row buffers. This one
runs on the host; `device_runner` keeps observations and actions on a GPU."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ludus.collect.buffers import RowBuffers, before_chunk
from ludus.contract import Algorithm
from ludus.envs.adapter import Envs, EnvStep
from ludus.nets.normalize import normalized
from ludus.types import Ctx, Step, Tree, tree_leaves, tree_map


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

    @abstractmethod
    def reset(self, g: int, got: EnvStep, state: Any) -> None:
        """A group begins new episodes."""

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

    def reset(self, g: int, got: EnvStep, state: Any) -> None:
        self.states[g] = state
        shape = (len(got.first), *self.spec.action_shape)
        action = torch.zeros(shape, dtype=self.spec.action_dtype)
        self.steps[g] = self._step(g, tree_map(torch.from_numpy, got.obs), got, action)

    def buffers(self, rows: int) -> RowBuffers:
        return RowBuffers(rows, self.spec, self.num_envs, None)

    def open(self, g: int, out: RowBuffers) -> None:
        step, envs = self.steps[g], self.groups[g]
        out.states.append(self.states[g])
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
        for place, leaf in zip(tree_leaves(out.obs), tree_leaves(got.obs), strict=True):
            place[t + 1, envs] = leaf
        out.store_flags(t, envs, got)
        frames = tree_map(lambda x: torch.from_numpy(x[t + 1, envs]), out.obs)
        self.steps[g] = self._step(g, frames, got, torch.from_numpy(out.action[t, envs]))

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

        def one(spec: object, stack: Tensor, frame: Tensor) -> Tensor:
            if stack.shape[1] == 1:
                return frame
            stack = torch.roll(stack, -1, 1)  # a new tensor: a caller may hold the old one
            stack[starts] = 0
            stack[:, -1] = frame
            return stack

        seen = tree_map(one, self.spec, self.frames, frames)
        self.frames = tree_map(
            lambda s, old, new: new if s.stack > 1 else old, self.spec, self.frames, seen
        )
        return seen
