"""Whole episodes, the same number from every environment, each used once. No replay.

Rows lie in a ring as in replay_store.py; a finished episode waits there until every environment has
its share. The ring grows when waiting episodes would be overwritten.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch

from ludus import contract
from ludus.contract import Episode, Plan
from ludus.replay.storage.ring import Ring, episode_layout, follow, host
from ludus.replay.unrolls.queue import Queue
from ludus.replay.views import SequenceView
from ludus.types import HERE, Chunk, EnvSpec, Rows, Sample

_NEVER = np.iinfo(np.int64).max
_START_ROWS = 256  # the ring's first length where no capacity says it


class Span(NamedTuple):
    """Rows [lo, hi) of an environment, by absolute number: one episode."""

    lo: int
    hi: int


class EpisodeQueue(Queue):
    """Ready when `per_env` whole episodes of every environment wait; further ones wait for the
    next sample, in order. Environments that finish more episodes than others accumulate them; with
    a capacity (rows), the oldest of that surplus are dropped.

    An episode that a stream break cuts is dropped. A barrier drops all waiting episodes, too: it
    cuts the long ones that still run, so keeping the finished ones would favour short ones. A
    checkpoint therefore needs no rows.
    """

    counters = (*Queue.counters, "dropped")
    full = False

    def __init__(
        self, plan: Plan, spec: EnvSpec, num_envs: int, device: str | torch.device = "cpu"
    ) -> None:
        assert isinstance(plan.view, Episode)
        self.plan, self.spec, self.num_envs, self.view = plan, spec, num_envs, plan.view
        self.device = torch.device(device)
        self.items = num_envs * plan.view.per_env  # of a sample
        assert plan.batch in (0, self.items), "a sample has per_env episodes per environment"
        self.ring: Ring | None = None  # made when the first chunk shows its extras
        self.planned = 0  # rows per environment that the estimate allows for
        self.copied: list[str] = []  # fields that are written as they come
        self.waiting: list[deque[Span]] = [deque() for _ in range(num_envs)]
        self.count = np.zeros(num_envs, np.int64)  # waiting
        self.open = np.full(num_envs, -1, np.int64)  # first row of the running episode; -1: none
        self.origin = HERE
        self.held = np.full(num_envs, _NEVER, np.int64)  # oldest row still needed
        self.sequence: dict[int, int] = {}  # newest chunk number of each source
        self.widths: dict[int, int] = {}  # environments of each source
        self.dropped = 0  # whole episodes never handed out
        self.warm = False  # `warmup` steps were in before the newest chunk

    @property
    def size(self) -> int:
        """Whole episodes waiting."""
        return int(self.count.sum())

    @property
    def capacity(self) -> int:
        """In rows; 0 is unbounded."""
        return self.plan.capacity

    @property
    def fill(self) -> float:
        """How much of the next sample is here."""
        return float(np.minimum(self.count, self.view.per_env).sum()) / self.items

    def add(self, chunk: Chunk) -> None:
        """Write T rows and T+1 observations of one source."""
        rows, self.warm = chunk.rows, self.steps_inserted >= self.plan.warmup
        mine, cut = follow(chunk, self.num_envs, self.widths, self.sequence)
        ring = self.ring or self._first_ring(rows)
        if cut:
            self._cut(ring, mine)
        ring = self.ring = self._with_room(ring, mine, rows.reward.shape[0])
        row = int(ring.head[mine.start])
        self._write(ring, row, mine.start, rows)
        ring.fill(
            "version", row, mine.start, (len(rows.reward), rows.reward.shape[1]), chunk.version
        )
        self._follow(ring, row, mine, rows)
        self.steps_inserted += int(rows.mask.sum())

    def _first_ring(self, rows: Rows) -> Ring:
        extras = {k: (tuple(v.shape[2:]), v.dtype) for k, v in rows.extras.items()}
        layout = episode_layout(self.plan, self.spec, self.num_envs, extras)
        self.planned = layout.length
        self.copied = [n for n in layout.fields if n in Rows._fields and n != "obs"]
        at_first = -(-self.plan.capacity // self.num_envs) or _START_ROWS
        ring = Ring(replace(layout, length=min(self.planned, at_first)), self.device)
        ring.origin = self.origin
        return ring

    def _with_room(self, ring: Ring, mine: slice, steps: int) -> Ring:
        """The ring, or a longer one, in which `steps` rows and the next observation overwrite
        nothing that is needed."""
        end = int(ring.head[mine.start]) + steps + 1
        lost = np.flatnonzero(self.held[mine] < end - ring.length) + mine.start
        if self.plan.capacity:
            for c in lost:
                self._drop_surplus(int(c), end - ring.length)
        need = max(steps + 1, end - int(min(self.held[mine].min(), end)))
        if need <= ring.length:
            return ring
        target = 2 * ring.length
        if need <= self.planned:
            target = min(target, self.planned)
        return ring.longer(max(need, target))

    def _drop_surplus(self, c: int, oldest: int) -> None:
        waiting = self.waiting[c]
        while len(waiting) > self.view.per_env and waiting[0].lo < oldest:
            waiting.popleft()
            self.dropped += 1
        self._changed(c)

    def _write(self, ring: Ring, row: int, env: int, rows: Rows) -> None:
        ring.write_rows(row, env, rows, self.copied, ring.layout.extras)
        for name, flags in (("stop", rows.last), ("begin", rows.first)):
            ring.write(name, row, env, ring.lift(flags))
        steps, width = rows.reward.shape[:2]
        ring.advance(row + steps, slice(env, env + width), has_next_obs=True)

    def _follow(self, ring: Ring, row: int, mine: slice, rows: Rows) -> None:
        """Open and close episodes where the flags of the new rows say so."""
        first, last, mask = host(rows.first)[:-1], host(rows.last), host(rows.mask)
        for t, b in np.argwhere(first | last | ~mask).tolist():
            r, c = row + t, mine.start + b
            self._truncate(ring, c, r)
            if first[t, b] or not mask[t, b]:
                self.open[c] = r if mask[t, b] else -1
                self._changed(c)
            if last[t, b]:
                self._close(c, r + 1)
        if self.view.max_length is not None:
            end = row + len(last)
            for c in (np.flatnonzero(self.open[mine] >= 0) + mine.start).tolist():
                self._truncate(ring, c, end)

    def _truncate(self, ring: Ring, c: int, end: int) -> None:
        """Close a running episode of which rows before `end` already reach the longest allowed;
        its other rows are skipped."""
        longest = self.view.max_length
        if longest is None or self.open[c] < 0 or end - self.open[c] < longest:
            return
        stop = int(self.open[c]) + longest
        ring.arrays["stop"][(stop - 1) % ring.length, c] = True
        self._close(c, stop)

    def _close(self, c: int, end: int) -> None:
        """The running episode ends before row `end`. A piece of an episode is ignored."""
        if self.open[c] < 0:
            return
        if self.warm:
            self.waiting[c].append(Span(int(self.open[c]), end))
        else:  # only the normalisers see it
            self.dropped += 1
        self.open[c] = -1
        self._changed(c)

    def _changed(self, c: int) -> None:
        waiting = self.waiting[c]
        self.count[c] = len(waiting)
        running = int(self.open[c])
        self.held[c] = waiting[0].lo if waiting else running if running >= 0 else _NEVER

    def _cut(self, ring: Ring, mine: slice) -> None:
        """The stream ends: running episodes are lost, a final observation stays where it is."""
        self.open[mine] = -1
        for c in range(mine.start, mine.stop):
            self._changed(c)
        ring.head[mine] += ring.has_next_obs[mine]
        ring.has_next_obs[mine] = False

    def ready(self) -> bool:
        return bool(self.count.min() >= self.view.per_env)

    def sample(self) -> Sample:
        """The oldest episodes of each environment; `mask` is False after an episode's end."""
        assert self.ready() and self.ring is not None, "not every environment has its episodes yet"
        ring = self.ring
        slots, longest = np.empty(self.items, np.int64), 0
        for i in range(self.items):
            c = i // self.view.per_env
            span = self.waiting[c].popleft()
            slots[i] = span.lo % ring.length * ring.num_envs + c
            longest = max(longest, span.hi - span.lo)
            self._changed(c)
        view = SequenceView(contract.Sequence(longest, longest), ring, self.spec)
        batch = view.gather(ring.index(slots))
        self.samples_drawn += int(batch.mask.sum())
        ids = torch.arange(self.popped, self.popped + self.items, device=self.device)
        self.popped += self.items
        return Sample(batch, ids, torch.ones(self.items, device=self.device))

    def break_streams(self) -> None:
        """A barrier: every environment starts over, nothing waits."""
        self.dropped += self.size
        for waiting in self.waiting:
            waiting.clear()
        self.count[:], self.open[:], self.held[:] = 0, -1, _NEVER
        if self.ring is not None:
            self.ring.head[:], self.ring.has_next_obs[:] = 0, False
