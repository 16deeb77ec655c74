"""Replay in checkpoints: segments of rows written since a marker, and all other state.

It turns a store into named tensors and back; track/checkpoint writes and links the files. A segment
never changes once taken, so checkpoints can share it by hard link.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from ludus.errors import LudusError
from ludus.replay.views import Tail

if TYPE_CHECKING:
    from ludus.replay.replay_store import ReplayStore

Json = dict[str, Any]


class Segment(NamedTuple):
    """Rows [lo, hi) of each source. Tensors are named `<source>.<field>`, [rows, B, ...]."""

    tensors: dict[str, Tensor]
    meta: Json  # {"rows": {source: [lo, hi]}, "starts": {env: [lo, hi]}}


def marker(store: ReplayStore) -> Json:
    """The position of the store; `segment` returns the rows written after it."""
    heads = {str(s): int(store.ring.head[s * w]) for s, w in store.widths.items()}
    starts = store.starts.count.tolist() if store.starts is not None else []
    return {"rows": heads, "starts": starts}


def segment(store: ReplayStore, since: Json | None = None) -> Segment:
    """The rows written since the marker (None: ever) that are still in the ring."""
    ring = store.ring
    since = since or {"rows": {}, "starts": []}
    tensors: dict[str, Tensor] = {}
    meta: Json = {"rows": {}, "starts": {}}
    for source, width in store.widths.items():
        env = source * width
        hi = int(ring.head[env])
        lo = max(int(since["rows"].get(str(source), 0)), hi - ring.length + 1)
        lo = min(lo, hi)
        meta["rows"][str(source)] = [lo, hi]
        for name, field in ring.layout.fields.items():
            end = hi + int(field.ahead and ring.has_next_obs[env])
            values = ring.read(name, lo, end, slice(env, env + width))
            tensors[f"{source}.{name}"] = values.cpu()
    starts = store.starts
    if starts is not None and starts.states:
        for c in range(ring.num_envs):
            hi = int(starts.count[c])
            lo = int(since["starts"][c]) if since["starts"] else 0
            lo = max(lo, hi - ring.layout.starts)
            meta["starts"][str(c)] = [lo, hi]
            for name in starts.states:
                tensors[f"{c}:{name}"] = starts.read(name, c, lo, hi)
    return Segment(tensors, meta)


def is_live(store: ReplayStore, meta: Json) -> bool:
    """Whether a segment taken earlier still holds a row of the ring."""
    oldest = store.ring.oldest()
    for source, (lo, hi) in meta["rows"].items():
        env = int(source) * store.widths[int(source)]
        # An item's history reaches before its own row.
        if hi > lo and hi + store.ring.layout.history > int(oldest[env]):
            return True
    return False


def restore(store: ReplayStore, segments: Sequence[Segment]) -> None:
    """Write segments, oldest first, into a store of the same layout. `load` follows."""
    ring = store.ring
    for tensors, meta in segments:
        for key, (lo, hi) in meta["rows"].items():
            source = int(key)
            if lo == hi:
                continue
            mask = tensors[f"{key}.mask"]
            width = mask.shape[1]
            env = source * width
            if lo > 0:  # a break after the older segment was taken shows in its next row only
                p = (lo - 1) % ring.length
                ring.tensors["stop"][p, env : env + width] |= ~mask[0].to(ring.device)
            for name in ring.layout.fields:
                if name == "version" and f"{key}.{name}" not in tensors:
                    continue  # checkpoints had none before: those rows count as version 0
                value = tensors[f"{key}.{name}"].to(ring.device)
                ring.write(name, lo, env, ring.lift(value))
        if store.starts is not None:
            for key, (lo, hi) in meta["starts"].items():
                slots = torch.arange(lo, hi) % ring.layout.starts
                for name, table in store.starts.states.items():
                    table[slots, int(key)] = tensors[f"{key}:{name}"].to(ring.device)


def save_state(store: ReplayStore) -> tuple[dict[str, Tensor], Json]:
    """All state but the rows: counters, heads, priorities, open windows, generator."""
    ring = store.ring
    store.read_count()
    tensors, numbers = store.sampler.state()
    tensors["rng"] = store.rng.get_state()
    tensors["head"] = torch.from_numpy(ring.head.copy())
    # Keys of the file format keep their first names: peeked, columns.
    tensors["peeked"] = torch.from_numpy(ring.has_next_obs.copy())
    for source, tail in store.items.tails.items():
        for name, flags in tail._asdict().items():
            if flags is not None:
                tensors[f"tail.{source}.{name}"] = torch.from_numpy(flags.copy())
    if store.starts is not None:
        tensors["age"] = torch.from_numpy(store.starts.age.copy())
        tensors["starts"] = torch.from_numpy(store.starts.count.copy())
        tensors["start_row"] = torch.from_numpy(store.starts.row.copy())
    meta: Json = {
        "length": ring.length,
        "columns": ring.num_envs,
        **store.ratio.state(),
        "sampler": numbers,
        "sequence": {str(k): v for k, v in store.sequence.items()},
        "widths": {str(k): v for k, v in store.widths.items()},
        "tails": [str(s) for s in store.items.tails],
    }
    return tensors, meta


def load_state(store: ReplayStore, tensors: dict[str, Tensor], numbers: Json) -> None:
    """The inverse of `save_state`; the rows come through `restore`."""
    ring = store.ring
    got, want = (numbers["length"], numbers["columns"]), (ring.length, ring.num_envs)
    if got != want:
        raise LudusError(
            "E307",
            f"the saved replay has {got[0]} rows of {got[1]} environments, "
            f"this one {want[0]} of {want[1]}",
            where="replay of the checkpoint",
            why="a small replay is made as long as actors' chunks ask for, and actor.rows changed",
            fix="the same command with actor.rows as the run's config.yaml has it",
        )
    store.sampler.load(tensors, numbers["sampler"])
    _load_generator(store, tensors["rng"])
    ring.head[:] = tensors["head"].numpy()
    ring.has_next_obs[:] = tensors["peeked"].numpy()
    store.items.tails = {int(s): _tail(tensors, f"tail.{s}.") for s in numbers["tails"]}
    if store.starts is not None:
        store.starts.age[:] = tensors["age"].numpy()
        store.starts.count[:] = tensors["starts"].numpy()
        store.starts.row[:] = tensors["start_row"].numpy()
    store.ratio.load(numbers)
    store.drop_count()
    store.sequence = {int(k): int(v) for k, v in numbers["sequence"].items()}
    store.widths = {int(k): int(v) for k, v in numbers["widths"].items()}


def _tail(tensors: dict[str, Tensor], prefix: str) -> Tail:
    names = [name for name in Tail._fields if prefix + name in tensors]
    return Tail(**{name: tensors[prefix + name].numpy().copy() for name in names})


def forget_rows(store: ReplayStore, tensors: dict[str, Tensor], numbers: Json) -> None:
    """Instead of `load_state` where the rows were not saved: generator and counters continue, the
    ring starts empty. Set `store.ratio.missing` to the rows to collect again before learning."""
    assert not store.ring.head.any(), "only an empty store can forget"
    _load_generator(store, tensors["rng"])
    store.ratio.load(numbers)
    store.drop_count()


def _load_generator(store: ReplayStore, saved: Tensor) -> None:
    """A generator of another device has another state; the barrier re-derives it in any case."""
    if store.rng.get_state().shape == saved.shape:
        store.rng.set_state(saved)
