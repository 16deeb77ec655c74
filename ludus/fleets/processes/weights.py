"""Transport of weights from the learner to actors: two versioned buffers in shared memory.

The writer fills the hidden buffer, then publishes it. A reader copies the published buffer, then
checks that it was not overwritten meanwhile. There is no lock, so a reader that dies blocks nobody.
"""

from __future__ import annotations

import platform
import time
import zlib
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ludus.process.shared_tensors import SharedTensors

_SHOWN, _STAMPS, _UPDATES, _SUMS = 0, 1, 3, 5  # indices into the header; two buffers each
WRITING = -1
# Check the contents as well on machines that may reorder memory writes.
_ORDERED = platform.machine().lower() in ("x86_64", "amd64", "i386", "i686")


class WeightsBoard:
    """Published weights. The learner's process creates it and passes it to the actors."""

    def __init__(self, net: nn.ModuleDict, context: Any) -> None:
        empty = {
            str(i): torch.zeros(tensor.shape, dtype=tensor.dtype)
            for i, tensor in enumerate(weights_of(net))
        }
        self.places = [SharedTensors.like(empty, context) for _ in range(2)]
        self.head = SharedTensors.of(np.full(7, WRITING, np.int64), context)

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if not k.startswith("_")}

    def _open(self) -> None:
        """Open views of the shared memory in this process."""
        if not hasattr(self, "_views"):
            self._head = self.head.array()
            self._views = [[place.tensor(name) for name in place.places] for place in self.places]

    def _sum(self, place: int) -> int:
        return zlib.crc32(self.places[place].memory)

    @property
    def stamp(self) -> int:
        """The number of the newest weights; -1 before the first."""
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
            head[_SUMS + place] = self._sum(place)
        head[_STAMPS + place] = stamp
        head[_SHOWN] = place

    @torch.no_grad()
    def pull(self, net: nn.ModuleDict, have: int = WRITING) -> tuple[int, int]:
        """Copy the newest weights into `net`, unless it has them. Return their (stamp, updates)."""
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
                whole = _ORDERED or self._sum(place) == int(head[_SUMS + place])
                if whole and int(head[_STAMPS + place]) == stamp:
                    return stamp, updates
            time.sleep(1e-4)  # overwritten meanwhile, or nothing published yet


def weights_of(net: nn.ModuleDict) -> list[Tensor]:
    return [*net.parameters(), *net.buffers()]
