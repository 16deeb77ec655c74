"""Storage: one ring [L, N] of named fields, one column per environment slot.

It writes and reads rows by absolute number. It knows nothing of episodes, items or priorities.

In memory it is time-major. Only large observations that are read in stretches of consecutive rows
(frame stacks, sequences) lie column by column on the host, so that such a stretch is one piece.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from ludus.contract import Episode, NStep, Plan, Sequence
from ludus.replay.storage.pinned import allocate_pinned
from ludus.types import EnvSpec, tree_leaves, tree_paths

# On the CPU the hot paths use numpy views of the tensors: a gather of 512 small rows takes 0.7 us
# against 3.4 us for torch.index_select. On a device the same code runs on the tensors themselves.
Array: TypeAlias = Any
# Bytes of a row from which copying it is the cost of a gather: then several threads help.
WIDE = 1024
Extras: TypeAlias = Mapping[str, tuple[tuple[int, ...], torch.dtype]]


@dataclass(frozen=True)
class Field:
    """One field of a row."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    ahead: bool = False  # written one row ahead: T rows bring T+1 of it

    @property
    def row_bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True)
class Layout:
    """How large the ring is and what a row holds; enough to estimate memory without building."""

    length: int  # L, rows per column
    columns: int  # N
    span: int  # rows an item reads forward before it may be drawn: n, or a sequence's length
    history: int  # rows before an item that it also reads: frame stack, previous action
    fields: Mapping[str, Field]
    states: Mapping[str, Field]  # recurrent state, kept for starts of sequences only
    starts: int = 0  # state slots per column

    @property
    def slots(self) -> int:
        return self.length * self.columns


def upright_fields(layout: Layout) -> frozenset[str]:
    """Fields that lie column by column in host memory: large observations that are read with
    their history, and `begin`, which is read along with them."""
    seen = {name: f for name, f in layout.fields.items() if name.split(".")[0] == "obs"}
    large = [name for name, f in seen.items() if f.row_bytes >= WIDE]
    return frozenset([*large, "begin"] if large and layout.history else [])


def is_state(name: str) -> bool:
    """Extras called `state` or `state.*` are recurrent state."""
    return name == "state" or name.startswith("state.")


def row_fields(spec: EnvSpec) -> dict[str, Field]:
    """What every row holds, whatever reads it."""
    leaves = zip(tree_paths(spec.obs), tree_leaves(spec.obs), strict=True)
    fields = {path: Field(s.shape, s.torch_dtype, ahead=True) for path, s in leaves}
    fields |= {
        "action": Field(spec.action_shape, spec.action_dtype),
        "reward": Field((), torch.float32),
        "discount": Field((), torch.float32),
        "stop": Field((), torch.bool),
        "begin": Field((), torch.bool, ahead=True),
    }
    if spec.has_action_mask:
        fields["action_mask"] = Field((spec.mask_width,), torch.bool, ahead=True)
    return fields


# Assumed where neither the environment nor the view bounds an episode; the ring grows if need be.
UNKNOWN_LENGTH = 1000


def episode_layout(plan: Plan, spec: EnvSpec, columns: int, extras: Extras | None = None) -> Layout:
    """Room for `per_slot` episodes of every slot, the one that runs, and a chunk."""
    view = plan.view
    assert isinstance(view, Episode) and columns > 0, "a view of whole episodes, and a column"
    bounds = [n for n in (view.max_length, spec.max_episode_steps) if n]
    longest = min(bounds) if bounds else UNKNOWN_LENGTH
    # One row more for each: the final observation. One more for the peeked row.
    rows = (view.per_slot + 1) * (longest + 1) + plan.chunk + 1
    fields = row_fields(spec) | {"first": Field((), torch.bool, ahead=True)}
    fields |= {f"extras.{k}": Field(tuple(s), dtype) for k, (s, dtype) in (extras or {}).items()}
    return Layout(max(math.ceil(plan.capacity / columns), rows), columns, 1, 0, fields, {})


