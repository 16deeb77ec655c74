"""A replay role: a shard of the replay, its pace, and the samples that the learner has asked for.

It knows no process, pipe or shared memory. Its caller passes it chunks, free places for samples and
priorities, in one order; what it draws depends on that order alone, never on the time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ludus.contract import Plan, Prioritized
from ludus.replay.checkpoint import Json, Segment
from ludus.replay.samplers.prioritized import PrioritizedSampler
from ludus.replay.store import RowStore, build_store
from ludus.types import Chunk, EnvSpec, Extras, Sample, map_fields

GENERATION = 1_000_003  # offset of barrier numbers in the seeds of replacements


@dataclass(frozen=True, kw_only=True)
class RoleJob:
    """The arguments of a replay role."""

    index: int
    plan: Plan  # with the capacity and the warm-up of this shard
    spec: EnvSpec
    num_envs: int  # of this shard
    first_env: int  # counted over all actors
    seed: int
    horizon: int  # steps of this shard over which beta anneals
    extras: Extras = field(default_factory=dict)
    generation: int = 0  # number of earlier roles with this index
    barrier: int = 0  # number of the newest barrier
    # Of a replacement: steps inserted, samples drawn, and rows to collect before it draws.
    counts: tuple[int, int, int] = (0, 0, 0)


class Drawn(NamedTuple):
    """A sample for one of the learner's places."""

    place: int
    sample: Sample
    steps: int  # that it adds to `samples_drawn`
    scale: tuple[float, float]  # see ReplayRole.scale


class Report(NamedTuple):
    """The numbers of a role that the learner shows."""

    steps_inserted: float = 0.0
    samples_drawn: float = 0.0
    missing: float = 0.0
    size: float = 0.0
    fill: float = 0.0
    beta: float = 0.0


class ReplayRole:
    """The store of some actors. Each place is asked for once, and is filled when a batch is due by
    the replay ratio: several places are samples that are drawn ahead of the learner."""

    def __init__(self, job: RoleJob) -> None:
        self.job = job
        store = build_store(
            job.plan, job.spec, job.num_envs, seed=job.seed, horizon=job.horizon,
            extras_spec=job.extras, on_device=False, first_env=job.first_env,
        )  # fmt: skip
        assert isinstance(store, RowStore), "a queue stays with the learner"
        self.store: RowStore = store
        self.places: deque[int] = deque()
        if job.generation:
            ratio = store.ratio
            ratio.steps_inserted, ratio.samples_drawn, ratio.missing = job.counts
            self.reseed(job.barrier)

    def add(self, chunk: Chunk) -> None:
        self.store.add(chunk)

    def ask(self, place: int) -> None:
        """Fill this place with the next batch that is due."""
        self.places.append(place)

    def forget_places(self) -> None:
        """Fill none of the places asked for so far."""
        self.places.clear()

    def draws(self) -> Iterator[Drawn]:
        """Draw the batches that are due, while there are places."""
        while self.places and self.store.ready():
            before = self.store.samples_drawn
            sample, scale = self.store.sample(), self.scale()
            yield Drawn(self.places.popleft(), sample, self.store.samples_drawn - before, scale)

    @property
    def due(self) -> bool:
        """Whether another batch is due that has no place."""
        return not self.places and self.store.ready()

    def scale(self) -> tuple[float, float]:
        """(N times the probability of the least likely item, beta): its power of -beta is the
        largest weight of this shard before normalisation. (1, 0) where weights are not divided by
        the largest of the whole replay."""
        sampler = getattr(self.store, "sampler", None)
        if not isinstance(sampler, PrioritizedSampler) or not sampler.config.needs_least:
            return 1.0, 0.0
        assert sampler.tree.mins is not None
        least = sampler.tree.mins.least
        return float(sampler.members.count * least / sampler.tree.total), self.store.beta

    def feedback(self, ids: Tensor, priority: Tensor) -> None:
        """New priorities; one that is not finite belongs to an update that was refused."""
        if bool(torch.isfinite(priority).all()):
            self.store.feedback(ids, priority)

    def break_streams(self, unused: int) -> None:
        """A barrier. Batches of `unused` samples were drawn, and will be drawn again."""
        self.places.clear()
        self.store.ratio.samples_drawn -= unused
        self.store.break_streams()

    def reseed(self, barrier: int) -> None:
        self.store.reseed(barrier + GENERATION * self.job.generation)

    def report(self) -> Report:
        store = self.store
        return Report(
            store.steps_inserted, store.samples_drawn, store.ratio.missing, store.size,
            store.fill, store.beta,
        )  # fmt: skip

    # Checkpoints. Each method takes and returns (JSON, tensors).
    def state(self, unused: int) -> tuple[Json, dict[str, Tensor]]:
        """All state but the rows, as if the `unused` samples had not been drawn."""
        ratio = self.store.ratio
        ratio.samples_drawn -= unused
        try:
            tensors, numbers = self.store.state()
        finally:
            ratio.samples_drawn += unused
        return numbers, tensors

    def load(self, numbers: Json, tensors: dict[str, Tensor]) -> None:
        self.store.load(tensors, numbers)

    def forget(self, numbers: Json, tensors: dict[str, Tensor]) -> None:
        self.store.forget(tensors, numbers)

    def refill(self, rows: int) -> None:
        """Collect so many rows before the next sample: those of the checkpoint were not saved."""
        self.store.ratio.missing = rows

    def rows(self, _: Any = None) -> int:
        """Steps that a resumed run must collect to fill this shard again."""
        return self.store.rows

    def marker(self, _: Any = None) -> Json:
        return self.store.marker()

    def segment(self, since: Json | None) -> tuple[Json, dict[str, Tensor]]:
        found = self.store.new_rows_since(since)
        return found.meta, found.tensors

    def is_live(self, meta: Json) -> bool:
        return self.store.is_live(meta)

    def restore(self, meta: Json, tensors: dict[str, Tensor]) -> None:
        self.store.restore([Segment(tensors, meta)])


