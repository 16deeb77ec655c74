"""Arrays in memory that several processes share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Block:
    """One array in shared memory. Anonymous: nothing is left behind, however a process ends."""

    memory: Any
    shape: tuple[int, ...]
    dtype: str

    @classmethod
    def like(cls, array: Array, context: Any) -> Block:
        memory = context.RawArray("B", max(1, array.nbytes))
        block = cls(memory, array.shape, array.dtype.str)
        block.array()[...] = array
        return block

    def array(self) -> Array:
        size = int(np.prod(self.shape))
        return np.frombuffer(self.memory, self.dtype, count=size).reshape(self.shape)