def layout_of(plan: Plan, spec: EnvSpec, columns: int, extras: Extras | None = None) -> Layout:
    """The layout of a replay plan. L holds the capacity, the peeked row and the history."""
    view = plan.view
    assert isinstance(view, NStep | Sequence), "unrolls and episodes have stores of their own"
    assert plan.capacity > 0 and columns > 0, "replay needs a capacity and a column"
    specs = tree_leaves(spec.obs)
    sequence = isinstance(view, Sequence)
    span = view.burn_in + view.length if isinstance(view, Sequence) else view.n
    history = max([s.stack - 1 for s in specs] + [1 if sequence else 0])
    fields = row_fields(spec) | {"mask": Field((), torch.bool)}
    if plan.actor_priorities:
        fields["extras.priority"] = Field((), torch.float32)
    if sequence:
        fields["first"] = Field((), torch.bool, ahead=True)
    states: dict[str, Field] = {}
    for name, (shape, dtype) in (extras or {}).items():
        if is_state(name):
            assert sequence, "recurrent state is only read by sequences"
            states[name] = Field(tuple(shape), dtype)
        else:
            fields[f"extras.{name}"] = Field(tuple(shape), dtype)
    rows = max(math.ceil(plan.capacity / columns), plan.chunk + span)
    starts = 0
    if states:
        assert isinstance(view, Sequence)
        fields["start"] = Field((), torch.int64)
        # Twice what long episodes need; many short ones push the oldest starts out early.
        starts = min(rows, 2 * math.ceil(rows / view.period) + 2)
    return Layout(rows + 1 + history, columns, span, history, fields, states, starts)


def pick(array: Array, index: Array) -> Array:
    """Rows of a flat field; the result has the shape of `index` plus that of a row."""
    if isinstance(array, np.ndarray):
        return array.take(index, 0)
    if index.dim() == 1:
        return array.index_select(0, index)
    return array.index_select(0, index.reshape(-1)).view(*index.shape, *array.shape[1:])


def tensor(array: Array) -> Tensor:
    """As a tensor, without a copy."""
    return torch.from_numpy(array) if isinstance(array, np.ndarray) else array


def host(value: Tensor) -> np.ndarray[Any, Any]:
    """As a numpy array; without a copy when it is on the CPU."""
    array: np.ndarray[Any, Any] = value.numpy(force=True)
    return array


