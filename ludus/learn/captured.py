"""Updates as captured CUDA graphs, their metrics, and the choice between these and eager ones."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from ludus.compute.cuda_graph import EMULATED, CaptureError, Graph, Streams, captures, not_captured
from ludus.contract import Episode, Fifo, Sequence, Unroll, View
from ludus.learn.eager import EagerUpdates, Updates
from ludus.learn.learner import Learner
from ludus.learn.minibatches import Split
from ludus.learn.periods import UpdateGraphs
from ludus.optim import prime
from ludus.replay.replay_store import ReplayStore
from ludus.replay.store import Store
from ludus.replay.unrolls.ring import UnrollRing
from ludus.types import Sample, map_fields, tree_leaves

Replay = ReplayStore | UnrollRing


class DeviceMetrics:
    """Sums of metrics and counts of refused updates, kept on the learner's device. Written in place
    by every update; read, and emptied, when a line is logged. The host waits for no number before
    it reads it, so an update can be captured.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.sums: dict[str, Tensor] = {}
        # By the groups that step: the number of updates in the sums, and the metrics they have.
        self.applied: dict[frozenset[str], Tensor] = {}
        self.names: dict[frozenset[str], list[str]] = {}
        self.bad = self._zero()  # updates refused since the beginning
        self.bad_in_a_row = self._zero()
        self.longest = self._zero()  # the most that were ever refused in a row
        self.refused = torch.zeros((), device=device)  # of the newest update: 1 where refused
        self._counts = torch.zeros(2, dtype=torch.float64)
        if device.type == "cuda":
            self._counts = self._counts.pin_memory()
        self._event: torch.cuda.Event | None = None
        self._pending = False  # counts were sent and not read yet
        self._seen: dict[str, Tensor] = {}  # the sums when `newest` was last called

    def _zero(self) -> Tensor:
        return torch.zeros((), dtype=torch.float64, device=self.device)

    def check_finite(self, *numbers: Tensor) -> Tensor:
        """1 if any of the numbers is not finite, else 0; counted."""
        bad = ~torch.isfinite(torch.stack([n.detach().float() for n in numbers]).sum())
        self.refused.copy_(bad)
        self.bad.add_(self.refused)
        self.bad_in_a_row.add_(1).mul_(self.refused)
        torch.maximum(self.longest, self.bad_in_a_row, out=self.longest)
        return self.refused

    def add(self, metrics: Mapping[str, Tensor], stepping: frozenset[str] = frozenset()) -> None:
        """Add to the sums, except those of a refused update."""
        self.names[stepping] = list(metrics)
        if stepping not in self.applied:
            self.applied[stepping] = self._zero()
        self.applied[stepping].add_(1 - self.refused)
        for name, value in metrics.items():
            if name not in self.sums:
                self.sums[name] = self._zero()
            self.sums[name].add_(torch.where(self.refused > 0, 0.0, value.detach().double()))

    def take(self) -> dict[str, float]:
        """Means over the updates since the last call."""
        if not self.sums:
            return {}
        tensors = (*self.sums.values(), *self.applied.values())
        numbers = torch.stack(tensors).tolist()
        for tensor in tensors:
            tensor.zero_()
        self._seen = {}
        counts: dict[str, float] = dict.fromkeys(self.sums, 0.0)
        for stepping, count in zip(self.applied, numbers[len(self.sums) :], strict=True):
            for name in self.names[stepping]:
                counts[name] += count
        sums = dict(zip(self.sums, numbers, strict=False))
        return {name: total / counts[name] for name, total in sums.items() if counts[name]}

    def newest(self, stepping: frozenset[str] = frozenset()) -> dict[str, Tensor]:
        """The metrics of the newest update, in which `stepping` stepped, if this is called after
        each one; 0 if refused."""
        seen, self._seen = self._seen, {k: v.clone() for k, v in self.sums.items()}
        new = {k: v - seen[k] if k in seen else v for k, v in self._seen.items()}
        return {k: new[k] for k in self.names.get(stepping, ())}

    def send_counts(self) -> None:
        """Copy the counts of refused updates to the host, where `read_counts` finds them later.

        One copy at a time: on a device that is always late, the newest would never be complete.
        """
        if self._pending:
            return
        self._pending = True
        self._counts.copy_(torch.stack((self.bad, self.longest)), non_blocking=True)
        self._event = self._mark()

    def _mark(self) -> torch.cuda.Event | None:
        if self.device.type != "cuda":
            return None
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record()
        return event

    def read_counts(self, *, wait: bool = False) -> tuple[int, int] | None:
        """(refused, the most in a row) of the newest copy; None while it is under way."""
        if self._event is not None and wait:
            self._event.synchronize()
        elif self._event is not None and not self._event.query():  # type: ignore[no-untyped-call]
            return None
        self._pending = False
        return int(self._counts[0]), int(self._counts[1])

    def changing(self) -> list[Tensor]:
        """Everything that an update writes."""
        counts = (self.bad, self.bad_in_a_row, self.longest, self.refused)
        return [*self.sums.values(), *self.applied.values(), *counts]


