"""Integer observations as a network sees them: scaled by the bounds that their space declares."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from gymnasium import spaces

from ludus.envs.config import IntegerScale

Array: TypeAlias = np.ndarray[Any, Any]
EXACT = 2**24  # float32 holds every integer up to here
_WIDE = 2**53  # the same of float64


@dataclass(frozen=True, eq=False)
class Scaling:
    """(x - low) / span by element, before anything is rounded to float32."""

    low: Array  # 0 where the space has no bounds
    span: Array  # 1 where it has none
    bounded: bool  # everywhere

    def __call__(self, values: Array) -> Array:
        scaled: Array = (values.astype(self.low.dtype) - self.low) / self.span
        return scaled

    @property
    def exact(self) -> bool:
        """Whether float32 tells all the integers between the bounds apart."""
        return not self.bounded or float(self.span.max(initial=1)) <= EXACT


def told_rounded(path: str) -> tuple[str, str]:
    """What is wrong with an observation whose scaling is not exact, and what to do."""
    what = f"{path}: float32 cannot tell apart all integers between its bounds"
    return what, "declare tighter low and high, or split the number in a wrapper"


def byte_bounds(space: spaces.Box, how: IntegerScale) -> tuple[float, float] | None:
    """The bytes that a network sees as 0 and 1; None where they differ by element."""
    if how == "bytes":
        return 0.0, 255.0
    if how == "none" or space.low.size == 0:
        return 0.0, 1.0
    if np.ptp(space.low) or np.ptp(space.high):
        return None
    low, high = float(space.low.flat[0]), float(space.high.flat[0])
    return low, max(high, low + 1)


def scaling_of(space: spaces.Box, how: IntegerScale) -> Scaling | None:
    """How integers of a box are scaled while they are read; None: not at all."""
    dtype = np.dtype(space.dtype)
    if dtype.kind not in "iu" or how == "bytes":
        return None
    bounded = _bounded(space, dtype) if how == "bounds" else np.zeros(space.shape, bool)
    largest = max((abs(int(v)) for b in (space.low, space.high) for v in b[bounded]), default=0)
    number = np.longdouble if largest > _WIDE else np.float64
    low: Array = np.where(bounded, space.low, 0).astype(number)
    high: Array = np.where(bounded, space.high, 1).astype(number)
    span: Array = np.maximum(high - low, 1)
    if dtype.itemsize <= 2 and not low.any() and (span == 1).all():
        return None  # nothing to do, and nothing too large
    return Scaling(low, span, bool(bounded.all()))


def _bounded(space: spaces.Box, dtype: np.dtype[Any]) -> Array:
    """The limits of a type of 32 bits or more are no bounds: they say nothing of the values."""
    bounded: Array = space.bounded_below & space.bounded_above
    if dtype.itemsize >= 4:
        limits = np.iinfo(dtype)
        bounded = bounded & (space.high < limits.max)
        if dtype.kind == "i":
            bounded = bounded & (space.low > limits.min)
    return bounded
