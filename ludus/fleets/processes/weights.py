"""Weights on their way to actors: shared memory, versioned, never seen half-written, pulled.

There are two places. The writer fills the one that is not shown, then shows it; a reader copies
what is shown and looks afterwards whether it was overtaken. Nobody locks anything, so a reader that
dies in the middle holds nobody up.
"""

from __future__ import annotations

import math
import platform
import time
import zlib
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ludus.process.shared_tensors import Block

_SHOWN, _STAMPS, _UPDATES, _SUMS = 0, 1, 3, 5  # columns of the head; two places each
WRITING = -1
# Where stores may be seen in another order than they were made, contents are checked as well.
_ORDERED = platform.machine().lower() in ("x86_64", "amd64", "i386", "i686")
_ALIGN = 64


class WeightsBoard:
    """Made by the learner's process, handed to actors when they start."""

    def __init__(self, net: nn.ModuleDict, context: Any) -> None:
        self.fields: list[tuple[int, tuple[int, ...], torch.dtype]] = []
        size = 0
        for tensor in weights_of(net):
            self.fields.append((size, tuple(tensor.shape), tensor.dtype))
            size += -(-tensor.numel() * tensor.element_size() // _ALIGN) * _ALIGN
        self.size = size
        self.blocks = [Block.like(np.zeros(max(1, size), np.uint8), context) for _ in range(2)]
        self.head = Block.like(np.full(7, WRITING, np.int64), context)

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if not k.startswith("_")}

    def _open(self) -> None:
        """Views of the shared memory; each process makes its own."""
        if not hasattr(self, "_views"):
            self._head = self.head.array()
            self._bytes = [block.array() for block in self.blocks]
            self._views = [[_view(b, *f) for f in self.fields] for b in self._bytes]

    @property
    def stamp(self) -> int:
        """Of the newest weights; -1 before the first."""
        self._open()
        shown = int(self._head[_SHOWN])
        return WRITING if shown < 0 else int(self._head[_STAMPS + shown])

    @torch.no_grad()
    def publish(self, net: nn.ModuleDict, updates: int) -> None:
        self._open()
        head = self._head
        shown = int(head[_SHOWN])
        stamp = 0 if shown < 0 else int(head[_STAMPS + shown]) + 1
        place = 1 - max(shown, 0)
        head[_STAMPS + place] = WRITING
        for view, tensor in zip(self._views[place], weights_of(net), strict=True):
            view.copy_(tensor)
        head[_UPDATES + place] = updates
        if not _ORDERED:
            head[_SUMS + place] = zlib.crc32(self._bytes[place].data)
        head[_STAMPS + place] = stamp
        head[_SHOWN] = place

    @torch.no_grad()
    def pull(self, net: nn.ModuleDict, have: int = WRITING) -> tuple[int, int]:
        """Copy the newest weights into `net`, unless it has them. Their (stamp, updates)."""
        self._open()
        head, own = self._head, weights_of(net)
        while True:
            place = int(head[_SHOWN])
            stamp, updates = int(head[_STAMPS + place]), int(head[_UPDATES + place])
            if place >= 0 and stamp == have:
                return stamp, updates
            if place >= 0 and stamp != WRITING:
                for tensor, view in zip(own, self._views[place], strict=True):
                    tensor.copy_(view)
                whole = _ORDERED or zlib.crc32(self._bytes[place].data) == int(head[_SUMS + place])
                if whole and int(head[_STAMPS + place]) == stamp:
                    return stamp, updates
            time.sleep(1e-4)  # overtaken, or nothing is there yet


def weights_of(net: nn.ModuleDict) -> list[Tensor]:
    return [*net.parameters(), *net.buffers()]


def _view(
    memory: np.ndarray[Any, Any], start: int, shape: tuple[int, ...], dtype: torch.dtype
) -> Tensor:
    size = math.prod(shape) * dtype.itemsize
    return torch.from_numpy(memory[start : start + size]).view(dtype).view(shape)
