"""A collector whose policy lives on a device: only the newest frame crosses to it, stacks are
formed there, and the whole answer (stack, net, exploration) is one captured graph per group.

Flags and rewards stay on the host, where stores count with them; observations, actions and what
`act` returns beside them stay on the device.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ludus.collect.buffers import known
from ludus.collect.collector import Buffers, Collector
from ludus.compute.cuda_graph import EMULATED, CaptureError, Graph, not_captured
from ludus.contract import Algorithm
from ludus.envs.adapter import Envs, EnvStep
from ludus.types import Before, EnvSpec, EpisodeEnd, Rows, Step, tree_leaves, tree_map

_FLAGS = ("first", "dummy", "last", "reward", "raw_reward")


class _Desk:
    """Fixed places on the device for one group of n slots: what comes in, what goes out."""

    def __init__(self, spec: EnvSpec, n: int, device: torch.device) -> None:
        def here(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        self.frames = tree_map(lambda s: here(n, *s.shape, dtype=s.torch_dtype), spec.obs)
        self.stacks = tree_map(lambda s: here(n, *s.seen_shape, dtype=s.torch_dtype), spec.obs)
        self.flags = here(len(_FLAGS), n)
        self.action = here(n, *spec.action_shape, dtype=spec.action_dtype)
        self.allowed = here(n, spec.mask_width, dtype=torch.bool) if spec.has_action_mask else None
        self.extras: dict[str, Tensor] = {}
        self.state: Any = ()
        # The host's side of the same, in memory that the device reads without help.
        self.in_frames = tree_map(lambda x: _pinned(x), self.frames)
        self.in_flags = _pinned(self.flags)
        self.in_allowed = None if self.allowed is None else _pinned(self.allowed)
        self.out_action = _pinned(self.action)
        self.graph: Graph | None = None
        self.net: nn.ModuleDict | None = None  # that the graph was captured with

    def changing(self) -> list[Tensor]:
        return [self.action, *tree_leaves(self.stacks), *tree_leaves(self.state)]


def _pinned(like: Tensor) -> Tensor:
    empty = torch.zeros(like.shape, dtype=like.dtype)
    return empty.pin_memory() if like.device.type == "cuda" else empty


class DeviceCollector(Collector):
    """The same rows as Collector's from the same draws; `captured` or called afresh each time."""

    def __init__(
        self,
        algorithm: Algorithm,
        envs: Envs,
        *,
        captured: bool = True,
        must: bool = False,
        **options: Any,
    ) -> None:
        """`must`: refuse (E104) where the capture fails, instead of acting eagerly."""
        super().__init__(algorithm, envs, **options)
        self.captured, self.must = captured, must
        if captured:
            self.acting = "captured" if self.device.type == "cuda" else EMULATED
            if self.priorities is not None:
                self.priorities.captured, self.priorities.must = True, must
        self.desks = [_Desk(self.spec, s.stop - s.start, self.device) for s in envs.groups]
        self._done: torch.cuda.Event | None = None
        if self.device.type == "cuda":
            self._done = torch.cuda.Event()  # type: ignore[no-untyped-call]

    def barrier(self, number: int) -> list[EpisodeEnd]:
        if self._done is not None:  # frames may still be on their way from where new ones go
            torch.cuda.current_stream(self.device).synchronize()
        cut = super().barrier(number)
        for group, desk in zip(self.groups, self.desks, strict=True):
            if desk.graph is None:
                desk.state = tree_map(torch.clone, group.state)  # written where it lies
            else:  # in place: the graph knows these tensors
                for place, value in zip(
                    tree_leaves(desk.state), tree_leaves(group.state), strict=True
                ):
                    place.copy_(value)
            desk.action.zero_()
        return cut

    def _buffers(self, rows: int) -> Buffers:
        return DeviceBuffers(rows, self.spec, self.envs.num, self.device)

    def _step(self, obs: Any, got: EnvStep, action: Tensor) -> Step:
        raise AssertionError("a device collector keeps no steps on the host")

    def _first_step(self, got: EnvStep, g: int, n: int) -> Step:
        self._put(g, got)
        none = torch.empty(0)  # never read: the desk has it all
        return Step(None, none, none, none, none, none, none, None)

    def _put(self, g: int, got: EnvStep) -> None:
        """The newest frames and flags of a group onto its desk."""
        desk = self.desks[g]
        for place, host, value in zip(
            tree_leaves(desk.frames), tree_leaves(desk.in_frames), tree_leaves(got.obs), strict=True
        ):
            np.copyto(host.numpy(), value)
            place.copy_(host, non_blocking=True)
        flags = desk.in_flags.numpy()
        for i, name in enumerate(_FLAGS):
            flags[i] = getattr(got, name)
        desk.flags.copy_(desk.in_flags, non_blocking=True)
        if desk.allowed is not None and desk.in_allowed is not None:
            assert got.action_mask is not None
            np.copyto(desk.in_allowed.numpy(), got.action_mask)
            desk.allowed.copy_(desk.in_allowed, non_blocking=True)

    def _open(self, g: int, out: Buffers) -> None:
        assert isinstance(out, DeviceBuffers)
        desk, slots = self.desks[g], self.groups[g].slots
        out.states.append(tree_map(torch.clone, desk.state))
        for place, frame in zip(tree_leaves(out.obs), tree_leaves(desk.frames), strict=True):
            place[0, slots].copy_(frame)
        out.first[0, slots] = desk.in_flags.numpy()[0] > 0
        if out.action_mask is not None and desk.in_allowed is not None:
            out.action_mask[0, slots] = desk.in_allowed.numpy()
        if self.remembers:  # the newest frame joins the stack when it is answered
            stacks = zip(tree_leaves(self.spec.obs), tree_leaves(desk.stacks), strict=True)
            older = [x[:, 1:] if s.stack > 1 else None for s, x in stacks]
            out.before.append(known(older, desk.action, desk.flags[3]))

    def _think(self, net: nn.ModuleDict, desk: _Desk) -> None:
        """From the desk's inputs to its outputs; nothing else is read or written."""
        first, dummy, last = (desk.flags[i] > 0 for i in range(3))
        for spec, stack, frame in zip(
            tree_leaves(self.spec.obs), tree_leaves(desk.stacks), tree_leaves(desk.frames),
            strict=True,
        ):  # fmt: skip
            if spec.stack == 1:
                stack.copy_(frame)
                continue
            older = stack[:, 1:].clone()
            older.masked_fill_(first.reshape(-1, *([1] * (older.dim() - 1))), 0)
            stack[:, :-1] = older
            stack[:, -1] = frame
        step = Step(
            desk.stacks, first, dummy, desk.action.clone(), desk.flags[3], desk.flags[4], last,
            desk.allowed,
        )  # fmt: skip
        action, extras, state = self._answer(net, step, desk.state)
        desk.action.copy_(action)
        for name, value in extras.items():
            if name not in desk.extras:
                desk.extras[name] = torch.empty_like(value)
            desk.extras[name].copy_(value)
        for place, value in zip(tree_leaves(desk.state), tree_leaves(state), strict=True):
            place.copy_(value)

    @torch.no_grad()
    def _act(self, net: nn.ModuleDict, g: int, t: int, out: Buffers) -> np.ndarray:
        assert isinstance(out, DeviceBuffers)
        desk, slots = self.desks[g], self.groups[g].slots
        if self.captured and (desk.graph is None or net is not desk.net):
            self._capture(net, desk)
        if desk.graph is not None:
            desk.graph.launch()
        else:
            self._think(net, desk)
        desk.out_action.copy_(desk.action, non_blocking=True)
        if self._done is not None:
            self._done.record()
        # While the answer travels: what the rows need of it.
        out.action[t, slots].copy_(desk.action)
        for name, value in desk.extras.items():
            out.extra(name, value)[t, slots].copy_(value)
        if self._done is not None:
            self._done.synchronize()
        sent: np.ndarray = desk.out_action.numpy().copy()
        return sent

    def _capture(self, net: nn.ModuleDict, desk: _Desk) -> None:
        desk.net = net
        try:
            desk.graph = Graph(
                lambda: self._think(net, desk), self.device, keeps=desk.changing,
                generators=[self.ctx.rng],
            )  # fmt: skip
        except CaptureError as failed:
            if self.must:
                raise not_captured("acting", str(failed)) from failed
            self.captured, self.acting = False, f"eager: {failed}"
            for other in self.desks:
                other.graph = None
        else:
            self.graph_seconds += desk.graph.seconds

    def _finish_row(self, g: int, t: int, out: Buffers, got: EnvStep) -> None:
        assert isinstance(out, DeviceBuffers)
        self._put(g, got)
        slots = self.groups[g].slots
        for place, frame in zip(
            tree_leaves(out.obs), tree_leaves(self.desks[g].frames), strict=True
        ):
            place[t + 1, slots].copy_(frame)
        out.store_flags(t, slots, got)


