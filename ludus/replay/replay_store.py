"""Replay of single transitions or sequences: a ring, a view and a sampler behind one store, and the
replay ratio."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ludus import contract
from ludus.contract import NStep, Plan, Prioritized
from ludus.replay import checkpoint
from ludus.replay.device_draws import DeviceDraws
from ludus.replay.samplers.device import DeviceSampler
from ludus.replay.samplers.host_tree import HostTree
from ludus.replay.samplers.prioritized import PrioritizedSampler
from ludus.replay.samplers.uniform import Ranking, UniformSampler
from ludus.replay.storage.ring import Ids, Ring, follow, host, tensor
from ludus.replay.views import Flags, Items, NStepView, SequenceView, Starts
from ludus.seeding import generator
from ludus.types import Chunk, EnvSpec, Rows, Sample, Traj, Transition

_COPIED = ("action", "reward", "discount", "action_mask", "first")
_COUNTERS = ("steps_inserted", "samples_drawn", "missing")


@dataclass
class ReplayRatio:
    """When the learner may draw: one update is allowed when `warmup` steps are in; from then
    on the samples drawn follow the steps inserted:

        ready  <=>  steps_inserted >= warmup  and
                   samples_drawn <= ratio * (steps_inserted - warmup)

    So the first batch is drawn at exactly `warmup` steps and each further one when the steps since
    then have paid for all batches before it. Only rows with mask=True count, on both sides.
    """

    ratio: float
    warmup: int = 0
    steps_inserted: int = 0
    samples_drawn: int = 0  # transitions, or trained steps of sequences and unrolls
    missing: int = 0  # rows to collect again before learning goes on, after a resume without them

    def insert(self, steps: int) -> None:
        """Rows of a refill stand for rows that were counted already."""
        again = min(self.missing, steps)
        self.missing -= again
        self.steps_inserted += steps - again

    def ready(self, ahead: int = 0) -> bool:
        """Whether a batch is due, had `ahead` samples more been drawn."""
        # The slack forgives rounding in ratios such as 0.1; it is far below one sample.
        paid = self.ratio * (self.steps_inserted - self.warmup) + 1e-6
        warm = self.steps_inserted >= self.warmup
        return not self.missing and warm and self.samples_drawn + ahead <= paid

    def state(self) -> dict[str, int]:
        return {name: getattr(self, name) for name in _COUNTERS}

    def load(self, numbers: Mapping[str, Any]) -> None:
        for name in _COUNTERS:
            setattr(self, name, int(numbers[name]))


class PacedStore(DeviceDraws):
    """The common part of stores that draw again and again, as often as the replay ratio says."""

    @property
    def steps_inserted(self) -> int:
        """Rows with mask=True added so far."""
        return self.ratio.steps_inserted

    @property
    def samples_drawn(self) -> int:
        """Transitions, or steps (mask=True) of sequences and unrolls."""
        self.read_count()
        return self.ratio.samples_drawn

    @property
    def size(self) -> int:
        """Items that may be drawn now."""
        return self.sampler.members.count

    @property
    def missing(self) -> int:
        """Rows to collect again before learning goes on, after a resume without them."""
        return self.ratio.missing

    def refill(self, rows: int) -> None:
        self.ratio.missing = rows

    def has(self, items: int) -> bool:
        """Whether so many may be drawn, whatever the replay ratio says."""
        return self.size > 0 or not items

    def ready(self) -> bool:
        return self.size > 0 and self.due()


class ReplayStore(PacedStore):
    """Replay of single transitions or sequences from one ring."""

    full = False

    def __init__(
        self, plan: Plan, spec: EnvSpec, ring: Ring, on_device: bool | None = None
    ) -> None:
        self.plan, self.spec, self.ring = plan, spec, ring
        layout = ring.layout
        self.ratio = ReplayRatio(plan.replay_ratio, plan.warmup)
        self.count_on(ring.device, 1, layout.span)
        self.view: NStepView | SequenceView
        self.starts: Starts | None = None
        if isinstance(plan.view, NStep):
            self.view = NStepView(plan.view, ring, spec)
            self.items = Items(layout.span)
        else:
            assert isinstance(plan.view, contract.Sequence)
            self.view = SequenceView(plan.view, ring, spec)
            # A window that ends within its burn-in has nothing to train on.
            self.items = Items(layout.span, least=plan.view.burn_in + 1)
            self.starts = Starts(plan.view.period, ring)
            self.view.states = self.starts.states
        if on_device if on_device is not None else not ring.on_host:
            weighted = plan.sampler if isinstance(plan.sampler, Prioritized) else None
            self.sampler = DeviceSampler(weighted, layout.slots, ring.device)
        elif isinstance(plan.sampler, Prioritized):
            self.sampler = PrioritizedSampler(plan.sampler, layout.slots, ring.device)
        else:
            # Most rows start no sequence.
            ranks = HostTree(layout.slots) if self.starts is not None else None
            self.sampler = UniformSampler(layout.slots, ring.device, ranks)
        self.ids = Ids(ring, self.sampler.members.valid)
        self.sequence: dict[int, int] = {}  # newest chunk number of each source
        self.widths: dict[int, int] = {}  # environments of each source
        # Fields that are written as they come; observations and flags are not.
        self.copied = [name for name in layout.fields if name in _COPIED]
        self.extras = layout.extras
        if plan.actor_priorities:
            self.extras.remove("extras.priority")  # no row's own: see _prioritize

    def start(self, seed: int, horizon: int) -> None:
        self.seed, self.horizon = seed, horizon
        self.reseed(0)

    def reseed(self, barrier: int) -> None:
        self.rng = generator(self.seed, "sampler", self.ring.origin.feed, barrier)
        if isinstance(self.sampler, DeviceSampler):  # in place: a graph may know this one
            self.sampler.rng.manual_seed(self.rng.initial_seed())
            self.rng = self.sampler.rng

    @property
    def rows(self) -> int:
        """Steps held that can be trained on."""
        return self.size

    @property
    def capacity(self) -> int:
        return self.plan.capacity

    @property
    def fill(self) -> float:
        rows = np.minimum(self.ring.head, self.ring.length).sum()
        return min(1.0, float(rows) / self.plan.capacity)

    @property
    def beta(self) -> float:  # type: ignore[override]
        """Annealed over the steps inserted."""
        if not isinstance(self.plan.sampler, Prioritized):
            return 0.0
        return self.plan.sampler.beta.at(self.ratio.steps_inserted, self.horizon)

    def add(self, chunk: Chunk) -> None:
        """Write T rows and T+1 observations of one source."""
        _, cut = follow(chunk, self.ring.num_envs, self.widths, self.sequence)
        if cut:
            self._break(chunk.source)
        if self.plan.actor_priorities:
            self._prioritize(chunk)
        self._append(chunk.source, chunk.rows, chunk.version)

    def _prioritize(self, chunk: Chunk) -> None:
        """Keep the actor's priorities of the chunk's rows, and of rows before it in the same
        stream, until they are admitted."""
        ring, before = self.ring, self.ring.layout.span - 1
        steps, width = chunk.rows.reward.shape
        if chunk.priority is None or chunk.priority.shape != (before + steps, width):
            raise ValueError("a chunk without the priorities that its actor was to compute")
        env = chunk.source * width
        row = int(ring.head[env])
        back = min(row, before) if ring.has_next_obs[env] else 0
        known = ring.lift(chunk.priority[before - back :])
        ring.write("extras.priority", row - back, env, known)

    def _append(self, source: int, rows: Rows, version: int) -> None:
        ring, width = self.ring, self.widths[source]
        env, steps = source * width, rows.reward.shape[0]
        if steps + self.ring.layout.span + self.ring.layout.history >= ring.length:
            raise ValueError(f"a chunk of {steps} rows does not fit a ring of {ring.length}")
        row = int(ring.head[env])
        mask, stop, first = host(rows.mask), host(rows.last).copy(), host(rows.first)
        begin = first
        if steps > 1:
            stop[:-1] |= ~mask[1:]
        if not ring.has_next_obs[env]:
            begin = first.copy()
            begin[0] = True  # nothing before this row belongs to it
        elif not mask[0].all():
            self._cut(source, row - 1, ~mask[0])
        ring.write_rows(row, env, rows, self.copied, self.extras)
        ring.write("stop", row, env, ring.index(stop))
        ring.write("mask", row, env, ring.index(mask))
        ring.write("begin", row, env, ring.index(begin))
        ring.fill("version", row, env, (steps, width), version)
        candidate = mask
        evicted: list[tuple[int, int]] = []
        if self.starts is not None:
            candidate = self.starts.mark(begin, mask, env)
            if self.starts.states:
                evicted = self.starts.keep(candidate, row, env, dict(rows.extras))
        ring.advance(row + steps, slice(env, env + width), has_next_obs=True)
        self._admit(source, row, stop, candidate, first[:steps])
        for old, c in evicted:
            self._drop(old, c)
        self.ratio.insert(int(np.count_nonzero(mask)))

    def _admit(self, source: int, row: int, stop: Flags, candidate: Flags, first: Flags) -> None:
        """Admit items whose windows are complete now; expire those whose rows are gone or next."""
        ring, width = self.ring, self.widths[source]
        env, steps = source * width, len(stop)
        opens = first if self.items.least > 1 else None
        tail, fresh = self.items.extend(source, stop, candidate, opens)
        gone = 1 + ring.layout.history  # the next row, and rows that would miss their history
        lo, hi = row - tail, row + steps + gone
        where = ring.where(lo, hi, env, width)
        mine = np.zeros((hi - lo, width), bool)
        mine[: tail + steps] = fresh
        valid = mine
        if tail:
            valid = mine.copy()
            valid[:tail] |= self.sampler.members.valid[where].reshape(-1, width)[:tail]
        priority = None
        if "extras.priority" in ring.flat:
            at = where if isinstance(where, slice) else ring.index(where)
            priority = torch.as_tensor(ring.flat["extras.priority"][at])
        flat = mine.reshape(-1)
        self.sampler.put(where, valid.reshape(-1) if tail else flat, flat, priority)

    def _cut(self, source: int, row: int, envs: Flags) -> None:
        """Row `row` turns out to be the last of its stream."""
        if row < 0:
            return
        width = self.widths[source]
        env, p = source * width, row % self.ring.length
        self.ring.arrays["stop"][p, env : env + width] |= self.ring.index(envs)
        self.items.cut(source, envs)

    def _drop(self, row: int, env: int) -> None:
        if row >= self.ring.oldest()[env]:
            at = np.array([row % self.ring.length * self.ring.num_envs + env])
            no = np.zeros(1, bool)
            self.sampler.put(at, no, no, None)

    def _break(self, source: int) -> None:
        """Turn the observation after the newest row into a masked row: the stream ends there."""
        ring, width = self.ring, self.widths[source]
        env = source * width
        if not ring.has_next_obs[env]:
            return
        row = int(ring.head[env])
        yes, no = np.ones((1, width), bool), np.zeros((1, width), bool)
        self._cut(source, row - 1, yes[0])
        for name, field in ring.layout.fields.items():
            if not field.ahead:
                ring.arrays[name][row % ring.length, env : env + width] = 0
        ring.arrays["stop"][row % ring.length, env : env + width] = True
        ring.advance(row + 1, slice(env, env + width), has_next_obs=False)
        self._admit(source, row, yes, no, no)

    def break_streams(self) -> None:
        """A barrier: the next rows do not continue these."""
        for source in self.widths:
            self._break(source)

    def sample(self, items: int | None = None) -> Sample:
        assert self.size > 0, "nothing to draw: ask ready() first"
        items = items or self.plan.batch
        written = min(int(self.ring.head.max()), self.ring.length) * self.ring.num_envs
        draw = self.sampler.draw(items, self.rng, written)
        slots = self.ring.lift(draw.slots)
        reading = self.view.begin(slots)
        weight = self.sampler.weights(draw.value, self.beta)
        ids = tensor(self.ids.of(slots))
        batch = reading()
        if isinstance(batch, Traj):
            self.ratio.samples_drawn += int(batch.mask.sum())
        else:
            self.ratio.samples_drawn += items
        return Sample(batch, ids, weight)

    def gather(self, slots: Tensor) -> Transition | Traj:
        """The batch of these slots."""
        return self.view.gather(self.ring.lift(slots))

    def newest(self, count: int) -> Tensor:
        """The slots of the newest `count` rows; all sources have sent equally many."""
        hi, n = int(self.ring.head[0]), self.ring.num_envs
        return torch.arange((hi - count) * n, hi * n) % self.ring.layout.slots

    @contextmanager
    def ended(self) -> Iterator[None]:
        """For now, every stream ends with its newest row."""
        newest = self.ring.arrays["stop"][(int(self.ring.head[0]) - 1) % self.ring.length]
        real = newest.copy() if self.ring.on_host else newest.clone()
        newest[:] = True
        yield
        newest[:] = real

    def longer(self, plan: Plan, length: int) -> ReplayStore:
        """A store with `length` rows per environment that continues this one."""
        store = ReplayStore(plan, self.spec, self.ring.longer(length), self.draws_on_device)
        store.start(self.seed, self.horizon)
        store.sequence, store.widths = self.sequence, self.widths
        store.items.tails = self.items.tails
        return store

    def feedback(self, ids: Tensor, priority: Tensor) -> None:
        """New priorities; items overwritten since they were drawn are ignored."""
        if not isinstance(self.plan.sampler, Prioritized):
            return
        if priority.shape != ids.shape:
            raise ValueError(
                f"priorities of shape {tuple(priority.shape)} for a batch of {len(ids)}: "
                "a loss gives one for each item"
            )
        keep, priority = self._current(ids, priority)
        if len(keep):
            self.sampler.feedback(keep, priority)

    def rank(self, ids: Tensor, features: Tensor) -> None:
        """The features of items, for a sampler that needs them; as with `feedback`."""
        keep, features = self._current(ids, features)
        if len(keep) and isinstance(self.sampler, Ranking):
            self.sampler.rank(keep, features)

    def _current(self, ids: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """The slots of those items that were not overwritten, and their values."""
        slots, current = self.ids.current(ids)
        keep = torch.from_numpy(slots)
        if current is None:
            return keep, values
        left = torch.from_numpy(current)
        return keep[left], values[left.to(values.device)]

    # Saving and loading: functions of checkpoint.py with the store as their first argument.
    state = checkpoint.save_state
    load = checkpoint.load_state
    forget = checkpoint.forget_rows
    marker = checkpoint.marker
    new_rows_since = checkpoint.segment
    is_live = checkpoint.is_live
    restore = checkpoint.restore
