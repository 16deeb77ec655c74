"""Rows and frame stacks read from a ring in host memory, by C where it could be compiled.

Large ones are copied by as many threads as torch may use, into memory that is used again.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import torch

from ludus.replay.native import bindings as native
from ludus.replay.native.array_pool import Scratch
from ludus.replay.storage.layout import WIDE
from ludus.replay.storage.ring import Ring, pick

Array = np.ndarray[Any, Any]


class Stacks:
    """The k newest rows of a field up to a slot, newest last, zeros before the episode's first.

    With k = 1 these are the rows themselves.
    """

    def __init__(self, ring: Ring, name: str, k: int, scratch: Scratch) -> None:
        self.ring, self.name, self.k, self.scratch = ring, name, k, scratch
        self.rows, self.opens = ring.flat[name], ring.flat["begin"]
        self.wide = ring.layout.fields[name].row_bytes >= WIDE
        size = ring.layout.fields[name].row_bytes
        in_c = (k > 1 or self.wide) and 0 < size and k <= ring.length
        self._library = native.library() if in_c else None
        if self._library is not None:
            self._place = self._describe()

    def _describe(self) -> native.Stacks:
        ring = self.ring
        steps = {True: (1, ring.length), False: (ring.num_envs, 1)}  # of a row, of an environment
        return native.Stacks(
            native.address(self.rows), native.address(self.opens),
            ring.layout.fields[self.name].row_bytes, self.k, ring.num_envs, ring.length,
            *steps[self.name in ring.column_major], *steps["begin" in ring.column_major],
        )  # fmt: skip

    def begin(self, slots: Array) -> Reading:
        """Start to read; `finish` of the result gives the stacks."""
        shape = slots.shape if self.k == 1 else (*slots.shape, self.k)
        out = self._room(shape)
        if self._library is None:
            return PlainReading(self, slots, out)
        return NativeReading(self, self._library, self._place, slots, out)

    def _room(self, shape: tuple[int, ...]) -> Array:
        shape = (*shape, *self.rows.shape[1:])
        if not self.wide:
            return np.empty(shape, self.rows.dtype)
        return self.scratch.take(shape, self.rows.dtype)

    def plain(self, slots: Array, out: Array) -> tuple[Array, bool]:
        """The same as the C function, with numpy and torch."""
        index = window(self.ring, slots.reshape(-1), self.k, self.name in self.ring.column_major)
        if self.wide:  # torch copies with all its threads
            source, at = torch.from_numpy(self.rows), torch.from_numpy(index.reshape(-1))
            rows = torch.from_numpy(out.reshape(-1, *self.rows.shape[1:]))
            torch.index_select(source, 0, at, out=rows)
        else:
            self.rows.take(index.reshape(out.shape[: out.ndim - self.rows.ndim + 1]), 0, out=out)
        if self.k == 1:
            return out, False
        index = window(self.ring, slots.reshape(-1), self.k, "begin" in self.ring.column_major)
        opened = self.opens.take(index)  # [B, k]
        stacks = out.reshape(-1, self.k, *self.rows.shape[1:])
        for item, frame in zip(*np.nonzero(opened), strict=True):
            stacks[item, :frame] = 0
        return out, bool(opened[:, -1].any())


class PlainReading:
    """Nothing is done before `finish`."""

    def __init__(self, stacks: Stacks, slots: Array, out: Array) -> None:
        self._stacks, self._slots, self._out = stacks, slots, out

    def finish(self) -> tuple[Array, bool]:
        """The stacks [*slots.shape, k, ...] (without k if it is 1), and whether the newest row of
        any is the first of its episode."""
        return self._stacks.plain(self._slots, self._out)


class NativeReading:
    """Threads copy from the moment this is made, while the caller does other things."""

    def __init__(
        self, of: Stacks, library: ctypes.CDLL, field: native.Stacks, slots: Array, out: Array
    ) -> None:
        # Keeps alive the memory whose address C has; its Stacks keep the ring.
        self._of, self._library, self._field, self._out = of, library, field, out
        self._slots = np.ascontiguousarray(slots, np.int64)
        places = ctypes.addressof(field), native.address(self._slots), native.address(out)
        self._job = native.Job(*places, slots.size)
        self._at: int | None = ctypes.addressof(self._job)
        library.ludus_begin(self._at, native.threads_for(out.nbytes))

    def finish(self) -> tuple[Array, bool]:
        """As `PlainReading.finish`, but only once."""
        if self._at is None:
            raise RuntimeError("finish() was called twice")
        self._library.ludus_finish(self._at)
        self._at = None
        if self._job.outside:
            raise IndexError("a slot outside the ring")
        return self._out, bool(self._job.opened)

    def __del__(self) -> None:
        # After an interrupt between the two, no thread may write to freed memory.
        if getattr(self, "_at", None) is not None:
            self._library.ludus_finish(self._at)


Reading = PlainReading | NativeReading


def window(ring: Ring, slots: Array, k: int, column_major: bool) -> Array:
    """Where a field has the k newest rows up to each slot, newest last, [B, k]."""
    back = np.arange(1 - k, 1)
    row, env = np.divmod(slots[:, None], ring.num_envs)
    row = (row + back) % ring.length
    return env * ring.length + row if column_major else row * ring.num_envs + env


class Columns:
    """Rows of several fields at once, of a ring on any device. Meant for small ones."""

    def __init__(self, ring: Ring, names: list[str]) -> None:
        assert not ring.column_major.intersection(names), "frames are read by `Stacks`"
        self.fields = [ring.flat[name] for name in names]
        self._library = native.library() if ring.on_host else None
        if self._library is not None:
            sizes = [ring.layout.fields[name].row_bytes for name in names]
            places = [native.address(field) for field in self.fields]
            columns = [native.Column(*pair) for pair in zip(places, sizes, strict=True)]
            self._columns = (native.Column * len(names))(*columns)
            self._at = ctypes.addressof(self._columns)
            self._outs = ctypes.c_void_p * len(names)

    def read(self, slots: Any) -> list[Any]:
        """One array [B, ...] for each field."""
        if self._library is None:
            return [pick(field, slots) for field in self.fields]
        slots = np.ascontiguousarray(slots, np.int64)
        made = [np.empty((len(slots), *field.shape[1:]), field.dtype) for field in self.fields]
        outs = self._outs(*map(native.address, made))
        self._library.ludus_pick(
            self._at, len(made), native.address(slots), len(slots), ctypes.addressof(outs)
        )
        return made
