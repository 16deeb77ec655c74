"""A replay role on Ray: a `ReplayRole` that executes the learner's orders in their sequence.

Every order has a number. An order that comes again, because its answer was lost on the way, is not
executed again: its first answer is sent. One that comes before its predecessor is refused.
"""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ludus.fleets.ray.process import Messages, RayProcess
from ludus.process.shared_tensors import Array, places_of, view_of
from ludus.replay.chunk_layout import Bytes, ChunkLayout, Head
from ludus.replay.roles.link import ADD, ASK, ASK_ONCE, BREAK, FEEDBACK, RESEED
from ludus.replay.roles.process import REQUESTS, own_bytes
from ludus.replay.roles.role import Drawn, ReplayRole, RoleJob
from ludus.replay.roles.transport import Fields, write_sample

REQUEST = 100  # an order for a checkpoint: (name, value, arrays or None)


class Order(NamedTuple):
    number: int  # from 1
    answered: int  # the newest number whose answer has arrived
    kind: int
    place: int
    value: Any


class Answer(NamedTuple):
    """The state of a role after an order."""

    due: bool
    report: tuple[float, ...]
    memory: float  # bytes of its process


def empty_sample(fields: Fields) -> tuple[Bytes, dict[str, Array]]:
    """One array of bytes for a sample, and its parts. Priorities travel apart."""
    places, size = places_of({k: v for k, v in fields.items() if k != "priority"})
    packed = np.empty(size, np.uint8)
    return packed, {name: view_of(packed, place) for name, place in places.items()}


class RayReplay(RayProcess):
    """Runs a `ReplayRole`. `execute` returns ("sample", (place, steps, bytes)) for each sample that
    the order made due, ("found", ...) for a request, and ("done", Answer)."""

    def __init__(self) -> None:
        super().__init__()
        self.newest = 0  # number of the newest executed order
        self.answers: dict[int, Messages] = {}  # that may not have arrived
        self.ids: dict[int, Tensor] = {}  # of the newest sample of each place
        self.weighed, self.memory = 0.0, 0.0  # when the memory of this process was measured

    def setup(self, job: RoleJob, layout: ChunkLayout, fields: Fields, threads: int) -> Messages:
        def body() -> Messages:
            torch.set_num_threads(threads)
            self.layout, self.fields, self.role = layout, fields, ReplayRole(job)
            return [("ready", None)]

        return self._guarded(body)

    def execute(self, order: Order) -> Messages:
        self._work()
        return self._guarded(lambda: self._once(order))

    def _once(self, order: Order) -> Messages:
        self.answers = {n: a for n, a in self.answers.items() if n > order.answered}
        if order.number <= self.newest:
            return self.answers[order.number]
        if order.number > self.newest + 1:
            return [("early", None)]
        found = self._execute(order.kind, order.place, order.value)
        self.newest = order.number
        self.answers[order.number] = found
        return found

    def _execute(self, kind: int, place: int, value: Any) -> Messages:
        role, found = self.role, Messages()
        if kind == ADD:
            packed, source, head = value
            arrays = self.layout.arrays(packed.copy())  # objects of Ray are read-only
            role.add(self.layout.chunk(arrays, source, Head(*head), copy=False))
        elif kind in (ASK, ASK_ONCE):
            role.ask(place)
        elif kind == FEEDBACK:
            role.feedback(self.ids[place], torch.from_numpy(value.copy()))
        elif kind == BREAK:
            role.break_streams(place)
        elif kind == RESEED:
            role.reseed(place)
        elif kind == REQUEST:
            found.append(("found", self._answer(*value)))
        found += [("sample", self._packed(drawn)) for drawn in role.draws()]
        if kind == ASK_ONCE:
            role.forget_places()
        self._weigh()
        answer = Answer(role.due, tuple(role.report()), self.memory)
        return [*found, ("done", tuple(answer))]

    def _packed(self, drawn: Drawn) -> tuple[int, int, Bytes]:
        packed, arrays = empty_sample(self.fields)
        write_sample(drawn, arrays)
        self.ids[drawn.place] = drawn.sample.ids.clone()
        self._work()
        return drawn.place, drawn.steps, packed

    def _answer(
        self, name: str, value: Any, arrays: dict[str, Array] | None
    ) -> tuple[Any, dict[str, Array]]:
        takes, gives = REQUESTS[name]
        given = {k: torch.from_numpy(v.copy()) for k, v in (arrays or {}).items()}
        found = getattr(self.role, name)(value, *([given] if takes else []))
        result, tensors = found if gives else (found, {})
        return result, {k: v.numpy(force=True) for k, v in tensors.items()}

    def _weigh(self) -> None:
        now = time.monotonic()
        if now - self.weighed > 1.0:
            self.weighed, self.memory = now, own_bytes()
