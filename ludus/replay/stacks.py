"""Frames and frame stacks read from a ring in host memory. Large ones are copied by several threads
while the caller goes on."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from ludus.replay.copying import RowCopy
from ludus.replay.ring import WIDE, Ring
from ludus.replay.scratch import Scratch

Array = np.ndarray[Any, Any]


class Stacks:
    """The k newest frames up to each slot [B], newest last, zeros before the episode's first.

    They are on their way from the moment this is made; `finish` waits for them, [B, k, ...].
    """

    def __init__(self, ring: Ring, name: str, slots: Array, k: int, scratch: Scratch) -> None:
        self._ring, self._slots, self._k = ring, slots, k
        self._upright = name in ring.upright
        self._index = window(ring, slots, k, self._upright)
        flat = ring.flat[name]
        shape = (*self._index.shape, *flat.shape[1:])
        self._copy: RowCopy | None = None
        if flat[:1].nbytes >= WIDE:
            rows = scratch.take((self._index.size, *flat.shape[1:]), flat.dtype)
            self._copy = RowCopy(flat, self._index.reshape(-1), rows)
        else:
            rows = flat.take(self._index, 0)
        self._frames = rows.reshape(shape)

    def help(self) -> None:
        """Copy until nothing is left to begin."""
        if self._copy is not None:
            self._copy.help()

    def finish(self) -> tuple[Tensor, Array]:
        """The stacks, and which of their frames are the first of an episode, [B, k]."""
        self.help()
        opened = self._opened()
        starts = np.flatnonzero(opened).tolist()
        if self._copy is not None:
            self._copy.wait()
        for at in starts:
            item, frame = divmod(at, self._k)
            self._frames[item, :frame] = 0
        return torch.from_numpy(self._frames), opened

    def _opened(self) -> Array:
        upright = "begin" in self._ring.upright
        index = self._index
        if upright != self._upright:
            index = window(self._ring, self._slots, self._k, upright)
        found: Array = self._ring.flat["begin"].take(index)
        return found


def window(ring: Ring, slots: Array, k: int, upright: bool) -> Array:
    """Where a field has the k newest rows up to each slot, newest last, [B, k]."""
    back = np.arange(1 - k, 1)
    if not upright:
        return (slots[:, None] + back * ring.columns) % ring.layout.slots
    row, column = np.divmod(slots, ring.columns)
    column *= ring.length
    index: Array = (column + row)[:, None] + back
    early = np.flatnonzero(row < k - 1)  # their windows begin at the other end of the ring
    if len(early):
        index[early] = (row[early, None] + back) % ring.length + column[early, None]
    return index


def copy_rows(ring: Ring, name: str, slots: Array, scratch: Scratch) -> Array:
    """Rows at slots of any shape, the large ones copied by several threads."""
    flat = ring.flat[name]
    if flat[:1].nbytes < WIDE:
        found: Array = ring.rows(name, slots)
        return found
    index = ring.spots(slots) if name in ring.upright else slots
    rows = scratch.take((index.size, *flat.shape[1:]), flat.dtype)
    RowCopy(flat, index.reshape(-1), rows).wait()
    return rows.reshape(*slots.shape, *flat.shape[1:])
