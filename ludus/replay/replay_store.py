"""The store: a ring, a view and a sampler behind add / ready / sample / feedback.

Which environment, algorithm or process the rows come from is not its business.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from ludus import contract
from ludus.contract import Episode, Fifo, NStep, Plan, Prioritized, Unroll
from ludus.replay import checkpoint as disk
from ludus.replay.checkpoint import Segment
from ludus.replay.eligibility import Flags, Items
from ludus.replay.episodes import EpisodeQueue
from ludus.replay.replay_ratio import Pace
from ludus.replay.samplers.device import DeviceSampler
from ludus.replay.samplers.host import Draw, PrioritizedSampler, Sampler, UniformSampler
from ludus.replay.sequence_starts import Starts
from ludus.replay.slot_ids import Ids
from ludus.replay.storage.ring import Extras, Ring, host, layout_of, tensor
from ludus.replay.unrolls.queue import UnrollQueue
from ludus.replay.unrolls.ring import UnrollRing
from ludus.replay.views import NStepView, SequenceView
from ludus.seeding import generator
from ludus.types import Chunk, EnvSpec, Rows, Sample, Traj, tree_leaves, tree_paths

Json = dict[str, Any]


class Store(Protocol):
    """What the loop and the checkpoint see of any store."""

    @property
    def steps_inserted(self) -> int: ...
    @property
    def samples_drawn(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def capacity(self) -> int: ...
    @property
    def fill(self) -> float: ...
    @property
    def beta(self) -> float: ...

    def add(self, chunk: Chunk) -> None: ...
    def ready(self) -> bool: ...
    def sample(self) -> Sample: ...
    def feedback(self, ids: Tensor, priority: Tensor) -> None: ...
    def break_streams(self) -> None: ...
    def reseed(self, barrier: int) -> None: ...
    def state(self) -> tuple[dict[str, Tensor], Json]: ...
    def load(self, tensors: dict[str, Tensor], numbers: Json) -> None: ...
    def marker(self) -> Json: ...
    def new_rows_since(self, since: Json | None) -> Segment: ...
    def is_live(self, meta: Json) -> bool: ...
    def restore(self, segments: Sequence[Segment]) -> None: ...


def build_store(
    plan: Plan,
    spec: EnvSpec,
    columns: int,
    *,
    seed: int,
    horizon: int,
    device: str | torch.device = "cpu",
    extras_spec: Extras | None = None,
    pinned: bool = False,
    hostless: bool | None = None,
) -> Store:
    """The store a plan asks for. `horizon` is the run's steps, over which beta anneals;
    `extras_spec` names what `act` returns beside the action: name -> (shape of a row, dtype).

    `pinned` keeps the rows in host memory that a GPU reads directly. `hostless` draws without the
    host, as a captured learner must; by default on every device but the CPU.

    Queues and unrolls see the extras in their first chunk. A Plan has refused already what no
    store serves.
    """
    if isinstance(plan.view, Episode):
        return EpisodeQueue(plan, spec, columns, device)
    if isinstance(plan.view, Unroll):
        if isinstance(plan.sampler, Fifo):
            return UnrollQueue(plan, spec)
        return UnrollRing(plan, spec, columns, seed=seed, device=device)
    ring = Ring(layout_of(plan, spec, columns, extras_spec), device, pinned=pinned)
    store = ReplayStore(plan, spec, ring, hostless)
    store.start(seed, horizon)
    return store


class ReplayStore:
    """Replay of single transitions or sequences from one ring."""

    def __init__(self, plan: Plan, spec: EnvSpec, ring: Ring, hostless: bool | None = None) -> None:
        self.plan, self.spec, self.ring = plan, spec, ring
        layout = ring.layout
        self.pace = Pace(plan.replay_ratio, plan.warmup)
        self.view: NStepView | SequenceView
        self.starts: Starts | None = None
        if isinstance(plan.view, NStep):
            self.view = NStepView(plan.view, ring, spec)
            self.items = Items(layout.span)
        else:
            assert isinstance(plan.view, contract.Sequence)
            self.view = SequenceView(plan.view, ring, spec)
            # A window that ends within the burn-in has nothing to train on.
            self.items = Items(layout.span, least=plan.view.burn_in + 1)
            self.starts = Starts(plan.view.period, ring)
            self.view.states = self.starts.states
        self.sampler: Sampler
        if hostless if hostless is not None else not ring.on_host:
            weighted = plan.sampler if isinstance(plan.sampler, Prioritized) else None
            self.sampler = DeviceSampler(weighted, layout.slots, ring.device)
        elif isinstance(plan.sampler, Prioritized):
            self.sampler = PrioritizedSampler(plan.sampler, layout.slots, ring.device)
        else:
            self.sampler = UniformSampler(layout.slots, ring.device)
        self.ids = Ids(ring, self.sampler.members)
        self.sequence: dict[int, int] = {}  # newest chunk number of each source
        self.widths: dict[int, int] = {}  # columns of each source
        self.paths = tree_paths(spec.obs)
        self.extras = [n for n in layout.fields if n.startswith("extras.")]
        if plan.actor_priorities:
            self.extras.remove("extras.priority")  # no row's own: see _prioritize
        self.burn_in = plan.view.burn_in if isinstance(plan.view, contract.Sequence) else 0

    def start(self, seed: int, horizon: int) -> None:
        self.seed, self.horizon = seed, horizon
        self.reseed(0)

    def reseed(self, barrier: int) -> None:
        self.rng = generator(self.seed, "sampler", 0, barrier)
        if isinstance(self.sampler, DeviceSampler):  # in place: a graph may know this one
            self.sampler.rng.manual_seed(self.rng.initial_seed())
            self.rng = self.sampler.rng

    @property
    def steps_inserted(self) -> int:
        """Rows with mask=True added so far."""
        return self.pace.inserted

    @property
    def samples_drawn(self) -> int:
        return self.pace.drawn

    @property
    def size(self) -> int:
        """Items that may be drawn now."""
        return self.sampler.members.count

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
    def beta(self) -> float:
        """Annealed here, where sampling happens, over the steps inserted."""
        if not isinstance(self.plan.sampler, Prioritized):
            return 0.0
        return self.plan.sampler.beta.at(self.pace.inserted, self.horizon)

    def ready(self) -> bool:
        return self.size > 0 and self.pace.ready()

    def add(self, chunk: Chunk) -> None:
        """Write T rows and T+1 observations of one source."""
        rows, source = chunk.rows, chunk.source
        width = rows.reward.shape[1]
        column = source * width
        assert column + width <= self.ring.columns, "a source beyond the columns of this store"
        if self.widths.setdefault(source, width) != width:
            raise ValueError(f"source {source} had {self.widths[source]} columns, now {width}")
        previous = self.sequence.get(source)
        if previous is not None and (chunk.breaks or chunk.sequence != previous + 1):
            self._break(source)
        self.sequence[source] = chunk.sequence
        if self.plan.actor_priorities:
            self._prioritize(chunk)
        self._append(source, rows)

    def _prioritize(self, chunk: Chunk) -> None:
        """Keep what the actor says of the chunk's rows, and of those before it in the same stream,
        for when they are admitted."""
        ring, before = self.ring, self.ring.layout.span - 1
        steps, width = chunk.rows.reward.shape
        if chunk.priority is None or chunk.priority.shape != (before + steps, width):
            raise ValueError("a chunk without the priorities that its actor was to compute")
        column = chunk.source * width
        row = int(ring.head[column])
        back = min(row, before) if ring.peeked[column] else 0
        known = ring.lift(chunk.priority[before - back :])
        ring.write("extras.priority", row - back, column, known)

    def _append(self, source: int, rows: Rows) -> None:
        ring, width = self.ring, self.widths[source]
        column, steps = source * width, rows.reward.shape[0]
        if steps + self.ring.layout.span + self.ring.layout.history >= ring.length:
            raise ValueError(f"a chunk of {steps} rows does not fit a ring of {ring.length}")
        row = int(ring.head[column])
        mask, stop, begin = host(rows.mask), host(rows.last).copy(), host(rows.first)
        if steps > 1:
            stop[:-1] |= ~mask[1:]
        if not ring.peeked[column]:
            begin = begin.copy()
            begin[0] = True  # nothing before this row belongs to it
        elif not mask[0].all():
            self._cut(source, row - 1, ~mask[0])
        write, lift = ring.write, ring.lift
        for path, leaf in zip(self.paths, tree_leaves(rows.obs), strict=True):
            if path in ring.upright and ring.peeked[column]:
                # Large, and its first row came as the last of the chunk before.
                write(path, row + 1, column, lift(leaf[1:]))
            else:
                write(path, row, column, lift(leaf))
        write("action", row, column, lift(rows.action))
        write("reward", row, column, lift(rows.reward))
        write("discount", row, column, lift(rows.discount))
        write("stop", row, column, ring.index(stop))
        write("mask", row, column, ring.index(mask))
        write("begin", row, column, ring.index(begin))
        if rows.action_mask is not None and self.spec.has_action_mask:
            write("action_mask", row, column, lift(rows.action_mask))
        for name in self.extras:
            write(name, row, column, lift(rows.extras[name.removeprefix("extras.")]))
        candidate = mask
        evicted: list[tuple[int, int]] = []
        if self.starts is not None:
            write("first", row, column, lift(rows.first))
            candidate = self.starts.mark(begin, mask, column)
            if self.starts.states:
                evicted = self.starts.keep(candidate, row, column, dict(rows.extras))
        ring.head[column : column + width] = row + steps
        ring.peeked[column : column + width] = True
        self._settle(source, row, stop, candidate)
        for old, c in evicted:
            self._drop(old, c)
        self.pace.insert(int(np.count_nonzero(mask)))

    def _settle(self, source: int, row: int, stop: Flags, candidate: Flags) -> None:
        """Admit items whose windows are complete now; expire those whose rows are gone or next."""
        ring, width = self.ring, self.widths[source]
        column, steps = source * width, len(stop)
        tail, fresh = self.items.extend(source, stop, candidate)
        gone = 1 + ring.layout.history  # the peeked row's slot, and rows that would miss history
        lo, hi = row - tail, row + steps + gone
        where = ring.where(lo, hi, column, width)
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

    def _cut(self, source: int, row: int, columns: Flags) -> None:
        """Row `row` turns out to be the last of its stream."""
        if row < 0:
            return
        width = self.widths[source]
        column, p = source * width, row % self.ring.length
        self.ring.arrays["stop"][p, column : column + width] |= self.ring.index(columns)
        self.items.cut(source, columns)

    def _drop(self, row: int, column: int) -> None:
        if row >= self.ring.oldest()[column]:
            at = np.array([row % self.ring.length * self.ring.columns + column])
            no = np.zeros(1, bool)
            self.sampler.put(at, no, no, None)

    def _break(self, source: int) -> None:
        """Turn the observation after the newest row into a masked row: the stream ends there."""
        ring, width = self.ring, self.widths[source]
        column = source * width
        if not ring.peeked[column]:
            return
        row = int(ring.head[column])
        yes, no = np.ones((1, width), bool), np.zeros((1, width), bool)
        self._cut(source, row - 1, yes[0])
        for name, field in ring.layout.fields.items():
            if not field.ahead:
                ring.arrays[name][row % ring.length, column : column + width] = 0
        ring.arrays["stop"][row % ring.length, column : column + width] = True
        ring.head[column : column + width] = row + 1
        ring.peeked[column : column + width] = False
        self._settle(source, row, yes, no)

    def break_streams(self) -> None:
        """A barrier: what comes next does not continue what is here."""
        for source in self.widths:
            self._break(source)

    def sample(self) -> Sample:
        assert self.size > 0, "nothing to draw: ask ready() first"
        written = min(int(self.ring.head.max()), self.ring.length) * self.ring.columns
        drawn = self.sampler.draw(self.plan.batch, self.rng, written)
        slots = self.ring.lift(drawn.slots)
        reading = self.view.begin(slots)
        weight = self.sampler.weights(drawn.value, self.beta)
        ids = tensor(self.ids.of(slots))
        batch = reading()
        if isinstance(batch, Traj):
            self.pace.drawn += int(batch.mask[self.burn_in :].sum())
        else:
            self.pace.drawn += self.plan.batch
        return Sample(batch, ids, weight)

    def draw_here(self) -> tuple[Any, Draw]:
        """A batch without the host: no ids, no counting. Only with a DeviceSampler."""
        assert isinstance(self.sampler, DeviceSampler)
        draw = self.sampler.draw_here(self.plan.batch)
        return self.view.gather(self.ring.lift(draw.slots)), draw

    def count_draw(self) -> None:
        """What `sample` does on the host, for a batch drawn by `draw_here`."""
        assert isinstance(self.sampler, DeviceSampler)
        self.pace.drawn += self.plan.batch
        if isinstance(self.plan.sampler, Prioritized):
            self.sampler.beta.fill_(self.beta)

    def feedback(self, ids: Tensor, priority: Tensor) -> None:
        """New priorities; items overwritten since they were drawn are ignored."""
        if not isinstance(self.plan.sampler, Prioritized):
            return
        if priority.shape != ids.shape:
            raise ValueError(
                f"priorities of shape {tuple(priority.shape)} for a batch of {len(ids)}: "
                "a loss gives one for each item"
            )
        slots, current = self.ids.current(ids)
        keep = torch.from_numpy(slots)
        if current is not None:
            left = torch.from_numpy(current)
            keep, priority = keep[left], priority[left.to(priority.device)]
        if len(keep):
            self.sampler.feedback(keep, priority)

    def state(self) -> tuple[dict[str, Tensor], Json]:
        """All but the rows themselves, which `new_rows_since` gives in segments."""
        return disk.save_state(self)

    def load(self, tensors: dict[str, Tensor], numbers: Json) -> None:
        """The inverse of `state`; the rows come through `restore`."""
        disk.load_state(self, tensors, numbers)

    def forget(self, tensors: dict[str, Tensor], numbers: Json) -> None:
        """Instead of `load` where the rows were not saved."""
        disk.forget_rows(self, tensors, numbers)

    def marker(self) -> Json:
        return disk.marker(self)

    def new_rows_since(self, since: Json | None) -> Segment:
        return disk.segment(self, since)

    def is_live(self, meta: Json) -> bool:
        return disk.is_live(self, meta)

    def restore(self, segments: Sequence[Segment]) -> None:
        disk.restore(self, segments)