class _Captured(ABC):
    """The common part of captured updates: streams, learning rates, refused updates, and eager
    updates where the capture fails."""

    def __init__(
        self, store: Store, learner: Learner, streams: Streams, *, must_capture: bool
    ) -> None:
        self.store, self.learner, self.streams = store, learner, streams
        self.must_capture = must_capture
        self.metrics = learner.device_metrics = DeviceMetrics(learner.device)
        self.mode = "captured" if learner.device.type == "cuda" else EMULATED
        self.capture_seconds = 0.0
        self.fallback: EagerUpdates | None = None
        self.taken: list[Sample] = []  # from the queue; the learner's stream may still read them

    def start(self, values: dict[str, Tensor]) -> None:
        if self.fallback is None:
            try:
                self._start(values)
                return
            except CaptureError as failed:
                if self.must_capture:
                    raise not_captured("updates", str(failed)) from failed
                self._fall_back(str(failed), values)
        assert self.fallback is not None
        self.fallback.start(values)

    @abstractmethod
    def _start(self, values: dict[str, Tensor]) -> None: ...

    def _fall_back(self, why: str, values: dict[str, Tensor]) -> None:
        """A failed capture has restored everything: eager updates begin at the same place."""
        self.fallback = EagerUpdates(self.store, self.learner, why=why)
        self.mode = self.fallback.mode
        self.learner.optimizer.__dict__.pop("found_inf", None)
        for sample in self.taken:
            priority = self.learner.learn(sample, values)
            if priority is not None:
                self.store.feedback(sample.ids, priority)
        self.taken = []

    def _attach(self, values: dict[str, Tensor]) -> None:
        """Make the schedules' tensors, which change in place, the learning rates."""
        learner = self.learner
        learner.ctx.values = values
        for group in learner.optimizer.param_groups:
            rate = learner.rate(group)
            group["lr"] = rate if learner.device.type == "cuda" else float(rate)

    def _capture(self, fn: Callable[[], None], *generators: torch.Generator) -> Graph:
        # Again, since a checkpoint may have replaced the optimizer's state.
        known = prime(self.learner.optimizer)
        assert known, "why_eager has checked it"
        graph = Graph(
            fn, self.learner.device, keeps=self._changing, stream=self.streams.learn,
            generators=[self.learner.ctx.rng, *generators],
        )  # fmt: skip
        self.capture_seconds += graph.seconds
        return graph

    def _capture_update(self, fn: Callable[[], None], *generators: torch.Generator) -> UpdateGraphs:
        learner = self.learner
        return UpdateGraphs(
            learner.periods, learner.ctx, lambda: learner.next_update,
            lambda once: self._capture(once, *generators), fn,
        )  # fmt: skip

    def _changing(self) -> list[Tensor]:
        """Every tensor that an update writes."""
        learner = self.learner
        state = [x for entry in learner.optimizer.state.values() for x in entry.values()]
        tensors = [*learner.net.parameters(), *learner.net.buffers()]
        tensors += [*self.metrics.changing(), learner.ctx.updates]
        return [*tensors, *(x for x in state if isinstance(x, Tensor))]

    def finish(self) -> None:
        if self.fallback is not None:
            self.fallback.finish()
            return
        self.streams.join()
        self.taken = []
        self.learner.check_refused()


class CapturedReplay(_Captured):
    """Draw, gather, loss, backward, step and feedback as one graph; one launch is one update."""

    store: Replay

    def __init__(
        self, store: Replay, learner: Learner, streams: Streams, *, must_capture: bool
    ) -> None:
        super().__init__(store, learner, streams, must_capture=must_capture)
        self.refused = torch.zeros(store.plan.batch, dtype=torch.int64, device=learner.device)
        self.graph: UpdateGraphs | None = None
        learner.refused_batch = lambda: store.gather(self.refused)

    def _once(self) -> None:
        learner = self.learner
        batch, draw = self.store.sample_on_device()
        priority = learner.learn_batch(batch, draw.weight, on_device=True)
        with torch.no_grad():
            bad = self.metrics.refused > 0
            if priority is not None and learner.weighted:
                # The sampler keeps the old priority where the new one is not finite.
                self.store.feedback_on_device(draw.slots, torch.where(bad, torch.nan, priority))
            self.refused.copy_(torch.where(bad, draw.slots, self.refused))

    def _changing(self) -> list[Tensor]:
        return [*super()._changing(), *self.store.changing(), self.refused]

    def capture(self) -> None:
        self.graph = self._capture_update(self._once, self.store.rng)

    def _start(self, values: dict[str, Tensor]) -> None:
        if not self.store.ready():
            return
        self._attach(values)
        if self.graph is None:
            self.capture()
        assert self.graph is not None
        with self.streams.learning():
            while self.store.ready():
                self.store.count_sample()
                self.graph.launch()
                self.learner.count_update()
            self.metrics.send_counts()


