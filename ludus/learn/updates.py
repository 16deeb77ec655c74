"""How the updates that are due get done: now, beside the collecting, or as captured graphs.

`start` begins them and `finish` waits; what lies between must not touch nets, store or optimizer.
Which updates are due, on which rows and with which weights never depends on how fast anything is.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any, Protocol

import torch
from torch import Tensor

from ludus.compute.cuda_graph import EMULATED, CaptureError, Graph, Lanes, not_captured
from ludus.contract import Fifo, NStep, Unroll
from ludus.learn.learner import Learner, map_fields
from ludus.optim import prime
from ludus.replay.replay_store import ReplayStore
from ludus.replay.store import Store
from ludus.types import Sample, tree_leaves


class Updates(Protocol):
    mode: str  # "captured", or "eager" and why
    capture_seconds: float  # spent on graphs so far

    def start(self, values: dict[str, Tensor]) -> None: ...

    def finish(self) -> None: ...


class EagerUpdates:
    """Sample, learn, feed back. `beside`: in a thread of its own, with the same result."""

    def __init__(
        self, store: Store, learner: Learner, *, beside: bool = False, why: str = ""
    ) -> None:
        self.store, self.learner, self.beside = store, learner, beside
        self.mode = f"eager: {why}" if why else "eager"
        self.capture_seconds = 0.0
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def start(self, values: dict[str, Tensor]) -> None:
        # A callback on updates is somebody's code that expects to be the only one running.
        if not self.beside or self.learner.on_update is not None or not self.store.ready():
            self._learn(values)
            return
        self._thread = threading.Thread(target=self._guarded, args=(values,), name="learner")
        self._thread.start()

    def finish(self) -> None:
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def _guarded(self, values: dict[str, Tensor]) -> None:
        try:
            self._learn(values)
        except BaseException as error:
            self._error = error

    def _learn(self, values: dict[str, Tensor]) -> None:
        while self.store.ready():
            sample = self.store.sample()
            priority = self.learner.learn(sample, values)
            if priority is not None:
                self.store.feedback(sample.ids, priority)


class _Captured:
    """What both kinds of captured updates share: streams, rates, refused updates, and what is
    done instead where the capture fails."""

    def __init__(self, store: Store, learner: Learner, lanes: Lanes, *, must: bool) -> None:
        self.store, self.learner, self.lanes, self.must = store, learner, lanes, must
        self.mode = "captured" if learner.device.type == "cuda" else EMULATED
        self.capture_seconds = 0.0
        self.instead: EagerUpdates | None = None
        self.taken: list[Sample] = []  # off the queue; a stream may still read them

    def start(self, values: dict[str, Tensor]) -> None:
        if self.instead is None:
            try:
                self._start(values)
                return
            except CaptureError as failed:
                if self.must:
                    raise not_captured("updates", str(failed)) from failed
                self._fall_back(str(failed), values)
        assert self.instead is not None
        self.instead.start(values)

    def _start(self, values: dict[str, Tensor]) -> None:
        raise NotImplementedError

    def _fall_back(self, why: str, values: dict[str, Tensor]) -> None:
        """Capturing has put everything back, so eager updates begin where these would have."""
        self.instead = EagerUpdates(self.store, self.learner, why=why)
        self.mode = self.instead.mode
        self.learner.optimizer.__dict__.pop("found_inf", None)
        for sample in self.taken:
            self.learner.learn(sample, values)
        self.taken = []

    def _attach(self, values: dict[str, Tensor]) -> None:
        """Learning rates become the schedules' own tensors, which change in place."""
        learner = self.learner
        learner.ctx.values = values
        for group in learner.optimizer.param_groups:
            rate = learner.rate(group)
            group["lr"] = rate if learner.device.type == "cuda" else float(rate)

    def _prime(self) -> None:
        """Once more: a checkpoint that was loaded since brought its own optimizer state."""
        known = prime(self.learner.optimizer)
        assert known, "why_not has asked already"

    def _changing(self) -> list[Tensor]:
        learner = self.learner
        state = [x for entry in learner.optimizer.state.values() for x in entry.values()]
        tensors = [*learner.net.parameters(), *learner.net.buffers(), *learner.tally.changing()]
        return [*tensors, *(x for x in state if isinstance(x, Tensor))]

    def finish(self) -> None:
        if self.instead is not None:
            self.instead.finish()
            return
        self.lanes.join()
        self.taken = []
        self.learner.hear_refused()


