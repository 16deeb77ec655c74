"""Storage: one ring [L, N] of named fields, [row, environment], and its layout.

It writes and reads rows by absolute number. It knows nothing of episodes, items or priorities.
An id is row * N + env with the absolute row; a slot is the same with the row's place in the ring.

In memory it is time-major. Only large observations that are read in stretches of consecutive rows
(frame stacks, sequences) are column-major on the host, so that such a stretch is one piece.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from ludus.contract import Episode, NStep, Plan, Sequence
from ludus.replay.native import bindings as native
from ludus.replay.native.bindings import WIDE, pick
from ludus.replay.storage.pinned import allocate_pinned
from ludus.types import (
    HERE,
    Chunk,
    EnvSpec,
    Extras,
    Field,
    Rows,
    numpy_dtype,
    row_fields,
    tree_leaves,
)

# On the CPU the hot paths use numpy views of the tensors: a gather of 512 small rows takes 0.7 us
# against 3.4 us for torch.index_select. On a device the same code runs on the tensors themselves.
Array: TypeAlias = Any
Numbers: TypeAlias = np.ndarray[Any, Any]


def tensor(array: Array) -> Tensor:
    """As a tensor, without a copy."""
    return torch.from_numpy(array) if isinstance(array, np.ndarray) else array


def host(value: Tensor) -> Numbers:
    """As a numpy array; without a copy when it is on the CPU."""
    array: Numbers = value.numpy(force=True)
    return array


def allocate(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Zeros. On the CPU through numpy, whose pages cost nothing until they are written."""
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    return torch.from_numpy(np.zeros(shape, numpy_dtype(dtype)))


# Assumed where neither the environment nor the view bounds an episode; the ring grows if need be.
UNKNOWN_LENGTH = 1000


@dataclass(frozen=True)
class Layout:
    """The size of a ring and the fields of its rows: enough to estimate memory."""

    length: int  # L, rows per environment
    num_envs: int  # N
    span: int  # rows an item reads forward before it may be drawn: n, or a sequence's length
    history: int  # rows before an item that it also reads: frame stack, previous action
    fields: Mapping[str, Field]
    states: Mapping[str, Field]  # recurrent state, kept for starts of sequences only
    starts: int = 0  # recurrent states kept per environment

    @property
    def slots(self) -> int:
        return self.length * self.num_envs

    @property
    def extras(self) -> list[str]:
        return [name for name in self.fields if name.startswith("extras.")]


def column_major_fields(layout: Layout) -> frozenset[str]:
    """Fields stored column-major in host memory: large observations that are read with their
    history, and `begin`, which is read along with them."""
    seen = {name: f for name, f in layout.fields.items() if name.split(".")[0] == "obs"}
    large = [name for name, f in seen.items() if f.row_bytes >= WIDE]
    return frozenset([*large, "begin"] if large and layout.history else [])


def is_state(name: str) -> bool:
    """Extras called `state` or `state.*` are recurrent state."""
    return name == "state" or name.startswith("state.")


def _ring_fields(spec: EnvSpec, extras: Extras, drop: tuple[str, ...]) -> dict[str, Field]:
    """`stop` and `begin` stand for `last` and `first`: streams break there, too. `version` counts
    the updates of the weights that acted."""
    fields = {k: f for k, f in row_fields(spec, extras).items() if k not in drop}
    flags = {"stop": Field((), torch.bool), "begin": Field((), torch.bool, ahead=True)}
    return fields | flags | {"version": Field((), torch.int64)}


def episode_layout(
    plan: Plan, spec: EnvSpec, num_envs: int, extras: Extras | None = None
) -> Layout:
    """Room for `per_env` episodes of every environment, the running one, and a chunk."""
    view = plan.view
    assert isinstance(view, Episode) and num_envs > 0, "a view of whole episodes, and environments"
    bounds = [n for n in (view.max_length, spec.max_episode_steps) if n]
    longest = min(bounds) if bounds else UNKNOWN_LENGTH
    # One more row for each final observation, and one for the next observation.
    rows = (view.per_env + 1) * (longest + 1) + plan.chunk + 1
    fields = _ring_fields(spec, extras or {}, ("raw_reward", "last", "mask"))
    return Layout(max(math.ceil(plan.capacity / num_envs), rows), num_envs, 1, 0, fields, {})


def layout_of(plan: Plan, spec: EnvSpec, num_envs: int, extras: Extras | None = None) -> Layout:
    """The layout of a replay plan. L holds the capacity, the next observation and the history."""
    view = plan.view
    assert isinstance(view, NStep | Sequence), "unrolls and episodes have stores of their own"
    assert plan.capacity > 0 and num_envs > 0, "replay needs a capacity and an environment"
    sequence = isinstance(view, Sequence)
    span = view.burn_in + view.length if isinstance(view, Sequence) else view.n
    history = max([s.stack - 1 for s in tree_leaves(spec.obs)] + [1 if sequence else 0])
    extras = extras or {}
    states = {k: Field(tuple(s), dtype) for k, (s, dtype) in extras.items() if is_state(k)}
    assert sequence or not states, "recurrent state is only read by sequences"
    kept = {k: v for k, v in extras.items() if k not in states}
    drop = ("raw_reward", "last") if sequence else ("raw_reward", "last", "first")
    fields = _ring_fields(spec, kept, drop)
    if plan.actor_priorities:
        fields["extras.priority"] = Field()
    rows = max(math.ceil(plan.capacity / num_envs), plan.chunk + span)
    starts = 0
    if isinstance(view, Sequence) and states:
        fields["start"] = Field((), torch.int64)
        # Twice what long episodes need; many short ones push the oldest starts out early.
        starts = min(rows, 2 * math.ceil(rows / view.period) + 2)
    return Layout(rows + 1 + history, num_envs, span, history, fields, states, starts)


