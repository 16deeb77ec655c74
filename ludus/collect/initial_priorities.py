"""First priorities of rows, computed by their collector (Horgan et al. 2018, algorithm 1).

They are the algorithm's own `loss(...).priority` of the transitions that the learner's view would
make of the same rows. A store of the same kind, just long enough for a chunk and the windows that
reach into it, treats episode ends, broken streams and frame stacks in the same way. It has its own
generator, so the actions are the same with and without it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from ludus import seeding
from ludus.compute.cuda_graph import CaptureError, Graph, not_captured
from ludus.contract import Algorithm, NStep, Uniform
from ludus.nets.normalize import normalized
from ludus.replay.replay_store import ReplayStore
from ludus.replay.storage.ring import Ring, layout_of
from ludus.types import Chunk, Ctx, EnvSpec


@dataclass(frozen=True)
class _Captured:
    """A captured graph and the net, store and row indices it was captured for."""

    net: nn.ModuleDict
    store: ReplayStore
    slots: Tensor
    out: Tensor
    graph: Graph

    def fits(self, net: nn.ModuleDict, store: ReplayStore, slots: Tensor) -> bool:
        return self.net is net and self.store is store and self.slots.shape == slots.shape


class FirstPriorities:
    """For one collector; it gets every chunk, in order."""

    def __init__(
        self,
        algorithm: Algorithm,
        spec: EnvSpec,
        *,
        seed: int,
        index: int,
        device: torch.device,
        precision: str,
        captured: bool = False,
        must_capture: bool = False,
    ) -> None:
        """`captured`: gather and loss are one graph. `must_capture`: refuse (E104) where that
        fails."""
        self.algorithm, self.spec, self.precision = algorithm, spec, precision
        self.seed, self.index, self.device = seed, index, device
        self.ctx = Ctx(torch.Generator(device=device), spec, actor=index)
        self.store: ReplayStore | None = None  # made for the largest chunk so far
        self.captured, self.must_capture = captured, must_capture
        self.why_eager = ""  # the error of the capture
        self.capture_seconds = 0.0
        self._graph: _Captured | None = None
        self._stream: torch.cuda.Stream | None = None  # only one: each has its own workspace

    def barrier(self, number: int) -> None:
        """The next chunk continues no stream."""
        self.ctx.rng.manual_seed(seeding.stream_seed(self.seed, "priority", self.index, number))
        self.store = self._graph = None

    @torch.no_grad()
    def of(self, net: nn.ModuleDict, chunk: Chunk, values: dict[str, Tensor]) -> Tensor:
        """[span - 1 + T, B]: see `Chunk.priority`. Rows that cannot be drawn have values too."""
        self.ctx.values = values
        steps, width = chunk.rows.reward.shape
        store = self._store_for(chunk)
        store.add(chunk._replace(source=0))
        count = store.ring.layout.span - 1 + steps
        slots = store.newest(count)
        with store.ended():
            priority = self._launch(net, slots) if self.captured else None
            if priority is None:
                priority = self._value(net, slots)
        return priority.reshape(count, width)

    def _value(self, net: nn.ModuleDict, slots: Tensor) -> Tensor:
        assert self.store is not None
        batch = self.store.gather(slots)
        with torch.autocast(
            self.device.type, torch.bfloat16, self.precision == "bf16", cache_enabled=False
        ):
            data = self.algorithm.prepare(net, normalized(net, batch), self.ctx)
            priority = self.algorithm.loss(net, data, self.ctx).priority
        assert priority is not None, "the loss has no priorities"
        return priority.float()

    def _launch(self, net: nn.ModuleDict, slots: Tensor) -> Tensor | None:
        """By a graph, captured again for another net, store or number of rows. None, now and for
        ever, where the capture fails: `_value` gives the same in a hundred small launches."""
        cached, store = self._graph, self.store
        assert store is not None
        if cached is None or not cached.fits(net, store, slots):
            place = slots.to(self.device)
            out = torch.empty(len(slots), device=self.device)
            if self.device.type == "cuda" and self._stream is None:
                self._stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
            try:
                graph = Graph(
                    lambda: out.copy_(self._value(net, place)), self.device,
                    keeps=lambda: [out], generators=[self.ctx.rng], stream=self._stream,
                )  # fmt: skip
            except CaptureError as failed:
                if self.must_capture:
                    raise not_captured("first priorities", str(failed)) from failed
                self.captured, self.why_eager = False, str(failed)
                return None
            self.capture_seconds += graph.seconds
            self._graph = cached = _Captured(net, store, place, out, graph)
        cached.slots.copy_(slots, non_blocking=True)
        cached.graph.launch()
        return cached.out.clone()  # the store may keep it beyond the next launch

    def _store_for(self, chunk: Chunk) -> ReplayStore:
        rows, before = chunk.rows, self.store
        steps, width = rows.reward.shape
        if before is not None and before.plan.chunk >= steps:
            return before
        plan = self.algorithm.plan
        assert isinstance(plan.view, NStep)
        plan = replace(plan, sampler=Uniform(), batch=1, chunk=steps, capacity=1, feeds=())
        extras: dict[str, Any] = {k: (v.shape[2:], v.dtype) for k, v in rows.extras.items()}
        extras.pop("priority", None)
        layout = layout_of(plan, self.spec, width, extras)
        if before is not None:  # the first chunk of this size continues the others
            self.store = before.longer(plan, layout.length)
        else:
            self.store = ReplayStore(plan, self.spec, Ring(layout, self.device), on_device=False)
            self.store.start(self.seed, 1)
        return self.store
