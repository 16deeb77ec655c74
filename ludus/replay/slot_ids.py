"""Ids of rows and the slots they are in, for a ring on the host or on a device."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
from torch import Tensor

from ludus.replay.native import bindings as native
from ludus.replay.samplers.host import Members
from ludus.replay.storage.ring import Array, Ring, host

Numbers = np.ndarray[Any, Any]


class Ids:
    """An id is row * N + column, with the row's absolute number; a slot is that in the ring."""

    def __init__(self, ring: Ring, members: Members) -> None:
        self.ring, self.members = ring, members
        self._library = native.library() if ring.on_host else None
        head, valid = native.address(ring.head), native.address(members.valid)
        self._rows = native.Rows(head, valid, ring.columns, ring.layout.slots)
        self._at = ctypes.addressof(self._rows)

    def of(self, slots: Array) -> Array:
        """Of the newest rows in these slots."""
        if self._library is None:
            return self.ring.ids(slots)
        slots = np.ascontiguousarray(slots, np.int64)
        ids = np.empty(len(slots), np.int64)
        self._library.ludus_ids(self._at, native.address(slots), len(slots), native.address(ids))
        return ids

    def current(self, ids: Tensor) -> tuple[Numbers, Numbers | None]:
        """The slots of ids, and which ids still mean what may be drawn there; None: all do."""
        absolute = np.ascontiguousarray(host(ids), np.int64)
        if self._library is not None:
            slots, current = np.empty(len(absolute), np.int64), np.empty(len(absolute), bool)
            places = (native.address(array) for array in (slots, current))
            count = self._library.ludus_current(
                self._at, native.address(absolute), len(absolute), *places
            )
            return slots, None if count == len(absolute) else current
        slots = absolute % self.ring.layout.slots
        current = self.members.valid.take(slots)
        current &= self.ring.ids(slots) == absolute
        return slots, None if current.all() else current
