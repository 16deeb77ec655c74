"""Captured updates on batches that arrive from elsewhere."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ludus.compute.cuda_graph import Streams, captures, not_captured
from ludus.contract import Episode
from ludus.learn.captured import _Captured, _copy
from ludus.learn.eager import EagerUpdates, Updates
from ludus.learn.learner import Learner
from ludus.learn.periods import UpdateGraphs
from ludus.optim import prime
from ludus.replay.store import Store
from ludus.types import Sample, map_fields


class CapturedStaged(_Captured):
    """A sample is copied to fixed addresses, one graph learns from it, and its new priorities go to
    the store. All samples must have the shapes of the first."""

    store: Store
    batch: Any = None
    weight: Tensor | None = None
    priority: Tensor | None = None  # of the newest update; None: the loss gives none
    graph: UpdateGraphs | None = None

    def _start(self, values: dict[str, Tensor]) -> None:
        self._attach(values)
        learned = False
        while self.store.ready():
            sample = self.store.sample()
            self.taken = [sample]  # of a capture that fails; its memory is used again after `ready`
            if self.graph is None:
                self._stage(sample)
                self.graph = self._capture_update(self._once)
            with self.streams.learning():
                self._stage(sample)
                self.graph.launch()
                self.learner.count_update()
                if self.priority is not None:
                    self.store.feedback(sample.ids, self.priority.clone())
            learned = True
        if learned:
            with self.streams.learning():
                self.metrics.send_counts()

    def _stage(self, sample: Sample) -> None:
        device = self.learner.device
        if self.batch is None:
            self.batch = map_fields(lambda x: torch.empty_like(x, device=device), sample.batch)
            self.weight = torch.empty_like(sample.weight, device=device)
        assert self.weight is not None
        _copy(self.batch, sample.batch)
        self.weight.copy_(sample.weight, non_blocking=True)

    def _once(self) -> None:
        assert self.weight is not None
        new = self.learner.learn_batch(self.batch, self.weight, on_device=True)
        if new is None:
            return
        with torch.no_grad():
            if self.priority is None:
                self.priority = torch.empty_like(new)
            self.priority.copy_(torch.where(self.metrics.refused > 0, torch.nan, new))


def why_not_staged(learner: Learner) -> str | None:
    """Why updates on arriving batches cannot be captured; None if they can."""
    if isinstance(learner.plan.view, Episode):
        return "samples of Episode change their shape"
    if learner.splits:
        return "a batch that arrives is one update, not several epochs or minibatches"
    if not prime(learner.optimizer):
        return f"{type(learner.optimizer).__name__} is not known to be capturable"
    return None


def build_staged(
    store: Store, learner: Learner, streams: Streams, *, capture: str, overlap: bool = False
) -> Updates:
    """As `build_updates`, for samples that arrive."""
    background = overlap and learner.device.type == "cpu"
    why: str | None = "capture=off" if learner.device.type == "cuda" else ""
    if captures(capture, learner.device.type):
        why = why_not_staged(learner)
    if why is not None and capture == "on":
        raise not_captured("updates", why)
    if why is not None:
        return EagerUpdates(store, learner, background=background, why=why)
    return CapturedStaged(store, learner, streams, must_capture=capture == "on")