class CapturedReplay(_Captured):
    """Draw, gather, loss, backward, step and feedback as one graph; one launch is one update."""

    store: ReplayStore

    def __init__(self, store: ReplayStore, learner: Learner, lanes: Lanes, *, must: bool) -> None:
        super().__init__(store, learner, lanes, must=must)
        self.suspect = torch.zeros(store.plan.batch, dtype=torch.int64, device=learner.device)
        self.graph: Graph | None = None
        learner.evidence = lambda: store.gather(self.suspect)

    def _once(self) -> None:
        learner = self.learner
        batch, draw = self.store.sample_on_device()
        data = learner.prepared(batch)
        priority = learner.update_here(data, draw.weight if learner.weighted else None)
        with torch.no_grad():
            learner.algorithm.after_sample(learner.net, data, learner.ctx)
            bad = learner.tally.refused > 0
            if priority is not None and learner.weighted:
                # Not finite means: keep the old one.
                self.store.feedback_on_device(draw.slots, torch.where(bad, torch.nan, priority))
            self.suspect.copy_(torch.where(bad, draw.slots, self.suspect))

    def capture(self) -> None:
        self._prime()
        self.graph = Graph(
            self._once,
            self.learner.device,
            keeps=lambda: [*self._changing(), *self.store.changing(), self.suspect],
            generators=[self.learner.ctx.rng, self.store.rng],
            stream=self.lanes.learn,
        )
        self.capture_seconds += self.graph.seconds

    def _start(self, values: dict[str, Tensor]) -> None:
        if not self.store.ready():
            return
        self._attach(values)
        if self.graph is None:
            self.capture()
        assert self.graph is not None
        with self.lanes.learning():
            while self.store.ready():
                self.store.count_sample()
                self.graph.launch()
                self.learner.updated_here()
            self.learner.tally.ask()