def allocate(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Zeros. On the CPU through numpy, whose pages cost nothing until they are written."""
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    return torch.from_numpy(np.zeros(shape, torch.empty(0, dtype=dtype).numpy().dtype))


class Ring:
    """Fields [L, N, ...] and a head per column: the absolute number of the next row to write.

    The slot of the head may already hold the `ahead` fields of that row (`peeked`).
    """

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
        self.length, self.columns = layout.length, layout.columns
        # False on a CPU: tensors throughout, as on a GPU, so that a test can see that path.
        self.on_host = self.device.type == "cpu" if on_host is None else on_host
        self.tensors: dict[str, Tensor] = {}  # [L, N, ...]
        self.arrays: dict[str, Array] = {}  # the same memory, numpy on the CPU
        self.flat: dict[str, Array] = {}  # the same memory as it lies, [L * N, ...]
        self.upright = upright_fields(layout) if self.on_host else frozenset()
        for name, f in layout.fields.items():
            upright = name in self.upright
            order = (self.columns, self.length) if upright else (self.length, self.columns)
            # Only observations are large; the rest is read too often to be fetched over a bus.
            far = pinned and name.split(".")[0] == "obs"
            t = (allocate_pinned if far else allocate)((*order, *f.shape), f.dtype, self.device)
            array = t.numpy() if self.on_host else t
            self.tensors[name] = t.transpose(0, 1) if upright else t
            self.arrays[name] = array.swapaxes(0, 1) if upright else array
            self.flat[name] = array.reshape(layout.slots, *f.shape)
        self.head = np.zeros(self.columns, np.int64)
        self.peeked = np.zeros(self.columns, bool)

    def lift(self, value: Tensor) -> Array:
        """A tensor in the form that this ring's fields take."""
        if self.on_host:
            return host(value)
        return value if value.device == self.device else value.to(self.device, non_blocking=True)

    def index(self, array: np.ndarray[Any, Any]) -> Array:
        """Host numbers in the form that indexes this ring's fields."""
        if self.on_host:
            return array
        if self.device.type == "cpu":
            return torch.from_numpy(array)
        # Pinned: a copy from pageable memory would wait for all work on the stream.
        return torch.from_numpy(array).pin_memory().to(self.device, non_blocking=True)

    def write(self, name: str, row: int, column: int, value: Array) -> None:
        """Put value [T, B, ...] at absolute rows row.. of columns column.. ."""
        t, b = value.shape[:2]
        p, field = row % self.length, self.arrays[name]
        if p + t <= self.length:
            field[p : p + t, column : column + b] = value
        else:
            k = self.length - p
            field[p:, column : column + b] = value[:k]
            field[: t - k, column : column + b] = value[k:]

    def rows(self, name: str, slots: Array) -> Array:
        """The rows of a field at flat slots (row * N + column), [*slots.shape, ...]."""
        return pick(self.flat[name], self.spots(slots) if name in self.upright else slots)

    def spots(self, slots: Array) -> Array:
        """Where the upright fields have these slots."""
        row, column = np.divmod(slots, self.columns)
        return column * self.length + row

    def read(self, name: str, lo: int, hi: int, columns: slice) -> Tensor:
        """A copy of absolute rows [lo, hi) of some columns."""
        p = torch.arange(lo, hi, device=self.device) % self.length
        return self.tensors[name][:, columns].index_select(0, p)

    def where(self, lo: int, hi: int, column: int, width: int) -> slice | np.ndarray[Any, Any]:
        """Flat slots of absolute rows [lo, hi) of `width` columns; a slice where they adjoin."""
        p = lo % self.length
        if width == self.columns and p + hi - lo <= self.length:
            return slice(p * self.columns, (p + hi - lo) * self.columns)
        rows = np.arange(lo, hi) % self.length * self.columns
        flat: np.ndarray[Any, Any] = (rows[:, None] + np.arange(column, column + width)).reshape(-1)
        return flat

    def longer(self, length: int) -> Ring:
        """A ring of `length` rows per column that holds all that this one holds."""
        layout = replace(self.layout, length=length)
        ring = Ring(layout, self.device, pinned=self.pinned, on_host=self.on_host)
        ring.head[:], ring.peeked[:] = self.head, self.peeked
        for column in range(self.columns):
            hi = int(self.head[column])
            lo = max(0, hi + int(self.peeked[column]) - self.length)
            for name, field in self.layout.fields.items():
                end = hi + int(field.ahead and self.peeked[column])
                value = self.read(name, lo, end, slice(column, column + 1))
                ring.write(name, lo, column, ring.lift(value))
        return ring

    def oldest(self) -> np.ndarray[Any, Any]:
        """Per column, the oldest row whose own slot and history are intact."""
        lo: np.ndarray[Any, Any] = self.head + 1 + self.layout.history - self.length
        return lo

    def ids(self, flat: Array) -> Array:
        """Absolute ids (row * N + column) of the newest rows in these flat slots."""
        slots, n = self.layout.slots, self.columns
        top = int(self.head[0]) * n
        if n == 1 or (self.head == self.head[0]).all():
            return top - 1 - (top - 1 - flat) % slots
        head: Array = self.head
        if not isinstance(flat, np.ndarray):
            head = torch.from_numpy(head).to(flat.device)
        end = (head[flat % n] - 1) * n + flat % n  # id of each column's newest row
        return end - (end - flat) % slots
