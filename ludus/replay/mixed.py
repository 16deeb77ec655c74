"""Several feeds behind one store: every chunk goes to all of them, and a sample joins their items.

Each feed has a store of its own. An id is the feed's own id * feeds + feed, so that priorities find
their way back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ludus.contract import Feed, Plan
from ludus.plan.feeds import Shares
from ludus.replay.checkpoint import Segment
from ludus.replay.replay_store import ReplayRatio, ReplayStore
from ludus.replay.unrolls.assembler import join
from ludus.replay.unrolls.queue import UnrollQueue
from ludus.replay.unrolls.ring import UnrollRing
from ludus.types import Chunk, Sample, Traj, map_fields, tree_map

Json = dict[str, Any]
FeedStore = ReplayStore | UnrollRing | UnrollQueue


class Part(NamedTuple):
    """A feed and its store."""

    number: int
    feed: Feed
    store: FeedStore

    @property
    def replay(self) -> ReplayStore | UnrollRing | None:
        """The store if it keeps its rows."""
        return None if isinstance(self.store, UnrollQueue) else self.store


class MixedStore:
    """Ready when every feed has its share of the next batch. A queue among the feeds then sets the
    pace: each of its items is used once. Without one the replay ratio does, over all items."""

    def __init__(
        self, plan: Plan, build: Callable[[int, Plan], FeedStore], device: str | torch.device
    ) -> None:
        self.plan, self.device = plan, torch.device(device)
        made = [build(i, plan.of_feed(feed)) for i, feed in enumerate(plan.feeds)]
        self.parts = [Part(i, *pair) for i, pair in enumerate(zip(plan.feeds, made, strict=True))]
        queues = [part for part in self.parts if isinstance(part.store, UnrollQueue)]
        self.queue = queues[0].store if queues else None
        self.shares = Shares([feed.share for feed in plan.feeds])
        self.ratio = ReplayRatio(plan.replay_ratio, plan.warmup)

    def _replays(self) -> Iterator[tuple[str, ReplayStore | UnrollRing]]:
        """The feeds that keep their rows, by name."""
        for part in self.parts:
            if part.replay is not None:
                yield part.feed.name, part.replay

    @property
    def steps_inserted(self) -> int:
        return self.ratio.steps_inserted

    @property
    def samples_drawn(self) -> int:
        return self.ratio.samples_drawn

    @property
    def size(self) -> int:
        """Items that may be drawn now, of all feeds."""
        return sum(part.store.size for part in self.parts)

    @property
    def rows(self) -> int:
        """Steps that a resumed run must collect to fill every feed again."""
        return max(store.rows for _, store in self._replays())

    @property
    def fill(self) -> float:
        """Of the fullest replay."""
        return max(store.fill for _, store in self._replays())

    @property
    def beta(self) -> float:
        return max(part.store.beta for part in self.parts)

    @property
    def full(self) -> bool:
        return self.queue is not None and self.queue.full

    @property
    def rng(self) -> torch.Generator:
        """Of the first replay."""
        return next(store for _, store in self._replays()).rng

    @property
    def missing(self) -> int:
        return self.ratio.missing

    def refill(self, rows: int) -> None:
        self.ratio.missing = rows

    def add(self, chunk: Chunk) -> None:
        """Rows of a refill were in the queue before, so they do not go there again."""
        again = self.ratio.missing > 0
        self.ratio.insert(int(chunk.rows.mask.sum()))
        for part in self.parts:
            if part.replay is None and again:
                continue
            part.store.add(chunk)
            if part.replay is not None:  # beta anneals over the same steps
                part.replay.ratio.steps_inserted = self.ratio.steps_inserted

    def ready(self) -> bool:
        if self.queue is None:
            if not self.ratio.ready():
                return False
        elif self.ratio.missing or self.steps_inserted < self.plan.warmup:
            return False
        counts = self.shares.split(self.plan.batch)
        return all(part.store.has(counts[part.number]) for part in self.parts)

    def sample(self) -> Sample:
        counts = self.shares.take(self.plan.batch)
        taken = [(part, n) for part, n in zip(self.parts, counts, strict=True) if n]
        before = sum(part.store.samples_drawn for part in self.parts)
        samples = [(part, self._here(part.store.sample(n))) for part, n in taken]
        self.ratio.samples_drawn += sum(part.store.samples_drawn for part in self.parts) - before
        ids = [sample.ids * len(self.parts) + part.number for part, sample in samples]
        weights = [sample.weight for _, sample in samples]
        batch = join_batches([sample.batch for _, sample in samples])
        return Sample(batch, torch.cat(ids), torch.cat(weights))

    def _here(self, sample: Sample) -> Sample:
        """On the device of the learner: a queue keeps its unrolls in host memory."""
        if self.device.type == "cpu":
            return sample
        there = sample._replace(batch=map_fields(self._move, sample.batch))
        return there._replace(ids=self._move(sample.ids), weight=self._move(sample.weight))

    def _move(self, x: Tensor) -> Tensor:
        return x.to(self.device, non_blocking=True)

    def feedback(self, ids: Tensor, priority: Tensor) -> None:
        for part, mine, of in self._route(ids, priority):
            part.store.feedback(mine, of)

    def rank(self, ids: Tensor, features: Tensor) -> None:
        """Only feeds whose sampler needs them get features."""
        for part, mine, of in self._route(ids, features):
            if part.feed.sampler.needs_features:
                part.store.rank(mine, of)

    def _route(self, ids: Tensor, values: Tensor) -> Iterator[tuple[Part, Tensor, Tensor]]:
        """Each feed with its own ids, and their values. The order of feeds in a sample is fixed."""
        feeds = ids % len(self.parts)
        for part in self.parts:
            at = (feeds == part.number).nonzero()[:, 0]
            if len(at):
                yield part, ids[at] // len(self.parts), values[at.to(values.device)]

    def break_streams(self) -> None:
        for part in self.parts:
            part.store.break_streams()

    def reseed(self, barrier: int) -> None:
        for part in self.parts:
            part.store.reseed(barrier)

    # Saving and loading. Names of tensors begin with the name of their feed.
    def state(self) -> tuple[dict[str, Tensor], Json]:
        tensors: dict[str, Tensor] = {}
        meta: Json = {**self.ratio.state(), "carry": list(self.shares.carry), "feeds": {}}
        for part in self.parts:
            own, meta["feeds"][part.feed.name] = part.store.state()
            tensors |= _prefixed(part.feed.name, own)
        states = [tensors[f"{name}.rng"] for name, _ in self._replays()]
        meta["rng"] = [len(state) for state in states]
        return tensors | {"rng": torch.cat(states)}, meta

    def load(self, tensors: dict[str, Tensor], numbers: Json) -> None:
        """The inverse of `state`; the rows come through `restore`."""
        for part in self.parts:
            name = part.feed.name
            part.store.load(_own(name, tensors), numbers["feeds"][name])
        self._load_numbers(numbers)

    def forget(self, tensors: dict[str, Tensor], numbers: Json) -> None:
        """Instead of `load` where the rows were not saved: generators and counters continue."""
        states = iter(torch.split(tensors["rng"], numbers["rng"]))
        for part in self.parts:
            own = numbers["feeds"][part.feed.name]
            if part.replay is None:
                part.store.load({}, own)
            else:
                part.replay.forget({"rng": next(states)}, own)
        self._load_numbers(numbers)

    def _load_numbers(self, numbers: Json) -> None:
        self.ratio.load(numbers)
        self.shares.carry = [int(owed) for owed in numbers["carry"]]

    def marker(self) -> Json:
        return {name: store.marker() for name, store in self._replays()}

    def new_rows_since(self, since: Json | None) -> Segment:
        tensors: dict[str, Tensor] = {}
        meta: Json = {}
        for name, store in self._replays():
            segment = store.new_rows_since(since[name] if since else None)
            tensors |= _prefixed(name, segment.tensors)
            meta[name] = segment.meta
        return Segment(tensors, meta)

    def is_live(self, meta: Json) -> bool:
        return any(store.is_live(meta[name]) for name, store in self._replays())

    def restore(self, segments: Sequence[Segment]) -> None:
        for name, store in self._replays():
            store.restore([Segment(_own(name, s.tensors), s.meta[name]) for s in segments])


def join_batches(batches: Sequence[Any]) -> Any:
    """Items of several batches of the same kind side by side, along B."""
    if len(batches) == 1:
        return batches[0]
    if isinstance(batches[0], Traj):
        return join(batches)
    fields = zip(*batches, strict=True)
    joined = (f[0] if f[0] is None else tree_map(lambda *x: torch.cat(x), *f) for f in fields)
    return type(batches[0])(*joined)


def _prefixed(name: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {f"{name}.{key}": value for key, value in tensors.items()}


def _own(name: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    prefix = f"{name}."
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