class CapturedUnrolls(_Captured):
    """`prepare` as one graph, a minibatch's update as another; the order of rows is drawn eagerly
    from the learner's generator, as the eager learner draws it."""

    def __init__(self, store: Store, learner: Learner, lanes: Lanes, *, must: bool) -> None:
        super().__init__(store, learner, lanes, must=must)
        self.batch: Any = None  # where samples are copied to: graphs read fixed places
        self.data: Any = None  # what `prepare` made of it
        self.rows: Tensor | None = None
        self._prepare: Graph | None = None
        self._update: Graph | None = None

    def _start(self, values: dict[str, Tensor]) -> None:
        self._attach(values)
        while self.store.ready():
            self.taken.append(self.store.sample())
        if not self.taken:
            return
        if self._update is None:
            self._stage(self.taken[0].batch)
            self._build()
        # Staged where it is learned from: were it done by the stream that acts, acting would wait
        # for the update of one sample before the next could take its place.
        with self.lanes.learning():
            for sample in self.taken:
                self._stage(sample.batch)
                self.launch()
            self.learner.tally.ask()

    def ready(self) -> bool:
        """Whether there is something to launch."""
        return self._update is not None

    def _stage(self, batch: Any) -> None:
        device = self.learner.device
        if self.batch is None:
            self.batch = map_fields(lambda x: torch.empty_like(x, device=device), batch)
        for place, value in zip(_leaves(self.batch), _leaves(batch), strict=True):
            place.copy_(value, non_blocking=True)

    def _build(self) -> None:
        learner, plan = self.learner, self.learner.plan
        self._prime()
        # Leaves real numbers in `data` for the next capture to run on.
        self._prepare = Graph(
            self._make, learner.device, keeps=self._changing, generators=[learner.ctx.rng],
            stream=self.lanes.learn,
        )  # fmt: skip
        if plan.epochs > 1 or plan.minibatches > 1:
            count = self.data.mask.numel() // plan.minibatches
            self.rows = torch.arange(count, device=learner.device)
        self._update = Graph(
            self._once, learner.device, keeps=self._changing, generators=[learner.ctx.rng],
            stream=self.lanes.learn,
        )  # fmt: skip
        self.capture_seconds += self._prepare.seconds + self._update.seconds

    def _make(self) -> None:
        made = self.learner.prepared(self.batch)
        if self.data is None:
            self.data = map_fields(torch.clone, made)
        for place, value in zip(_leaves(self.data), _leaves(made), strict=True):
            place.copy_(value)

    def _once(self) -> None:
        rows = self.rows
        part = self.data
        if rows is not None:
            part = map_fields(lambda x: x.flatten(0, 1)[rows], self.data)
        self.learner.update_here(part, None)

    def launch(self) -> None:
        learner, plan = self.learner, self.learner.plan
        assert self._prepare is not None and self._update is not None
        self._prepare.launch()
        if self.rows is None:
            self._update.launch()
            learner.updated_here()
        else:
            count = self.data.mask.numel()
            for _ in range(plan.epochs):
                order = torch.randperm(count, generator=learner.ctx.rng, device=learner.device)
                for part in order.tensor_split(plan.minibatches):
                    self.rows.copy_(part)
                    self._update.launch()
                    learner.updated_here()
        with torch.no_grad():
            learner.algorithm.after_sample(learner.net, self.data, learner.ctx)


def _leaves(data: Any) -> Iterable[Tensor]:
    """Every tensor of a NamedTuple of trees and Nones."""
    return [leaf for x in data if x is not None for leaf in tree_leaves(x)]


def why_not(store: Store, learner: Learner) -> str | None:
    """Why updates on this plan cannot be captured; None if they can."""
    plan = learner.plan
    if isinstance(plan.view, NStep):
        if not (isinstance(store, ReplayStore) and store.draws_on_device):
            return "the replay draws on the host"
    elif isinstance(plan.view, Unroll) and isinstance(plan.sampler, Fifo):
        rows = getattr(store, "plan", plan).batch * plan.view.length
        if rows % plan.minibatches:
            return f"{rows} rows do not divide into {plan.minibatches} equal minibatches"
    else:
        return f"samples of {type(plan.view).__name__} change their shape"
    if not prime(learner.optimizer):
        return f"{type(learner.optimizer).__name__} is not known to be capturable"
    return None


def build_updates(
    store: Store, learner: Learner, lanes: Lanes, *, capture: str, overlap: bool
) -> Updates:
    """`capture`: on (E104 where it cannot be), off, or auto, which is on where there is a GPU."""
    beside = overlap and learner.device.type == "cpu"
    wanted = capture == "on" or (capture == "auto" and learner.device.type == "cuda")
    if not wanted:
        why = "capture=off" if learner.device.type == "cuda" else ""
        return EagerUpdates(store, learner, beside=beside, why=why)
    reason = why_not(store, learner)
    if reason is not None and capture == "on":
        raise not_captured("updates", reason)
    if reason is not None:
        return EagerUpdates(store, learner, beside=beside, why=reason)
    if isinstance(store, ReplayStore):
        return CapturedReplay(store, learner, lanes, must=capture == "on")
    return CapturedUnrolls(store, learner, lanes, must=capture == "on")


__all__ = ["CapturedReplay", "CapturedUnrolls", "EagerUpdates", "Updates", "build_updates"]
