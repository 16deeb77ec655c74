"""Host memory that a GPU reads and writes in place, as one of its own tensors.

Not torch's pin_memory: that takes the next power of two, 8.6 GB for a million screens of 7.06.
"""

from __future__ import annotations

import math
import mmap
import weakref
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ludus.errors import LudusError
from ludus.units import show_bytes

_PORTABLE_AND_MAPPED = 1 | 2  # cudaHostRegisterPortable, cudaHostRegisterMapped


class _HostMemory:
    """Locked pages under the name by which torch takes a device pointer without a copy. The tensor
    made of it keeps it alive."""

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> None:
        size = max(1, math.prod(shape) * dtype.itemsize)
        pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        address = np.frombuffer(pages, np.uint8).ctypes.data
        _lock(address, size, device)
        weakref.finalize(self, _unlock, address, device, pages).atexit = False
        kind = torch.empty(0, dtype=dtype).numpy().dtype.str
        self.__cuda_array_interface__ = {
            "shape": shape, "typestr": kind, "data": (address, False), "version": 3,
        }  # fmt: skip


def _lock(address: int, size: int, device: torch.device) -> None:
    with torch.cuda.device(device):
        torch.cuda.check_error(_runtime().cudaHostRegister(address, size, _PORTABLE_AND_MAPPED))


def _unlock(address: int, device: torch.device, pages: mmap.mmap) -> None:
    """`pages` is here to be let go last."""
    with torch.cuda.device(device):
        torch.cuda.synchronize()  # somebody may still be reading
        _runtime().cudaHostUnregister(address)


def _runtime() -> Any:
    return torch.cuda.cudart()  # type: ignore[no-untyped-call]


def allocate_pinned(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Zeros in as many bytes as that takes."""
    try:
        memory = _HostMemory(shape, dtype, device)
    except (RuntimeError, OSError) as error:  # the driver says that memory ran out, not which
        size = math.prod(shape) * dtype.itemsize
        raise LudusError(
            "E310",
            f"{show_bytes(size)} of host memory cannot be pinned for the GPU",
            where="run.replay_on",
            why=f"too little host memory, or a limit on locked pages: {str(error).splitlines()[0]}",
            fix="a smaller algo.capacity;  run.replay_on=device  where the GPU has room",
        ) from error
    return torch.as_tensor(memory, device=device)