def shard_plan(plan: Plan, share: float) -> Plan:
    """The plan of a role that holds the rows of this share of all environments."""
    if share == 1.0:
        return plan

    def part(rows: int) -> int:
        return max(1, round(rows * share)) if rows else 0

    feeds = tuple(replace(feed, capacity=part(feed.capacity)) for feed in plan.feeds)
    whole = {"capacity": part(plan.capacity), "warmup": round(plan.warmup * share)}
    return replace(plan, **whole, feeds=feeds)  # type: ignore[arg-type]


def example_sample(plan: Plan, spec: EnvSpec, extras: Extras, chunk: Chunk) -> Sample:
    """A sample of a small store with the plan's view and batch, for the shapes of its arrays.
    `chunk`: of zeros, as an actor sends it."""
    rows, width = chunk.rows.reward.shape
    small = rows * width
    feeds = tuple(replace(feed, capacity=small) for feed in plan.feeds)
    plan = replace(plan, capacity=small, warmup=0, feeds=feeds, chunk=rows)
    store = build_store(plan, spec, width, seed=0, horizon=1, extras_spec=extras, on_device=False)
    every = chunk.rows._replace(
        mask=torch.ones_like(chunk.rows.mask), discount=torch.ones_like(chunk.rows.discount)
    )
    if chunk.priority is not None:
        chunk = chunk._replace(priority=torch.ones_like(chunk.priority))
    number = 0
    while not store.ready():
        opens = torch.zeros_like(every.first)
        opens[0] = number == 0
        store.add(chunk._replace(rows=every._replace(first=opens), sequence=number))
        number += 1
    return store.sample()


def sample_arrays(sample: Sample) -> list[Tensor]:
    """The tensors of a batch, in a fixed order."""
    found: list[Tensor] = []
    map_fields(found.append, sample.batch)
    return found


def like_sample(batch: Any, tensors: list[Tensor]) -> Any:
    """The inverse of `sample_arrays`, for a batch of the same kind."""
    rest = iter(tensors)
    return map_fields(lambda _: next(rest), batch)


def weighs(plan: Plan) -> bool:
    """Whether any items have priorities."""
    return any(isinstance(sampler, Prioritized) for sampler in plan.samplers)