class Ring:
    """Fields [L, N, ...] and a head per environment: the absolute number of the next row to write.

    Where `has_next_obs`, the slot of the head already holds the `ahead` fields of that row.
    """

    origin = HERE

    def __init__(
        self,
        layout: Layout,
        device: str | torch.device = "cpu",
        *,
        pinned: bool = False,
        on_host: bool | None = None,
    ) -> None:
        self.layout, self.pinned = layout, pinned
        self.device = torch.device(device)
        self.length, self.num_envs = layout.length, layout.num_envs
        # False on a CPU: tensors throughout, as on a GPU, so that a test can see that path.
        self.on_host = self.device.type == "cpu" if on_host is None else on_host
        self.obs_paths = [name for name in layout.fields if name.split(".")[0] == "obs"]
        self.tensors: dict[str, Tensor] = {}  # [L, N, ...]
        self.arrays: dict[str, Array] = {}  # the same memory, numpy on the CPU
        self.flat: dict[str, Array] = {}  # the same memory in its own order, [L * N, ...]
        self.column_major = column_major_fields(layout) if self.on_host else frozenset()
        for name, f in layout.fields.items():
            column_major = name in self.column_major
            order = (self.num_envs, self.length) if column_major else (self.length, self.num_envs)
            # Only observations are large; the rest is read too often to be fetched over a bus.
            far = pinned and name.split(".")[0] == "obs"
            t = (allocate_pinned if far else allocate)((*order, *f.shape), f.dtype, self.device)
            array = t.numpy() if self.on_host else t
            self.tensors[name] = t.transpose(0, 1) if column_major else t
            self.arrays[name] = array.swapaxes(0, 1) if column_major else array
            self.flat[name] = array.reshape(layout.slots, *f.shape)
        self.head = np.zeros(self.num_envs, np.int64)
        self.has_next_obs = np.zeros(self.num_envs, bool)

    def lift(self, value: Tensor) -> Array:
        """A tensor in the form that this ring's fields take."""
        if self.on_host:
            return host(value)
        return value if value.device == self.device else value.to(self.device, non_blocking=True)

    def index(self, array: Numbers) -> Array:
        """Host numbers in the form that indexes this ring's fields."""
        if self.on_host:
            return array
        if self.device.type == "cpu":
            return torch.from_numpy(array)
        # Pinned: a copy from pageable memory would wait for all work on the stream.
        return torch.from_numpy(array).pin_memory().to(self.device, non_blocking=True)

    def write(self, name: str, row: int, env: int, value: Array) -> None:
        """Put value [T, B, ...] at absolute rows row.. of environments env.. ."""
        t, b = value.shape[:2]
        p, field = row % self.length, self.arrays[name]
        if p + t <= self.length:
            field[p : p + t, env : env + b] = value
        else:
            k = self.length - p
            field[p:, env : env + b] = value[:k]
            field[: t - k, env : env + b] = value[k:]

    def fill(self, name: str, row: int, env: int, shape: tuple[int, int], value: int) -> None:
        """Put one number at `shape` = (T, B) absolute rows row.. of environments env.. ."""
        t, b = shape
        p, field = row % self.length, self.arrays[name]
        field[p : p + t, env : env + b] = value
        if p + t > self.length:
            field[: p + t - self.length, env : env + b] = value

    def write_rows(
        self, row: int, env: int, rows: Rows, names: Iterable[str], extras: Iterable[str]
    ) -> None:
        """Put observations, the fields `names` and `extras.*` of T rows at absolute rows row.. ."""
        write, lift = self.write, self.lift
        for path, leaf in zip(self.obs_paths, tree_leaves(rows.obs), strict=True):
            if path in self.column_major and self.has_next_obs[env]:
                # Large, and its first row came as the last of the chunk before.
                write(path, row + 1, env, lift(leaf[1:]))
            else:
                write(path, row, env, lift(leaf))
        for name in names:
            write(name, row, env, lift(getattr(rows, name)))
        for name in extras:
            write(name, row, env, lift(rows.extras[name.removeprefix("extras.")]))

    def advance(self, row: int, envs: slice, *, has_next_obs: bool) -> None:
        """Row `row` of these environments is the next to be written."""
        self.head[envs], self.has_next_obs[envs] = row, has_next_obs

    def rows(self, name: str, slots: Array) -> Array:
        """The rows of a field at flat slots (row * N + env), [*slots.shape, ...]."""
        return pick(self.flat[name], self.spots(slots) if name in self.column_major else slots)

    def spots(self, slots: Array) -> Array:
        """The indices of these slots in column-major fields."""
        row, env = np.divmod(slots, self.num_envs)
        return env * self.length + row

    def read(self, name: str, lo: int, hi: int, envs: slice) -> Tensor:
        """A copy of absolute rows [lo, hi) of some environments."""
        p = torch.arange(lo, hi, device=self.device) % self.length
        return self.tensors[name][:, envs].index_select(0, p)

    def where(self, lo: int, hi: int, env: int, width: int) -> slice | Numbers:
        """Flat slots of absolute rows [lo, hi) of `width` environments; a slice if contiguous."""
        p = lo % self.length
        if width == self.num_envs and p + hi - lo <= self.length:
            return slice(p * self.num_envs, (p + hi - lo) * self.num_envs)
        rows = np.arange(lo, hi) % self.length * self.num_envs
        flat: Numbers = (rows[:, None] + np.arange(env, env + width)).reshape(-1)
        return flat

    def longer(self, length: int) -> Ring:
        """A ring of `length` rows per environment that holds all that this one holds."""
        layout = replace(self.layout, length=length)
        ring = Ring(layout, self.device, pinned=self.pinned, on_host=self.on_host)
        ring.origin = self.origin
        ring.head[:], ring.has_next_obs[:] = self.head, self.has_next_obs
        for env in range(self.num_envs):
            hi = int(self.head[env])
            lo = max(0, hi + int(self.has_next_obs[env]) - self.length)
            for name, field in self.layout.fields.items():
                end = hi + int(field.ahead and self.has_next_obs[env])
                value = self.read(name, lo, end, slice(env, env + 1))
                ring.write(name, lo, env, ring.lift(value))
        return ring

    def oldest(self) -> Numbers:
        """Per environment, the oldest row whose own slot and history are intact."""
        lo: Numbers = self.head + 1 + self.layout.history - self.length
        return lo

    def ids(self, flat: Array) -> Array:
        """Absolute ids (row * N + env) of the newest rows in these flat slots."""
        slots, n = self.layout.slots, self.num_envs
        top = int(self.head[0]) * n
        if n == 1 or (self.head == self.head[0]).all():
            return top - 1 - (top - 1 - flat) % slots
        head: Array = self.head
        if not isinstance(flat, np.ndarray):
            head = torch.from_numpy(head).to(flat.device)
        end = (head[flat % n] - 1) * n + flat % n  # id of each environment's newest row
        return end - (end - flat) % slots


