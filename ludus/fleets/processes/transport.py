"""Transport between actors and the learner through shared memory.

Chunks go from an actor to the learner through a mailbox with a few places. Each place has a fixed
header and fixed arrays; rows are never pickled. `overflow` decides what happens when all places are
full: wait for the learner (no loss), keep the latest chunks, keep the oldest, or alternate. The
mailbox counts dropped chunks. A gap in the sequence numbers shows the store that the stream was
cut.

Weights go from the learner to actors through two versioned buffers. The writer fills the hidden
buffer, then publishes it. A reader copies the published buffer, then checks that it was not
overwritten meanwhile. There is no lock, so a reader that dies blocks nobody.
"""

from __future__ import annotations

import os
import platform
import select
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from ludus.process.shared_tensors import SharedPlaces, SharedTensors, SharedViews
from ludus.replay.chunk_layout import ChunkLayout, Head
from ludus.types import Chunk

Overflow = Literal["wait", "latest", "oldest", "alternate"]
EMPTY, FULL, READING = 0, 1, 2
_STATE, _SEQUENCE, _VERSION, _BREAKS = range(4)
LOCK_SECONDS = 1.0

_SHOWN, _STAMPS, _UPDATES, _SUMS = 0, 1, 3, 5  # indices into the header; two buffers each
WRITING = -1
# Check the contents as well on machines that may reorder memory writes.
_ORDERED = platform.machine().lower() in ("x86_64", "amd64", "i386", "i686")


class MailboxError(Exception):
    """The holder of the lock does not release it: it was stopped or killed."""


class PipeLock:
    """A lock made of a pipe that contains one byte: the process that reads the byte holds the lock.
    Unlike a named semaphore, it leaves nothing in the system however its holders end."""

    def __init__(self, context: Any) -> None:
        self.source, self.sink = context.Pipe(duplex=False)
        os.set_blocking(self.source.fileno(), False)
        self.release()

    def acquire(self, seconds: float) -> bool:
        """Try to take the lock for up to `seconds`; whether it was taken."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                return bool(os.read(self.source.fileno(), 1))
            except BlockingIOError:
                left = deadline - time.monotonic()
            if left <= 0:
                return False
            poller = select.poll()
            poller.register(self.source, select.POLLIN)
            poller.poll(1000 * left)

    def release(self) -> None:
        os.write(self.sink.fileno(), b".")


class Mailbox(SharedViews):
    """Shared memory for `places` chunks of one actor. The learner's process creates it."""

    def __init__(self, layout: ChunkLayout, places: int, overflow: Overflow, context: Any) -> None:
        self.layout, self.places, self.overflow = layout, places, overflow
        self.slots = SharedPlaces(layout.fields, places, 4, context)
        self.counts = SharedTensors.of(np.zeros(2, np.int64), context)  # dropped, times full
        # Only one side may change each state, unless full places may be overwritten.
        self.lock = PipeLock(context) if overflow in ("latest", "alternate") else None
        self._open()

    def _open(self) -> None:
        self._head, self._counts = self.slots.heads, self.counts.array()
        self._arrays = self.slots.arrays

    @property
    def waiting(self) -> int:
        """Number of chunks that the learner has not taken."""
        return int((self._head[:, _STATE] == FULL).sum())

    def waiting_after(self, sequence: int) -> int:
        """Number of waiting chunks after that sequence number."""
        later = self._head[:, _SEQUENCE] > sequence
        return int((later & (self._head[:, _STATE] == FULL)).sum())

    @property
    def dropped(self) -> int:
        return int(self._counts[0])

    @contextmanager
    def _locked(self) -> Iterator[None]:
        if self.lock is None:
            yield
            return
        if not self.lock.acquire(LOCK_SECONDS):
            raise MailboxError
        try:
            yield
        finally:
            self.lock.release()

    def put(self, chunk: Chunk, pause: Callable[[], bool]) -> int | None:
        """Write a chunk and return its place. None if the chunk was dropped, or if `pause`, called
        while waiting, returns True."""
        while True:
            try:
                place = self._reserve()
                if place is not None or self.overflow != "wait":
                    break
            except MailboxError:  # the learner was stopped while it held the lock
                place = None
            if pause():
                return None
        if place is None:
            return None
        self.layout.write(chunk, self._arrays[place])
        row = self._head[place]
        row[_SEQUENCE], row[_VERSION] = chunk.sequence, chunk.version
        row[_BREAKS] = chunk.breaks
        row[_STATE] = FULL
        return place

    def _reserve(self) -> int | None:
        """Return a place to write to, which the learner does not read."""
        with self._locked():
            states = self._head[:, _STATE]
            free = np.flatnonzero(states == EMPTY)
            if len(free):
                return int(free[0])
            if self.overflow == "wait":
                return None
            self._counts += 1
            full = np.flatnonzero(states == FULL)
            overwrite = self.overflow == "latest" or (
                self.overflow == "alternate" and self._counts[1] % 2 == 0
            )
            if not overwrite or not len(full):
                return None
            oldest = int(full[np.argmin(self._head[full, _SEQUENCE])])
            self._head[oldest, _STATE] = EMPTY
            return oldest

    def claim(self, place: int, sequence: int, source: int, *, copy: bool) -> Chunk | None:
        """Read the announced chunk, if it is still there. `release` the place afterwards."""
        with self._locked():
            row = self._head[place]
            if row[_STATE] != FULL or row[_SEQUENCE] != sequence:
                return None  # a later chunk overwrote it
            row[_STATE] = READING
        head = Head(sequence, int(row[_VERSION]), bool(row[_BREAKS]))
        return self.layout.chunk(self._arrays[place], source, head, copy=copy)

    def release(self, place: int) -> None:
        self._head[place, _STATE] = EMPTY


class WeightsBoard(SharedViews):
    """Published weights. The learner's process creates it and passes it to the actors."""

    def __init__(self, net: nn.ModuleDict, context: Any) -> None:
        empty = {
            str(i): torch.zeros(tensor.shape, dtype=tensor.dtype)
            for i, tensor in enumerate(weights_of(net))
        }
        self.places = [SharedTensors.like(empty, context) for _ in range(2)]
        self.head = SharedTensors.of(np.full(7, WRITING, np.int64), context)
        self._open()

    def _open(self) -> None:
        self._head = self.head.array()
        self._views = [[place.tensor(name) for name in place.places] for place in self.places]

    def _sum(self, place: int) -> int:
        return zlib.crc32(self.places[place].memory)

    @property
    def stamp(self) -> int:
        """The number of the newest weights; -1 before the first."""
        shown = int(self._head[_SHOWN])
        return WRITING if shown < 0 else int(self._head[_STAMPS + shown])

    @torch.no_grad()
    def publish(self, net: nn.ModuleDict, updates: int) -> None:
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
