"""copies.c and sums.c, compiled by this machine's C compiler when first needed; their functions.

Where there is no compiler, or with LUDUS_NATIVE=0, `library` is None and callers use numpy, which
gives the same bits in more time. This module knows nothing of replay.
"""

from __future__ import annotations

import ctypes
import os
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from ludus.replay.native import build as compiled

SOURCES = tuple(Path(__file__).with_name(name) for name in ("copies.c", "sums.c"))
# Without contraction every product and sum is rounded by itself, as numpy rounds it. No
# -march=native: the cache may be on a disk that several machines share.
FLAGS = ("-O3", "-std=gnu11", "-shared", "-fPIC", "-pthread", "-ffp-contract=off")
MOST = 8  # threads that copy; memory is no faster for more
# Bytes below which the caller alone is done before a helper has woken up.
ALONE = 1 << 20


class Stacks(ctypes.Structure):
    """`stacks_t`: the address of the frames of a ring's field."""

    _fields_ = (
        ("rows", ctypes.c_void_p),
        ("begin", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("bytes", "k", "columns", "length")),
        *((name, ctypes.c_int64) for name in ("row_step", "column_step")),
        *((name, ctypes.c_int64) for name in ("begin_row_step", "begin_column_step")),
    )


class Rows(ctypes.Structure):
    """`rows_t`: converts between ids and slots."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("head", "valid")),
        *((name, ctypes.c_int64) for name in ("columns", "slots")),
    )


class Job(ctypes.Structure):
    """`job_t`: stacks to be copied."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("field", "slots", "out")),
        *((name, ctypes.c_int64) for name in ("count", "next", "opened", "outside")),
    )


class Column(ctypes.Structure):
    """`column_t`: a field of small rows."""

    _fields_ = (("rows", ctypes.c_void_p), ("bytes", ctypes.c_int64))


LEVELS = 8


class Tree(ctypes.Structure):
    """`tree_t`: the levels of a sum tree, leaves first, the top last."""

    _fields_ = (
        ("levels", ctypes.c_void_p * (LEVELS + 1)),
        ("nodes", ctypes.c_int64 * LEVELS),
        ("edges", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("depth", "width", "top", "capacity")),
    )


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
