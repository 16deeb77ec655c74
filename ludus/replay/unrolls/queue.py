"""First in, first out: every unroll is used once, in the order of arrival. No replay.

Chunks of any length are cut into unrolls of `length` rows; each column of a chunk is one unroll.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import torch
from torch import Tensor

from ludus.contract import Plan, Unroll
from ludus.replay.unrolls.assembler import Assembler, join, narrow
from ludus.types import HERE, Chunk, EnvSpec, Origin, Sample, Traj


class Queue:
    """The common part of stores that use every row once: counters, and nothing random."""

    counters: tuple[str, ...] = ("steps_inserted", "samples_drawn", "popped")
    steps_inserted = samples_drawn = 0
    popped = 0  # items handed out; numbers the next one
    beta = 0.0

    def break_streams(self) -> None:
        """A barrier: drop what waits, in the uninterrupted run too, so that nothing is saved."""
        raise NotImplementedError

    def feedback(self, ids: Tensor, priority: Tensor) -> None:
        """A queue has no use for priorities."""

    def rank(self, ids: Tensor, features: Tensor) -> None:
        """Nor for features."""

    def reseed(self, barrier: int) -> None:
        """A queue draws nothing at random."""

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Counters only: the barrier of a checkpoint leaves nothing else."""
        return {}, {name: getattr(self, name) for name in self.counters}

    def load(self, tensors: dict[str, Tensor], numbers: dict[str, Any]) -> None:
        self.break_streams()
        for name in self.counters:
            setattr(self, name, int(numbers[name]))


class UnrollQueue(Queue):
    """Ready when `batch` columns wait. With a capacity (rows), `full` tells the producer to wait;
    adding to a full queue is refused, so nothing is lost or trained on late without notice.

    An unroll that is complete before `warmup` steps are in is dropped: only the normalisers see it.
    """

    def __init__(self, plan: Plan, spec: EnvSpec, origin: Origin = HERE) -> None:
        assert isinstance(plan.view, Unroll)
        self.plan, self.length = plan, plan.view.length
        self.assembler = Assembler(spec, self.length)
        self.assembler.origin = origin
        self.waiting: deque[Traj] = deque()  # [T, columns of the chunk]
        self.steps: deque[int] = deque()  # of each waiting column; counted on the host
        self.columns = 0  # waiting

    @property
    def size(self) -> int:
        return self.columns

    @property
    def capacity(self) -> int:
        """In columns; 0 is unbounded."""
        return self.plan.capacity // self.length

    @property
    def fill(self) -> float:
        return self.columns / max(self.capacity, self.plan.batch)

    @property
    def full(self) -> bool:
        return self.capacity > 0 and self.columns >= max(self.capacity, self.plan.batch)

    def add(self, chunk: Chunk) -> None:
        if self.full:
            raise BufferError("the queue is full: sample from it before adding more")
        warm = self.steps_inserted >= self.plan.warmup
        self.steps_inserted += int(chunk.rows.mask.sum())
        made = self.assembler.add(chunk)
        if not warm:
            return
        left = self.assembler.pending[chunk.source].steps
        whole = chunk.rows.mask.shape[0] == self.length and not left
        for traj in made:
            self.waiting.append(traj)
            self.columns += traj.reward.shape[1]
            # The chunk's own mask is on the host; the unroll's may be on a device.
            self.steps.extend((chunk.rows.mask if whole else traj.mask).sum(0).tolist())

    def has(self, items: int) -> bool:
        return self.columns >= items

    def ready(self) -> bool:
        return self.has(self.plan.batch)

    def sample(self, items: int | None = None) -> Sample:
        parts: list[Traj] = []
        items = need = items or self.plan.batch
        while need:
            traj = self.waiting.popleft()
            have = traj.reward.shape[1]
            if have > need:  # the rest stays first in line
                self.waiting.appendleft(narrow(traj, need, have))
                traj, have = narrow(traj, 0, need), need
            parts.append(traj)
            need -= have
        batch = parts[0] if len(parts) == 1 else join(parts)
        self.columns -= items
        self.samples_drawn += sum(self.steps.popleft() for _ in range(items))
        ids = torch.arange(self.popped, self.popped + items)
        self.popped += items
        return Sample(batch, ids, torch.ones(items, device=batch.reward.device))

    def break_streams(self) -> None:
        """A barrier: drop waiting unrolls, in the uninterrupted run too, so that none are saved.

        Between updates that is less than one batch; where a batch is every column, it is nothing.
        """
        self.assembler.reset()
        self.waiting.clear()
        self.steps.clear()
        self.columns = 0
