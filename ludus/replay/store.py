"""The protocol of a store, and `build_store`, which makes the one that a plan asks for.

A store does not know which environment, algorithm or process its rows come from.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor

from ludus.contract import Episode, Fifo, Plan, Unroll
from ludus.replay.episodes import EpisodeQueue
from ludus.replay.mixed import FeedStore, MixedStore
from ludus.replay.replay_store import ReplayStore
from ludus.replay.storage.ring import Ring, layout_of
from ludus.replay.unrolls.queue import UnrollQueue
from ludus.replay.unrolls.ring import UnrollRing
from ludus.types import Chunk, EnvSpec, Extras, Origin, Sample


class Store(Protocol):
    """The methods that the loop and the learner call. Counters count rows with mask=True only."""

    @property
    def steps_inserted(self) -> int: ...
    @property
    def samples_drawn(self) -> int: ...
    @property
    def full(self) -> bool: ...  # sample before adding more; a replay overwrites instead

    def add(self, chunk: Chunk) -> None: ...
    def ready(self) -> bool: ...
    def sample(self) -> Sample: ...
    def feedback(self, ids: Tensor, priority: Tensor) -> None: ...
    def rank(self, ids: Tensor, features: Tensor) -> None: ...
    def break_streams(self) -> None: ...
    def reseed(self, barrier: int) -> None: ...


class StoreCheckpoint(Protocol):
    """Saving and loading of counters, generators and priorities. A `RowStore` saves its rows too,
    in segments (replay/checkpoint.py)."""

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]: ...
    def load(self, tensors: dict[str, Tensor], numbers: dict[str, Any]) -> None: ...


class SavedStore(Store, StoreCheckpoint, Protocol):
    """A store of a run with checkpoints."""


# Keeps its rows across a checkpoint; queues do not.
RowStore = ReplayStore | UnrollRing | MixedStore


def build_store(
    plan: Plan,
    spec: EnvSpec,
    num_envs: int,
    *,
    seed: int,
    horizon: int,
    device: str | torch.device = "cpu",
    extras_spec: Extras | None = None,
    pinned: bool = False,
    on_device: bool | None = None,
    first_env: int = 0,
) -> SavedStore:
    """The store a plan asks for. `horizon` is the run's steps, over which beta anneals;
    `extras_spec` names the extras that `act` returns: name -> (shape of a row, dtype).

    `pinned` keeps the rows in host memory that a GPU reads directly. `on_device` draws without the
    host, as a captured learner must; by default on every device but the CPU. `first_env` is the
    number of the store's first environment among those of all actors.

    Queues and unrolls see the extras in their first chunk. Plan refuses combinations that no store
    serves.
    """
    if isinstance(plan.view, Episode):
        episodes = EpisodeQueue(plan, spec, num_envs, device)
        episodes.origin = Origin(0, first_env)
        return episodes

    def build(feed: int, plan: Plan) -> FeedStore:
        origin = Origin(feed, first_env)
        if isinstance(plan.view, Unroll):
            if isinstance(plan.sampler, Fifo):
                return UnrollQueue(plan, spec, origin)
            return UnrollRing(
                plan, spec, num_envs, seed=seed, device=device, on_device=on_device, origin=origin
            )
        ring = Ring(layout_of(plan, spec, num_envs, extras_spec), device, pinned=pinned)
        ring.origin = origin
        store = ReplayStore(plan, spec, ring, on_device)
        store.start(seed, horizon)
        return store

    return build(0, plan) if len(plan.feeds) == 1 else MixedStore(plan, build, device)
