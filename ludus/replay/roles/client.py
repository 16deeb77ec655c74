"""One replay process, as the learner sees it: orders go through a pipe, arrays in shared memory."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from torch import Tensor

from ludus.process.supervisor import Child
from ludus.replay.roles.link import ADD, FEEDBACK, RoleLink, RoleLostError, lost_to
from ludus.replay.roles.process import REQUESTS
from ludus.replay.roles.role import Report
from ludus.replay.roles.transport import (
    DONE,
    RoleMemory,
    receive,
    receive_tensors,
    send,
    send_tensors,
)
from ludus.types import Chunk


@dataclass(kw_only=True)
class RoleClient(Child, RoleLink):
    """Every place belongs to one side: the learner's are in `inbox`, `outbox` and `waiting`."""

    memory: RoleMemory
    orders: Connection
    answers: Connection

    def __post_init__(self) -> None:
        os.set_blocking(self.answers.fileno(), False)
        self.make_places(len(self.memory.inbox.memory), len(self.memory.outbox.memory))
        self.numbers = self.memory.numbers.array()

    @property
    def pid(self) -> int | None:
        pid: int | None = self.process.pid
        return pid

    @property
    def exited(self) -> bool:
        return self.process.exitcode is not None

    @property
    def report(self) -> Report:
        return Report(*self.numbers[2:].tolist())

    @property
    def memory_bytes(self) -> float:
        return float(self.numbers[1])

    def heartbeat(self, now: float) -> float:
        return float(self.numbers[0])

    def order(self, kind: int, place: int = 0) -> None:
        self.under_way.append((kind, place))
        with suppress(OSError):  # dead: the next health check replaces it
            send(self.orders, kind, place)

    def add(self, chunk: Chunk, source: int) -> None:
        place = self.inbox.pop()
        self.memory.put_chunk(place, chunk, source)
        self.adds += 1
        self.order(ADD, place)

    def feedback(self, place: int, priority: Tensor) -> None:
        self.memory.put_priority(place, priority)
        self.order(FEEDBACK, place)

    def read(self) -> bool:
        found = False
        with suppress(EOFError, OSError):
            while answers := receive(self.answers):
                found = True
                for answer in answers:
                    if answer.kind == DONE:
                        self.executed(bool(answer.a))
                    else:
                        self.sampled(answer.a, answer.b)
        return found

    def read_sample(self, place: int) -> tuple[list[Tensor], Tensor, Tensor, tuple[float, float]]:
        return self.memory.read_sample(place)

    def request(
        self,
        name: str,
        value: Any,
        tensors: dict[str, Tensor] | None,
        alive: Callable[[], None],
    ) -> tuple[Any, dict[str, Tensor]]:
        try:
            self.pipe.send((name, value))
            if tensors is not None:
                send_tensors(self.pipe, tensors, alive)
            while not self.pipe.poll(0.1):
                alive()
            kind, found = self.pipe.recv()
            if kind == "error":
                raise lost_to(found)
            return found, receive_tensors(self.pipe, alive) if REQUESTS[name][1] else {}
        except (EOFError, OSError):
            raise RoleLostError(self.exit_cause()) from None

    def forget(self) -> None:
        super().forget()
        self.orders.close()
        self.answers.close()