def follow(
    chunk: Chunk, num_envs: int, widths: dict[int, int], sequence: dict[int, int]
) -> tuple[slice, bool]:
    """The environments of a chunk, and whether it does not continue its source's stream. `widths`
    has the environments of each source, `sequence` the number of its newest chunk."""
    source, width = chunk.source, chunk.rows.reward.shape[1]
    envs = slice(source * width, (source + 1) * width)
    assert envs.stop <= num_envs, "a source beyond the environments of this store"
    if widths.setdefault(source, width) != width:
        raise ValueError(f"source {source} had {widths[source]} environments, now {width}")
    previous = sequence.get(source)
    sequence[source] = chunk.sequence
    return envs, previous is not None and (chunk.breaks or chunk.sequence != previous + 1)


class Ids:
    """Ids of slots and slots of ids, by C where it could be compiled. `valid` [slots] says which
    slots may be drawn."""

    def __init__(self, ring: Ring, valid: Numbers) -> None:
        self.ring, self.valid = ring, valid
        self._library = native.library() if ring.on_host else None
        head, flags = native.address(ring.head), native.address(valid)
        self._rows = native.RowsStruct(head, flags, ring.num_envs, ring.layout.slots)
        self._at = ctypes.addressof(self._rows)

    def of(self, slots: Array) -> Array:
        """The ids of the newest rows in these slots."""
        if self._library is None or (self.ring.num_envs == 1 and len(slots) <= native.FEW):
            return self.ring.ids(slots)
        slots = np.ascontiguousarray(slots, np.int64)
        ids = np.empty(len(slots), np.int64)
        self._library.ludus_ids(self._at, native.address(slots), len(slots), native.address(ids))
        return ids

    def current(self, ids: Tensor) -> tuple[Numbers, Numbers | None]:
        """The slots of ids, and which of these ids may still be drawn; None: all may."""
        absolute = np.ascontiguousarray(host(ids), np.int64)
        if self._library is not None:
            slots, current = np.empty(len(absolute), np.int64), np.empty(len(absolute), bool)
            places = (native.address(array) for array in (slots, current))
            count = self._library.ludus_current(
                self._at, native.address(absolute), len(absolute), *places
            )
            return slots, None if count == len(absolute) else current
        slots = absolute % self.ring.layout.slots
        current = self.valid.take(slots)
        current &= self.ring.ids(slots) == absolute
        return slots, None if current.all() else current
