"""Weights for actors on Ray: all tensors of a network in one array of bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ludus.fleets.processes.transport import weights_of
from ludus.process.shared_tensors import aligned
from ludus.replay.chunk_layout import Bytes


def _views(packed: Tensor, like: list[Tensor]) -> Iterator[Tensor]:
    """Yield the part of the bytes that holds each tensor."""
    start = 0
    for tensor in like:
        part = packed[start : start + tensor.nbytes]
        yield part.view(tensor.dtype).reshape(tensor.shape)
        start += aligned(tensor.nbytes)


@torch.no_grad()
def load_weights(net: nn.ModuleDict, packed: Bytes) -> None:
    """Copy packed weights into `net`."""
    own = weights_of(net)
    # Arrays of the object store are read-only, which torch does not know.
    for tensor, part in zip(own, _views(torch.from_numpy(packed.copy()), own), strict=True):
        tensor.copy_(part)


class Weights:
    """The newest published weights. `put` stores them for all actors, once for each version, and
    only if an actor asks for them."""

    def __init__(self, net: nn.ModuleDict, put: Callable[[Bytes], Any]) -> None:
        self.put, self.version = put, -1
        size = sum(aligned(tensor.nbytes) for tensor in weights_of(net))
        self.packed = np.zeros(size, np.uint8)
        self._views = list(_views(torch.from_numpy(self.packed), weights_of(net)))
        self._reference: Any = None

    @torch.no_grad()
    def publish(self, net: nn.ModuleDict, updates: int) -> None:
        for view, tensor in zip(self._views, weights_of(net), strict=True):
            view.copy_(tensor)
        self.version, self._reference = updates, None

    @property
    def reference(self) -> Any:
        """What `put` returned for the newest weights."""
        if self._reference is None:
            self._reference = self.put(self.packed)
        return self._reference
