"""Named tensors and arrays in memory shared between processes."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

Array: TypeAlias = np.ndarray[Any, Any]
ALIGN = 64  # bytes: one cache line, and the alignment of vector instructions


class Place(NamedTuple):
    offset: int
    shape: tuple[int, ...]
    dtype: Any  # of torch or NumPy


def aligned(size: int) -> int:
    return -(-size // ALIGN) * ALIGN


def places_of(
    fields: Mapping[str, tuple[tuple[int, ...], np.dtype[Any]]],
) -> tuple[dict[str, Place], int]:
    """Place arrays of these shapes and dtypes one after the other. Return also their bytes."""
    places, size = dict[str, Place](), 0
    for name, (shape, dtype) in fields.items():
        places[name] = Place(size, shape, dtype)
        size += aligned(int(np.prod(shape)) * dtype.itemsize)
    return places, size


def view_of(memory: Array, place: Place) -> Array:
    """Return one of the arrays that `places_of` has placed in an array of bytes."""
    offset, shape, dtype = place
    size = int(np.prod(shape)) * dtype.itemsize
    found: Array = memory[offset : offset + size].view(dtype).reshape(shape)
    return found


@dataclass(frozen=True)
class SharedTensors:
    """Named tensors in one block of shared memory; a single tensor has the name "". The memory is
    anonymous, so the system frees it however the processes end."""

    memory: Any
    places: Mapping[str, Place]

    @classmethod
    def like(
        cls, values: Mapping[str, Tensor] | Mapping[str, Array], context: Any
    ) -> SharedTensors:
        """Allocate shared copies of the given tensors or arrays."""
        places, size = {}, 0
        for name, value in values.items():
            places[name] = Place(size, tuple(value.shape), value.dtype)
            size += aligned(value.nbytes)
        shared = cls(context.RawArray("B", size + ALIGN), places)
        for name, value in values.items():
            if isinstance(value, Tensor):
                shared.tensor(name).copy_(value)
            else:
                shared.array(name)[...] = value
        return shared

    @classmethod
    def of(cls, array: Array, context: Any) -> SharedTensors:
        return cls.like({"": array}, context)

    def tensor(self, name: str = "") -> Tensor:
        _, shape, dtype = self.places[name]
        count = int(np.prod(shape))
        if count == 0:
            return torch.empty(shape, dtype=dtype)
        start = self._start(name)
        return torch.frombuffer(self.memory, dtype=dtype, count=count, offset=start).reshape(shape)

    def array(self, name: str = "") -> Array:
        _, shape, dtype = self.places[name]
        count, start = int(np.prod(shape)), self._start(name)
        return np.frombuffer(self.memory, dtype, count=count, offset=start).reshape(shape)

    def _start(self, name: str) -> int:
        return -ctypes.addressof(self.memory) % ALIGN + self.places[name].offset


class SharedViews:
    """An object with shared memory. Every process opens its own views, with names in `_`."""

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if not k.startswith("_")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._open()

    def _open(self) -> None: ...


class SharedPlaces(SharedViews):
    """`count` places with the same arrays, and a header of `numbers` integers for each."""

    def __init__(
        self,
        fields: Mapping[str, tuple[tuple[int, ...], Any]],  # shape, dtype
        count: int,
        numbers: int,
        context: Any,
    ) -> None:
        empty = {name: np.zeros(*field) for name, field in fields.items()}
        self.memory = [SharedTensors.like(empty, context) for _ in range(count)]
        self.head = SharedTensors.of(np.zeros((count, numbers), np.int64), context)
        self._open()

    def _open(self) -> None:
        self._heads = self.head.array()
        self._arrays = [{k: block.array(k) for k in block.places} for block in self.memory]

    @property
    def heads(self) -> Array:
        return self._heads

    @property
    def arrays(self) -> list[dict[str, Array]]:
        return self._arrays

    @property
    def bytes(self) -> int:
        return sum(len(block.memory) for block in self.memory)