class CapturedUnrolls(_Captured):
    """Unrolls of a queue, and replayed unrolls and sequences that are split into minibatches.

    `prepare` is one graph, a minibatch's update another; the order of rows is drawn eagerly from
    the learner's generator, as without graphs."""

    batch: Any = None  # samples are copied here: graphs read fixed addresses
    data: Any = None  # the output of `prepare`
    items: Tensor | None = None  # of the minibatch: rows or environments
    _prepare: Graph | None = None
    _update: UpdateGraphs | None = None

    def _start(self, values: dict[str, Tensor]) -> None:
        self._attach(values)
        while self.store.ready():
            self.taken.append(self.store.sample())
        if not self.taken:
            return
        if self._update is None:
            self._stage(self.taken[0].batch)
            self._build()
        # Copied by the learner's stream: the acting stream would have to wait for the update on one
        # sample before it could copy the next.
        with self.streams.learning():
            for sample in self.taken:
                self._stage(sample.batch)
                self.launch()
            self.metrics.send_counts()

    def ready(self) -> bool:
        """Whether there is something to launch."""
        return self._update is not None

    def _stage(self, batch: Any) -> None:
        device = self.learner.device
        if self.batch is None:
            self.batch = map_fields(lambda x: torch.empty_like(x, device=device), batch)
        _copy(self.batch, batch)

    def _build(self) -> None:
        learner = self.learner
        # It leaves real numbers in `data`, on which the next capture runs.
        self._prepare = self._capture(self._make)
        if learner.splits:
            count = Split.size(learner.plan, self.data) // learner.plan.minibatches
            self.items = torch.arange(count, device=learner.device)
        self._update = self._capture_update(self._once)

    def _make(self) -> None:
        made = self.learner.prepared(self.batch)
        if self.data is None:
            self.data = map_fields(torch.clone, made)
        _copy(self.data, made)

    def _once(self) -> None:
        part = self.data
        if self.items is not None:
            part = Split(self.learner.plan, self.data).part(self.items)
        self.learner.update(part, None, on_device=True)

    def launch(self) -> None:
        learner = self.learner
        assert self._prepare is not None and self._update is not None
        self._prepare.launch()
        if self.items is None:
            self._update.launch()
            learner.count_update()
        else:
            for part in learner.minibatch_items(Split.size(learner.plan, self.data)):
                self.items.copy_(part)
                self._update.launch()
                learner.count_update()
        learner.after_sample(self.data)


def _copy(target: Any, source: Any) -> None:
    """Every tensor of a NamedTuple of trees and Nones, in place."""
    for places, values in zip(target, source, strict=True):
        if places is not None:
            for place, value in zip(tree_leaves(places), tree_leaves(values), strict=True):
                place.copy_(value, non_blocking=True)


def why_eager(store: Store, learner: Learner) -> str | None:
    """Why updates on this plan cannot be captured; None if they can."""
    plan = learner.plan
    if len(plan.feeds) > 1 or plan.needs_features:
        return "several feeds, or features, need the host"
    if isinstance(plan.view, Episode):
        return "samples of Episode change their shape"
    if not isinstance(plan.sampler, Fifo) and not _draws_on_device(store):
        return "the replay draws on the host"
    batch, over = getattr(store, "plan", plan).batch, plan.minibatch_over
    items = batch if over == "envs" else batch * _steps(plan.view)
    if items % plan.minibatches:
        return f"{items} {over} do not divide into {plan.minibatches} equal minibatches"
    if not prime(learner.optimizer):
        return f"{type(learner.optimizer).__name__} is not known to be capturable"
    return None


def _steps(view: View) -> int:
    """Rows of an item, padding included."""
    if isinstance(view, Sequence):
        return view.burn_in + view.length
    return view.length if isinstance(view, Unroll) else 1


def _draws_on_device(store: Store) -> bool:
    return isinstance(store, Replay) and store.draws_on_device


def build_updates(
    store: Store, learner: Learner, streams: Streams, *, capture: str, overlap: bool
) -> Updates:
    """`capture`: on (E104 where it cannot be), off, or auto, which is on where there is a GPU."""
    background = overlap and learner.device.type == "cpu"
    why: str | None = "capture=off" if learner.device.type == "cuda" else ""
    if captures(capture, learner.device.type):
        why = why_eager(store, learner)
    if why is not None and capture == "on":
        raise not_captured("updates", why)
    if why is not None:
        return EagerUpdates(store, learner, background=background, why=why)
    if isinstance(store, Replay) and not learner.splits:
        return CapturedReplay(store, learner, streams, must_capture=capture == "on")
    return CapturedUnrolls(store, learner, streams, must_capture=capture == "on")
