"""copies.c and sums.c, compiled by this machine's C compiler when first needed, and what reads rows
and frame stacks of a ring in host memory with them.

Where there is no compiler, or with LUDUS_NATIVE=0, `library` is None and callers use numpy, which
gives the same bits in more time. Large rows are copied by as many threads as torch may use, into
memory that is used again.
"""

from __future__ import annotations

import ctypes
import os
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from ludus.replay.native import build as compiled

if TYPE_CHECKING:
    from ludus.replay.storage.ring import Ring

SOURCES = tuple(Path(__file__).with_name(name) for name in ("copies.c", "sums.c"))
# Without contraction every product and sum is rounded by itself, as numpy rounds it. No
# -march=native: the cache may be on a disk that several machines share.
FLAGS = ("-O3", "-std=gnu11", "-shared", "-fPIC", "-pthread", "-ffp-contract=off")
MOST = 8  # threads that copy; memory is no faster for more
# Bytes below which the caller alone is done before a helper has woken up.
ALONE = 1 << 20
# Bytes of a row from which copying it is the cost of a gather: then several threads help.
WIDE = 1024
# Slots up to which numpy reads or converts them sooner than a function of C can be called: four
# fields of 32 rows of a million take 1.2 us against 8, of 1024 rows 5.7 against 13.
FEW = 1024
KEPT = 4  # large arrays at most; more samples held at once get fresh memory
Array = np.ndarray[Any, Any]


def _members(pointers: str, numbers: str) -> list[tuple[str, Any]]:
    """The members of a struct of C: first its pointers, then its 64-bit numbers."""
    names = [(name, ctypes.c_void_p) for name in pointers.split()]
    return [*names, *((name, ctypes.c_int64) for name in numbers.split())]


class StacksStruct(ctypes.Structure):
    """`stacks_t`: the address of the frames of a ring's field."""

    _fields_ = _members(
        "rows begin",
        "bytes k columns length row_step column_step begin_row_step begin_column_step",
    )


class RowsStruct(ctypes.Structure):
    """`rows_t`: converts between ids and slots."""

    _fields_ = _members("head valid", "columns slots")


class JobStruct(ctypes.Structure):
    """`job_t`: stacks to be copied."""

    _fields_ = _members("field slots out", "count next opened outside")


class ColumnStruct(ctypes.Structure):
    """`column_t`: a field of small rows."""

    _fields_ = _members("rows", "bytes")


LEVELS = 8


class TreeStruct(ctypes.Structure):
    """`tree_t`: the levels of a sum tree, leaves first, the top last."""

    _fields_ = (
        ("levels", ctypes.c_void_p * (LEVELS + 1)),
        ("nodes", ctypes.c_int64 * LEVELS),
        *_members("edges", "depth width top capacity"),
    )


class MinsStruct(ctypes.Structure):
    """`mins_t`: leaves, then the levels of a tree of minima."""

    _fields_ = (("levels", ctypes.c_void_p * (LEVELS + 1)), *_members("", "depth width"))


_POINTER, _LONG, _INT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int
_FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "ludus_begin": (_POINTER, _INT),
    "ludus_finish": (_POINTER,),
    "ludus_ids": (_POINTER, _POINTER, _LONG, _POINTER),
    "ludus_current": (_POINTER, _POINTER, _LONG, _POINTER, _POINTER),
    "ludus_pick": (_POINTER, _LONG, _POINTER, _LONG, _POINTER),
    "ludus_tree_range": (_POINTER, _LONG, _LONG),
    "ludus_tree_set": (_POINTER, _POINTER, _POINTER, _LONG),
    "ludus_tree_find": (_POINTER, _POINTER, _LONG, _POINTER, _POINTER),
    "ludus_mins_set": (_POINTER, _POINTER, _LONG),
    "ludus_mins_range": (_POINTER, _LONG, _LONG),
}


class Built(NamedTuple):
    library: ctypes.CDLL | None
    text: str  # for `ludus doctor`


def library() -> ctypes.CDLL | None:
    return build().library


@cache
def build() -> Built:
    """Compile and load, once per process; compiled code is kept for the next one."""
    if os.environ.get("LUDUS_NATIVE") == "0":
        return Built(None, "numpy: LUDUS_NATIVE=0")
    try:
        loaded, where = compiled.load(SOURCES, FLAGS, _functions)
    except compiled.NotCompiledError as error:
        return Built(None, f"numpy: {error}")
    return Built(loaded, f"compiled: {where}")


def _functions(loaded: ctypes.CDLL) -> ctypes.CDLL:
    for name, arguments in _FUNCTIONS.items():
        function = getattr(loaded, name)
        function.argtypes = arguments
        function.restype = _LONG if name == "ludus_current" else None
    return loaded


def address(array: np.ndarray[Any, Any]) -> int:
    """The address of a contiguous array."""
    if not array.flags.c_contiguous:
        raise ValueError("the array is not contiguous")
    found: int = array.__array_interface__["data"][0]  # `.ctypes.data` takes three times as long
    return found


def threads_for(size: int) -> int:
    """How many may copy `size` bytes: as many as torch may use."""
    return min(torch.get_num_threads(), MOST) if size >= ALONE else 1


def _references_of_a_free_one() -> int:
    """References to an array that only `take` knows: the list's, the loop's, and those that
    counting adds, which differ between versions of Python."""
    for array in [np.empty(0)]:
        return sys.getrefcount(array)
    raise AssertionError


