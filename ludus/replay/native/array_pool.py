"""Large arrays that are reused once nothing refers to them: a sample is never overwritten."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

KEPT = 4  # arrays at most; more samples held at once get fresh memory


def _references_of_a_free_one() -> int:
    """References to an array that only `take` knows: the list's, the loop's, and those that
    counting adds, which differ between versions of Python."""
    for array in [np.empty(0)]:
        return sys.getrefcount(array)
    raise AssertionError


_FREE = _references_of_a_free_one()


class Scratch:
    """Fresh memory of many megabytes comes page by page, which costs a fifth of filling it."""

    def __init__(self) -> None:
        self._arrays: list[np.ndarray[Any, Any]] = []

    def take(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
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
