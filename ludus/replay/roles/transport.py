"""Transport between the learner and a replay process: shared memory, and records of four integers.

Chunks lie in the places of the inbox and samples in those of the outbox, in a fixed binary layout.
An order names a place; orders are executed one after the other, and each is answered by `DONE`.
Priorities come back in the place of their sample. There are never more orders than places, so
neither side can fill a pipe or the memory of the other.
"""

from __future__ import annotations

import os
import select
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ludus.process.shared_tensors import Array, SharedPlaces, SharedTensors
from ludus.replay.chunk_layout import ChunkLayout, Head
from ludus.replay.roles.role import Drawn, Report, sample_arrays
from ludus.types import Chunk, Sample, numpy_dtype

# Answers: a sample lies in a place; an order was executed.
SAMPLE, DONE = range(7, 9)
_RECORD = struct.Struct("=4q")
_ATOMIC = select.PIPE_BUF // _RECORD.size * _RECORD.size  # bytes that a pipe takes as a whole
_SOURCE, _SEQUENCE, _VERSION, _BREAKS = range(4)  # of a chunk's header
FRAME = 1 << 15  # bytes of a tensor that go through a pipe at once
BEAT, MEMORY = "beat", "memory"
NUMBERS = (BEAT, MEMORY, *Report._fields)

Fields = dict[str, tuple[tuple[int, ...], np.dtype[Any]]]  # name -> shape, dtype


class Record(NamedTuple):
    kind: int
    a: int = 0
    b: int = 0
    c: int = 0


def send(sink: Connection, kind: int, a: int = 0, b: int = 0, c: int = 0) -> None:
    """Send a record. Raises OSError if nobody can read it."""
    os.write(sink.fileno(), _RECORD.pack(kind, a, b, c))


def receive(source: Connection) -> list[Record]:
    """The records that have arrived. `source` does not block. Raises EOFError at its end."""
    try:
        data = os.read(source.fileno(), _ATOMIC)
    except BlockingIOError:
        return []
    if not data:
        raise EOFError
    return [Record(*numbers) for numbers in _RECORD.iter_unpack(data)]


def sample_fields(example: Sample) -> Fields:
    """The arrays of a sample: those of its batch by number, ids, weights, and new priorities."""
    fields: Fields = {
        str(i): (tuple(x.shape), numpy_dtype(x.dtype)) for i, x in enumerate(sample_arrays(example))
    }
    items = (len(example.ids),)
    fields["ids"] = (items, np.dtype(np.int64))
    fields["weight"] = (items, np.dtype(np.float32))
    fields["priority"] = (items, np.dtype(np.float64))
    fields["scale"] = ((2,), np.dtype(np.float64))
    return fields


def write_sample(drawn: Drawn, arrays: Mapping[str, Array]) -> None:
    for i, tensor in enumerate(sample_arrays(drawn.sample)):
        torch.from_numpy(arrays[str(i)]).copy_(tensor)  # with as many threads as torch has
    arrays["ids"][:], arrays["weight"][:] = drawn.sample.ids, drawn.sample.weight
    arrays["scale"][:] = drawn.scale


def read_sample(
    arrays: Mapping[str, Array],
) -> tuple[list[Tensor], Tensor, Tensor, tuple[float, float]]:
    """The batch, ids and weights as views of these arrays, and the scale of the weights."""
    numbers = sum(name.isdigit() for name in arrays)
    batch = [torch.from_numpy(arrays[str(i)]) for i in range(numbers)]
    ids, weight = torch.from_numpy(arrays["ids"]), torch.from_numpy(arrays["weight"])
    return batch, ids, weight, (float(arrays["scale"][0]), float(arrays["scale"][1]))


@dataclass(frozen=True)
class RoleMemory:
    """The memory that the learner shares with one replay process."""

    layout: ChunkLayout
    inbox: SharedPlaces  # chunks
    outbox: SharedPlaces  # samples
    numbers: SharedTensors  # NUMBERS, float64
    copy: bool  # the store keeps the rows that it gets: unrolls wait for the rest of theirs

    @classmethod
    def make(
        cls,
        layout: ChunkLayout,
        inbox: int,
        fields: Fields,
        outbox: int,
        context: Any,
        *,
        copy: bool,
    ) -> RoleMemory:
        return cls(
            layout,
            SharedPlaces(layout.fields, inbox, 4, context),
            SharedPlaces(fields, outbox, 1, context),
            SharedTensors.of(np.zeros(len(NUMBERS)), context),
            copy,
        )

    @property
    def bytes(self) -> int:
        return self.inbox.bytes + self.outbox.bytes

    # The learner's side.
    def put_chunk(self, place: int, chunk: Chunk, source: int) -> None:
        self.layout.write(chunk, self.inbox.arrays[place])
        head = self.inbox.heads[place]
        head[_SOURCE], head[_SEQUENCE] = source, chunk.sequence
        head[_VERSION], head[_BREAKS] = chunk.version, chunk.breaks

    def read_sample(self, place: int) -> tuple[list[Tensor], Tensor, Tensor, tuple[float, float]]:
        """The batch, ids and weights as views of this memory, and the scale of the weights."""
        return read_sample(self.outbox.arrays[place])

    def put_priority(self, place: int, priority: Tensor) -> None:
        self.outbox.arrays[place]["priority"][:] = priority.numpy()

    # The role's side.
    def take_chunk(self, place: int) -> Chunk:
        source, *numbers = self.inbox.heads[place].tolist()
        head = Head(numbers[0], numbers[1], bool(numbers[2]))
        return self.layout.chunk(self.inbox.arrays[place], source, head, copy=self.copy)

    def write_sample(self, drawn: Drawn) -> None:
        write_sample(drawn, self.outbox.arrays[drawn.place])

    def take_priority(self, place: int) -> tuple[Tensor, Tensor]:
        arrays = self.outbox.arrays[place]
        return torch.from_numpy(arrays["ids"].copy()), torch.from_numpy(arrays["priority"].copy())


def send_tensors(
    pipe: Connection, tensors: Mapping[str, Tensor], alive: Callable[[], None]
) -> None:
    """Send tensors as their bytes, in frames. `alive` is called while the other side is slow."""
    arrays = {k: np.ascontiguousarray(v.numpy(force=True)) for k, v in tensors.items()}
    pipe.send([(k, v.shape, v.dtype.str) for k, v in arrays.items()])
    poller = select.poll()
    poller.register(pipe, select.POLLOUT)
    for array in arrays.values():
        data = array.reshape(-1).view(np.uint8).data
        for at in range(0, len(data), FRAME):
            while not poller.poll(100):
                alive()
            pipe.send_bytes(data[at : at + FRAME])
        alive()


def receive_tensors(pipe: Connection, alive: Callable[[], None]) -> dict[str, Tensor]:
    """The inverse of `send_tensors`."""
    found = {}
    for name, shape, dtype in _waited(pipe, alive).recv():
        array = np.empty(shape, dtype)
        data = array.reshape(-1).view(np.uint8).data
        for at in range(0, len(data), FRAME):
            _waited(pipe, alive).recv_bytes_into(data, at)
        found[name] = torch.from_numpy(array)
        alive()
    return found


def _waited(pipe: Connection, alive: Callable[[], None]) -> Connection:
    while not pipe.poll(0.1):
        alive()
    return pipe
