"""Samples that were drawn elsewhere, for example by a replay in another process."""

from __future__ import annotations

from collections import deque

import torch
from torch import Tensor

from ludus.types import Chunk, Sample


class Arrivals:
    """A store for the learner's end: every sample is used once, in the order of arrival, and new
    priorities wait until they are taken. Pace, rows and generators are with those who draw."""

    steps_inserted = 0
    full = False

    def __init__(self) -> None:
        self.samples_drawn = 0  # items
        self._waiting: deque[Sample] = deque()
        self._priorities: list[tuple[Tensor, Tensor]] = []

    def put(self, sample: Sample) -> None:
        self._waiting.append(sample)

    def add(self, chunk: Chunk) -> None:
        raise NotImplementedError("rows go to the store that draws the samples")

    def ready(self) -> bool:
        return bool(self._waiting)

    def sample(self) -> Sample:
        sample = self._waiting.popleft()
        self.samples_drawn += len(sample.ids)
        return sample

    def feedback(self, ids: Tensor, priority: Tensor) -> None:
        """Keep priorities; one that is not finite belongs to an update that was refused."""
        self._priorities.append((ids, priority))

    def rank(self, ids: Tensor, features: Tensor) -> None:
        """Nothing is ranked here."""

    def take_priorities(self) -> list[tuple[Tensor, Tensor]]:
        """(ids, priorities) of the updates since the last call, on the host, without those of
        refused updates. Waits for the device; call it after `finish`."""
        taken, self._priorities = self._priorities, []
        found = []
        for ids, priority in taken:
            numbers = priority.cpu()
            if bool(torch.isfinite(numbers).all()):
                found.append((ids.cpu(), numbers))
        return found

    def break_streams(self) -> None:
        """A barrier: drop what waits."""
        self._waiting.clear()
        self._priorities.clear()

    def reseed(self, barrier: int) -> None:
        """Nothing is drawn here."""