_FREE = _references_of_a_free_one()


class Scratch:
    """Large arrays that are reused once nothing refers to them: a sample is never overwritten.

    Fresh memory of many megabytes comes page by page, which costs a fifth of filling it.
    """

    def __init__(self) -> None:
        self._arrays: list[Array] = []

    def take(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """An array of unknown contents. A view or a tensor of it keeps it from being taken."""
        for array in self._arrays:
            fits = array.shape == shape and array.dtype == dtype
            if fits and sys.getrefcount(array) == _FREE:
                return array
        made = np.empty(shape, dtype)
        if len(self._arrays) >= KEPT:
            self._arrays.pop(0)
        self._arrays.append(made)
        return made


class Stacks:
    """The k newest rows of a field up to a slot, newest last, zeros before the episode's first.

    With k = 1 these are the rows themselves.
    """

    def __init__(self, ring: Ring, name: str, k: int, scratch: Scratch) -> None:
        self.ring, self.name, self.k, self.scratch = ring, name, k, scratch
        self.rows, self.opens = ring.flat[name], ring.flat["begin"]
        size = ring.layout.fields[name].row_bytes
        self.wide = size >= WIDE
        in_c = (k > 1 or self.wide) and 0 < size and k <= ring.length
        self.library = library() if in_c else None
        steps = {True: (1, ring.length), False: (ring.num_envs, 1)}  # of a row, of an environment
        if self.library is not None:
            self.place = StacksStruct(
                address(self.rows), address(self.opens), size, k, ring.num_envs, ring.length,
                *steps[name in ring.column_major], *steps["begin" in ring.column_major],
            )  # fmt: skip

    def begin(self, slots: Array) -> Reading:
        """Start to read; `finish` of the result gives the stacks."""
        stack = () if self.k == 1 else (self.k,)
        new = self.scratch.take if self.wide else np.empty
        return Reading(
            self, slots, new((*slots.shape, *stack, *self.rows.shape[1:]), self.rows.dtype)
        )

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


class Reading:
    """Threads of C copy from the moment this is made, while the caller does other things; without
    C, nothing is done before `finish`."""

    def __init__(self, of: Stacks, slots: Array, out: Array) -> None:
        # Keeps alive the memory whose address C has; its Stacks keep the ring.
        self._of, self._out = of, out
        self._slots = np.ascontiguousarray(slots, np.int64)
        self._at: int | None = None
        if of.library is not None:
            places = ctypes.addressof(of.place), address(self._slots), address(out)
            self._job = JobStruct(*places, slots.size)
            self._at = ctypes.addressof(self._job)
            of.library.ludus_begin(self._at, threads_for(out.nbytes))

    def finish(self) -> tuple[Array, bool]:
        """The stacks [*slots.shape, k, ...] (without k if it is 1), and whether the newest row of
        any is the first of its episode. Only once."""
        if self._of.library is None:
            return self._of.plain(self._slots, self._out)
        if self._at is None:
            raise RuntimeError("finish() was called twice")
        self._of.library.ludus_finish(self._at)
        self._at = None
        if self._job.outside:
            raise IndexError("a slot outside the ring")
        return self._out, bool(self._job.opened)

    def __del__(self) -> None:
        # After an interrupt between the two, no thread may write to freed memory.
        if getattr(self, "_at", None) is not None and self._of.library is not None:
            self._of.library.ludus_finish(self._at)


def window(ring: Ring, slots: Array, k: int, column_major: bool) -> Array:
    """Where a field has the k newest rows up to each slot, newest last, [B, k]."""
    back = np.arange(1 - k, 1)
    row, env = np.divmod(slots[:, None], ring.num_envs)
    row = (row + back) % ring.length
    return env * ring.length + row if column_major else row * ring.num_envs + env


def pick(array: Any, index: Any) -> Any:
    """Rows of a flat field; the result has the shape of `index` plus that of a row."""
    if isinstance(array, np.ndarray):
        return array.take(index, 0)
    if index.dim() == 1:
        return array.index_select(0, index)
    return array.index_select(0, index.reshape(-1)).view(*index.shape, *array.shape[1:])


class Columns:
    """Rows of several fields at once, of a ring on any device. Meant for small ones."""

    def __init__(self, ring: Ring, names: list[str]) -> None:
        assert not ring.column_major.intersection(names), "frames are read by `Stacks`"
        self.fields = [ring.flat[name] for name in names]
        self._library = library() if ring.on_host else None
        if self._library is not None:
            sizes = [ring.layout.fields[name].row_bytes for name in names]
            places = [address(field) for field in self.fields]
            columns = [ColumnStruct(*pair) for pair in zip(places, sizes, strict=True)]
            self._columns = (ColumnStruct * len(names))(*columns)
            self._at = ctypes.addressof(self._columns)
            self._outs = ctypes.c_void_p * len(names)

    def read(self, slots: Any) -> list[Any]:
        """One array [B, ...] for each field."""
        if self._library is None or len(slots) <= FEW:
            return [pick(field, slots) for field in self.fields]
        slots = np.ascontiguousarray(slots, np.int64)
        made = [np.empty((len(slots), *field.shape[1:]), field.dtype) for field in self.fields]
        outs = self._outs(*map(address, made))
        self._library.ludus_pick(
            self._at, len(made), address(slots), len(slots), ctypes.addressof(outs)
        )
        return made
