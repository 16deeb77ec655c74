"""Save and restore the replay as segments of a checkpoint; unchanged segments are shared."""

from __future__ import annotations

from collections.abc import Set
from typing import Any, Literal, Protocol

import numpy as np
import torch
from torch import Tensor

from ludus.replay import checkpoint as segments
from ludus.replay.roles.store import ReplayRoles
from ludus.replay.store import RowStore, StoreCheckpoint
from ludus.track.checkpoint.writer import Segment
from ludus.units import show_bytes

_SLACK = 64 << 20  # extra bytes that an index may need in addition to its rows
AUTO_LIMIT = 2_000_000_000  # bytes; `auto` refills a larger replay instead of saving it


class Segments(Protocol):
    """Saved segments of rows, by name."""

    @property
    def names(self) -> tuple[str, ...]: ...

    def load(self, name: str, limit: int | None = None) -> dict[str, np.ndarray[Any, Any]]: ...


def saves_replay(save: Literal["auto", "on", "off"], bytes_: int) -> bool:
    return save == "on" or (save == "auto" and bytes_ <= AUTO_LIMIT)


class ReplayFiles:
    """The store as named segments of rows, plus one segment of all its other state."""

    def __init__(
        self, store: StoreCheckpoint, save: Literal["auto", "on", "off"], bytes_: int
    ) -> None:
        self.store, self.bytes = store, bytes_
        self.rows = store if isinstance(store, RowStore | ReplayRoles) else None
        self.saves = self.rows is not None and saves_replay(save, bytes_)
        self.known: dict[str, dict[str, Any]] = {}  # live segments, oldest first: name -> meta
        self.since: dict[str, Any] | None = None

    def pack(self, linkable: Set[str]) -> tuple[list[Segment] | None, dict[str, Any]]:
        """Return the segments for this checkpoint and their JSON state."""
        store = self.rows
        tensors, numbers = self.store.state()
        if store is None or not self.saves:
            rng = tensors["rng"].tolist() if "rng" in tensors else None
            size = 0 if store is None else store.rows
            return None, {"numbers": numbers, "rng": rng, "size": size}
        live = {n: m for n, m in self.known.items() if store.is_live(m)}
        parts = [Segment(name) for name in live]
        if not set(live) <= linkable:  # the previous checkpoint was not written: save all segments
            live, parts, self.since = {}, [], None
        new = store.new_rows_since(self.since)
        name = f"rows-{store.steps_inserted:012d}"
        live[name] = new.meta
        parts.append(Segment(name, {k: v.numpy() for k, v in new.tensors.items()}))
        # Priorities and write positions change everywhere, so write this part each time.
        index = {k: v.cpu().numpy() for k, v in tensors.items()}
        parts.append(Segment(f"index-{store.steps_inserted:012d}", index))
        self.known, self.since = live, store.marker()
        return parts, {"numbers": numbers, "segments": live, "size": store.size}

    def restore(self, reader: Segments | None, state: dict[str, Any]) -> None:
        store = self.rows
        if store is None:
            self.store.load({}, state["numbers"])
            return
        if reader is None or "segments" not in state:
            rng = state.get("rng")
            if rng is None and isinstance(store, RowStore):
                rng = store.rng.get_state().tolist()
            store.forget({"rng": torch.tensor(rng, dtype=torch.uint8)}, state["numbers"])
            store.refill(state["size"])
            return
        limit = 2 * self.bytes + _SLACK
        for name, meta in state["segments"].items():  # one at a time, to save memory
            store.restore([segments.Segment(_tensors(reader, name, limit), meta)])
        index = next(name for name in reader.names if name.startswith("index-"))
        store.load(_tensors(reader, index, limit), state["numbers"])
        self.known, self.since = dict(state["segments"]), store.marker()

    @property
    def missing(self) -> int:
        """Rows to collect again before learning goes on."""
        return 0 if self.rows is None else self.rows.missing

    def remarks(self, refill: bool) -> list[str]:
        """Return messages for the user at the start."""
        if self.rows is None:
            return []
        if refill:
            return ["the checkpoint has no replay: refilling it before learning goes on"]
        if not self.saves:
            return [
                f"replay ({show_bytes(self.bytes)}) is not saved: a resumed run refills it first"
            ]
        return []

    def metrics(self) -> dict[str, float]:
        """Return numbers for metrics.jsonl."""
        store = self.rows
        if store is None:
            return {}
        return {
            "fill": store.fill,
            "size": store.size,
            "samples_per_step": store.samples_drawn / max(1, store.steps_inserted),
            "beta": store.beta,
            **(store.metrics() if isinstance(store, ReplayRoles) else {}),
        }

    def shown(self) -> tuple[float | None, float | None, float | None]:
        """Return the measured replay ratio, its target and the fill, for the terminal."""
        store = self.rows
        if store is None:
            return None, None, None
        past = store.steps_inserted - store.plan.warmup
        ratio = store.samples_drawn / past if past > 0 else None
        return ratio, store.plan.replay_ratio, store.fill


def _tensors(reader: Segments, name: str, limit: int) -> dict[str, Tensor]:
    return {k: torch.from_numpy(v) for k, v in reader.load(name, limit).items()}