class DeviceBuffers(Buffers):
    """Observations, actions and extras on the device; flags in pinned host memory."""

    def __init__(self, rows: int, spec: EnvSpec, n: int, device: torch.device) -> None:
        self.count, self.n, self.spec, self.device = rows, n, spec, device
        self.states: list[Any] = []
        self.before: list[Before] = []
        self.extras: dict[str, Any] = {}
        self.obs = tree_map(
            lambda s: torch.empty((rows + 1, n, *s.shape), dtype=s.torch_dtype, device=device),
            spec.obs,
        )
        self.action: Any = torch.empty(
            (rows, n, *spec.action_shape), dtype=spec.action_dtype, device=device
        )
        self._held: dict[str, Tensor] = {}
        real, no = torch.float32, torch.bool
        self.reward = self._host("reward", (rows, n), real)
        self.raw_reward = self._host("raw_reward", (rows, n), real)
        self.discount = self._host("discount", (rows, n), real)
        self.last = self._host("last", (rows, n), no)
        self.mask = self._host("mask", (rows, n), no)
        self.first = self._host("first", (rows + 1, n), no)
        wide = (rows + 1, n, spec.mask_width)
        self.action_mask = self._host("action_mask", wide, no) if spec.has_action_mask else None

    def _host(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> np.ndarray:
        self._held[name] = torch.empty(shape, dtype=dtype, pin_memory=self.device.type == "cuda")
        array: np.ndarray = self._held[name].numpy()
        return array

    def extra(self, name: str, like: Tensor) -> Any:
        if name not in self.extras:
            self.extras[name] = torch.empty(
                (self.count, self.n, *like.shape[1:]), dtype=like.dtype, device=self.device
            )
        return self.extras[name]

    def rows(self) -> Rows:
        h, states = self._held, self.states
        state = states[0] if len(states) == 1 else tree_map(lambda *x: torch.cat(x), *states)
        return Rows(
            self.obs, self.action, h["reward"], h["raw_reward"], h["discount"], h["last"],
            h["first"], h["mask"], h.get("action_mask"), self.extras, state,
        )  # fmt: skip
