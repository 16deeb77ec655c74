"""The policy runner of a GPU: only the newest frame is copied to it, frames are stacked there, and
acting (stack, net, exploration) is one captured graph per group.

Rewards and flags stay on the host, where stores count with them; observations, actions and extras
stay on the device. The CPU emulates the graphs.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ludus.collect.policy_runner import HostRunner, PolicyRunner, RowBuffers, before_chunk
from ludus.compute.cuda_graph import EMULATED, CaptureError, Graph, not_captured
from ludus.contract import ActorState, Algorithm, stored_state
from ludus.envs.adapter import Envs, EnvStep
from ludus.types import Ctx, EnvSpec, Step, tree_leaves, tree_map

_FLAGS = ("first", "dummy", "last", "reward", "raw_reward")


def choose_runner(
    device: torch.device | str, *, captured: bool, must_capture: bool
) -> Callable[..., PolicyRunner]:
    if captured or torch.device(device).type != "cpu":
        return partial(DeviceRunner, captured=captured, must_capture=must_capture)
    return HostRunner


class _GraphIO:
    """Inputs and outputs of one group's graph: n environments, at fixed addresses."""

    def __init__(self, spec: EnvSpec, n: int, device: torch.device) -> None:
        def zeros(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        self.frames = tree_map(lambda s: zeros(n, *s.shape, dtype=s.torch_dtype), spec.obs)
        self.stacks = tree_map(lambda s: zeros(n, *s.seen_shape, dtype=s.torch_dtype), spec.obs)
        self.flags = zeros(len(_FLAGS), n)
        self.action = zeros(n, *spec.action_shape, dtype=spec.action_dtype)
        self.allowed = zeros(n, spec.mask_width, dtype=torch.bool) if spec.has_action_mask else None
        self.extras: dict[str, Tensor] = {}
        self.state: Any = ()
        # For `after_step`: the flags, previous action and action mask that `act` saw; its extras.
        self.seen_flags, self.seen_action = torch.zeros_like(self.flags), self.action.clone()
        self.seen_allowed = None if self.allowed is None else self.allowed.clone()
        self.later_extras: dict[str, Tensor] = {}
        # Host copies, in memory that the GPU reads directly.
        self.in_frames = tree_map(lambda x: _pinned(x), self.frames)
        self.in_flags = _pinned(self.flags)
        self.in_allowed = None if self.allowed is None else _pinned(self.allowed)
        self.out_action = _pinned(self.action)
        self.graph: Graph | None = None
        self.later: Graph | None = None  # of `after_step`
        self.net: nn.ModuleDict | None = None  # that the graphs were captured with

    def changing(self) -> list[Tensor]:
        seen = [self.seen_flags, self.seen_action]
        seen += [] if self.seen_allowed is None else [self.seen_allowed]
        return [self.action, *seen, *tree_leaves(self.stacks), *tree_leaves(self.state)]

    def put(self, got: EnvStep) -> None:
        """Copy the newest frames and flags to the device."""
        for place, host, value in zip(
            tree_leaves(self.frames), tree_leaves(self.in_frames), tree_leaves(got.obs), strict=True
        ):
            np.copyto(host.numpy(), value)
            place.copy_(host, non_blocking=True)
        flags = self.in_flags.numpy()
        for i, name in enumerate(_FLAGS):
            flags[i] = getattr(got, name)
        self.flags.copy_(self.in_flags, non_blocking=True)
        if self.allowed is not None and self.in_allowed is not None:
            assert got.action_mask is not None
            np.copyto(self.in_allowed.numpy(), got.action_mask)
            self.allowed.copy_(self.in_allowed, non_blocking=True)

    def see(self) -> None:
        """Keep what `act` sees of this step until `after_step`."""
        self.seen_flags.copy_(self.flags)
        self.seen_action.copy_(self.action)
        if self.seen_allowed is not None and self.allowed is not None:
            self.seen_allowed.copy_(self.allowed)


def _step(obs: Any, flags: Tensor, action: Tensor, allowed: Tensor | None) -> Step:
    first, dummy, last = (flags[i] > 0 for i in range(3))
    return Step(obs, first, dummy, action, flags[3], flags[4], last, allowed)


def _write(places: dict[str, Tensor], extras: dict[str, Tensor]) -> None:
    for name, value in extras.items():
        if name not in places:
            places[name] = torch.empty_like(value)
        places[name].copy_(value)


def _pinned(like: Tensor) -> Tensor:
    empty = torch.zeros(like.shape, dtype=like.dtype)
    return empty.pin_memory() if like.device.type == "cuda" else empty


class DeviceRunner(PolicyRunner):
    """The same rows as HostRunner's from the same random numbers, `captured` or eager."""

    def __init__(
        self,
        algorithm: Algorithm,
        envs: Envs,
        ctx: Ctx,
        *,
        captured: bool = True,
        must_capture: bool = False,
        **options: Any,
    ) -> None:
        """`must_capture`: refuse (E104) where the capture fails, instead of acting eagerly."""
        super().__init__(algorithm, envs, ctx, **options)
        self.captured, self.must_capture = captured, must_capture
        if captured:
            self.mode = "captured" if self.device.type == "cuda" else EMULATED
        self.graph_io = [_GraphIO(self.spec, s.stop - s.start, self.device) for s in self.groups]
        self._done: torch.cuda.Event | None = None
        if self.device.type == "cuda":
            self._done = torch.cuda.Event()  # type: ignore[no-untyped-call]

    def reset(self, g: int, got: EnvStep, state: Any) -> None:
        if self._done is not None:  # a copy from the pinned memory may still be under way
            torch.cuda.current_stream(self.device).synchronize()
        io = self.graph_io[g]
        io.put(got)
        if io.graph is None and io.later is None:
            io.state = tree_map(torch.clone, state)  # it will be written in place
        else:  # in place: the graph has the addresses
            for place, value in zip(tree_leaves(io.state), tree_leaves(state), strict=True):
                place.copy_(value)
        io.action.zero_()

    def state(self, g: int) -> Any:
        return self.graph_io[g].state

    def set_lasting(self, g: int, lasting: Any) -> None:
        state = self.graph_io[g].state.lasting
        for place, value in zip(tree_leaves(state), tree_leaves(lasting), strict=True):
            place.copy_(value)

    def buffers(self, rows: int) -> RowBuffers:
        return RowBuffers(rows, self.spec, self.num_envs, self.device)

    def open(self, g: int, out: RowBuffers) -> None:
        io, envs = self.graph_io[g], self.groups[g]
        out.states.append(tree_map(torch.clone, stored_state(io.state)))
        if isinstance(io.state, ActorState):
            out.lasting.append(tree_map(torch.clone, io.state.lasting))
        for place, frame in zip(tree_leaves(out.obs), tree_leaves(io.frames), strict=True):
            place[0, envs].copy_(frame)
        out.first[0, envs] = io.in_flags.numpy()[0] > 0
        if out.action_mask is not None and io.in_allowed is not None:
            out.action_mask[0, envs] = io.in_allowed.numpy()
        if self.keeps_before:  # the graph pushes the newest frame onto the stack when it acts
            stacks = zip(tree_leaves(self.spec.obs), tree_leaves(io.stacks), strict=True)
            older = [x[:, 1:] if s.stack > 1 else None for s, x in stacks]
            out.before.append(before_chunk(older, io.action, io.flags[3]))

    def act(self, net: nn.ModuleDict, g: int, t: int, out: RowBuffers) -> np.ndarray:
        io, envs = self.graph_io[g], self.groups[g]
        if self.captured and (io.graph is None or net is not io.net):
            io.net, io.later = net, None
            io.graph = self._capture(io, lambda: self._forward(net, io))
        if io.graph is not None:
            io.graph.launch()
        else:
            self._forward(net, io)
        io.out_action.copy_(io.action, non_blocking=True)
        if self._done is not None:
            self._done.record()
        # Fill the rows while the action is copied to the host.
        out.action[t, envs].copy_(io.action)
        for name, value in io.extras.items():
            out.extra(name, value)[t, envs].copy_(value)
        if self._done is not None:
            self._done.synchronize()
        sent: np.ndarray = io.out_action.numpy().copy()
        return sent

    def _forward(self, net: nn.ModuleDict, io: _GraphIO) -> None:
        """From the inputs of `io` to its outputs; nothing else is read or written."""
        self._push(io.stacks, io.frames, io.flags[0] > 0)
        if self.follows:
            io.see()
        step = _step(io.stacks, io.flags, io.action.clone(), io.allowed)
        action, extras, state = self.answer(net, step, io.state)
        io.action.copy_(action)
        _write(io.extras, extras)
        for place, value in zip(tree_leaves(io.state), tree_leaves(state), strict=True):
            place.copy_(value)

    def _push(self, stacks: Any, frames: Any, first: Tensor) -> None:
        """Push the newest frames onto the stacks, in place."""
        for spec, stack, frame in zip(
            tree_leaves(self.spec.obs), tree_leaves(stacks), tree_leaves(frames), strict=True
        ):
            if spec.stack == 1:
                stack.copy_(frame)
                continue
            older = stack[:, 1:].clone()
            older.masked_fill_(first.reshape(-1, *([1] * (older.dim() - 1))), 0)
            stack[:, :-1] = older
            stack[:, -1] = frame

    def _capture(self, io: _GraphIO, fn: Callable[[], None]) -> Graph | None:
        """The graph of `fn`. None, now and for ever, where the capture fails."""
        try:
            graph = Graph(fn, self.device, keeps=io.changing, generators=[self.ctx.rng])
        except CaptureError as failed:
            if self.must_capture:
                raise not_captured("acting", str(failed)) from failed
            self.captured, self.mode = False, f"eager: {failed}"
            for other in self.graph_io:
                other.graph = other.later = None
            return None
        self.capture_seconds += graph.seconds
        return graph

    def receive(self, g: int, t: int, out: RowBuffers, got: EnvStep) -> None:
        io, envs = self.graph_io[g], self.groups[g]
        io.put(got)
        for place, frame in zip(tree_leaves(out.obs), tree_leaves(io.frames), strict=True):
            place[t + 1, envs].copy_(frame)
        out.store_flags(t, envs, got)

    def follow(self, net: nn.ModuleDict, g: int, t: int, out: RowBuffers) -> None:
        io, envs = self.graph_io[g], self.groups[g]
        if self.captured and (io.later is None or net is not io.net):
            if net is not io.net:
                io.net, io.graph = net, None
            io.later = self._capture(io, lambda: self._later(net, io))
        if io.later is not None:
            io.later.launch()
        else:
            self._later(net, io)
        for name, value in io.later_extras.items():
            out.extra(name, value)[t, envs].copy_(value)

    def _later(self, net: nn.ModuleDict, io: _GraphIO) -> None:
        """`after_step` of the step in `io.stacks`, answered by `io.frames` and `io.flags`."""
        stacks = tree_map(torch.clone, io.stacks)  # the next `act` pushes onto the originals
        self._push(stacks, io.frames, io.flags[0] > 0)
        step = _step(io.stacks, io.seen_flags, io.seen_action, io.seen_allowed)
        next = _step(stacks, io.flags, io.action, io.allowed)
        extras, state = self.after(net, step, next, io.state)
        _write(io.later_extras, extras)
        for place, value in zip(tree_leaves(io.state), tree_leaves(state), strict=True):
            place.copy_(value)
