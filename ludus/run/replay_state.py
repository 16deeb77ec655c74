"""Replay in checkpoints: which segments are new, which are shared, whether it is saved at all."""

from __future__ import annotations

from collections.abc import Set
from typing import Any, Literal

import torch
from torch import Tensor

from ludus.replay import checkpoint as segments
from ludus.replay.replay_store import ReplayStore, Store
from ludus.replay.unrolls.ring import UnrollRing
from ludus.track.checkpoint.reader import ReplayReader
from ludus.track.checkpoint.writer import Segment
from ludus.units import show_bytes

Replay = ReplayStore | UnrollRing  # what keeps rows across a checkpoint; queues do not
_SLACK = 64 << 20  # bytes that an index may have above its rows
AUTO_LIMIT = 2_000_000_000  # bytes; above, `auto` refills instead of saving


def saves_replay(save: Literal["auto", "on", "off"], bytes_: int) -> bool:
    return save == "on" or (save == "auto" and bytes_ <= AUTO_LIMIT)


class ReplayFiles:
    """The store as named segments of rows, plus one of everything beside the rows."""

    def __init__(self, store: Store, save: Literal["auto", "on", "off"], bytes_: int) -> None:
        self.store, self.bytes = store, bytes_
        self.rows = isinstance(store, Replay)
        self.saves = self.rows and saves_replay(save, bytes_)
        self.known: dict[str, dict[str, Any]] = {}  # live segments, oldest first: name -> meta
        self.since: dict[str, Any] | None = None

    def pack(self, linkable: Set[str]) -> tuple[list[Segment] | None, dict[str, Any]]:
        """Segments for this checkpoint and the JSON that goes with them."""
        store = self.store
        tensors, numbers = store.state()
        if not self.saves:
            keep = {k: v.tolist() for k, v in tensors.items() if k == "rng"}
            size = store.rows if isinstance(store, Replay) else 0
            return None, {"numbers": numbers, "rng": keep.get("rng"), "size": size}
        live = {n: m for n, m in self.known.items() if store.is_live(m)}
        parts = [Segment(name) for name in live]
        if not set(live) <= linkable:  # the checkpoint before was not written: start over
            live, parts, self.since = {}, [], None
        new = store.new_rows_since(self.since)
        name = f"rows-{store.steps_inserted:012d}"
        live[name] = new.meta
        parts.append(Segment(name, {k: v.numpy() for k, v in new.tensors.items()}))
        # Priorities and heads change everywhere, so this part is written anew each time.
        index = {k: v.cpu().numpy() for k, v in tensors.items()}
        parts.append(Segment(f"index-{store.steps_inserted:012d}", index))
        self.known, self.since = live, store.marker()
        return parts, {"numbers": numbers, "segments": live, "size": store.size}

    def restore(self, reader: ReplayReader | None, state: dict[str, Any]) -> None:
        store = self.store
        if not isinstance(store, Replay):
            store.load({}, state["numbers"])
            return
        if reader is None or "segments" not in state:
            rng = state.get("rng") or generator_state(store)
            store.forget({"rng": torch.tensor(rng, dtype=torch.uint8)}, state["numbers"])
            store.pace.missing = state["size"]
            return
        limit = 2 * self.bytes + _SLACK
        for name, meta in state["segments"].items():  # one at a time: together they are the store
            store.restore([segments.Segment(_tensors(reader, name, limit), meta)])
        index = next(name for name in reader.names if name.startswith("index-"))
        store.load(_tensors(reader, index, limit), state["numbers"])
        self.known, self.since = dict(state["segments"]), store.marker()

    def remarks(self, refill: bool) -> list[str]:
        """What a user should know at the start."""
        if not self.rows:
            return []
        if refill:
            return ["the checkpoint has no replay: refilling it before learning goes on"]
        if not self.saves:
            return [
                f"replay ({show_bytes(self.bytes)}) is not saved: a resumed run refills it first"
            ]
        return []

    def metrics(self) -> dict[str, float]:
        """Numbers for metrics.jsonl."""
        if not self.rows:
            return {}
        store = self.store
        drawn = store.samples_drawn / max(1, store.steps_inserted)
        return {
            "fill": store.fill,
            "size": store.size,
            "samples_per_step": drawn,
            "beta": store.beta,
        }

    def shown(self) -> tuple[float | None, float | None, float | None]:
        """Measured replay ratio, its target, fill: for the terminal."""
        store = self.store
        if not isinstance(store, Replay):
            return None, None, None
        past = store.steps_inserted - store.plan.warmup
        ratio = store.samples_drawn / past if past > 0 else None
        return ratio, store.plan.replay_ratio, store.fill


def _tensors(reader: ReplayReader, name: str, limit: int) -> dict[str, Tensor]:
    return {k: torch.from_numpy(v) for k, v in reader.load(name, limit).items()}


def generator_state(store: Replay) -> list[int]:
    return [int(x) for x in store.rng.get_state()]
