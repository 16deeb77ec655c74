"""One replay process, as the learner sees it: orders under way, and samples that wait."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

from torch import Tensor

from ludus.errors import LudusError
from ludus.process.supervisor import Child
from ludus.replay.roles.process import REQUESTS
from ludus.replay.roles.role import Report, RoleJob
from ludus.replay.roles.transport import (
    ADD,
    ASK,
    ASK_ONCE,
    DONE,
    FEEDBACK,
    RoleMemory,
    receive,
    receive_tensors,
    send,
    send_tensors,
)
from ludus.types import Chunk


class RoleLostError(Exception):
    """The process died or hangs. `known`: it sent an error, which a replacement would repeat."""

    def __init__(self, cause: str, text: str = "", *, known: bool = False) -> None:
        super().__init__(cause)
        self.cause, self.text, self.known = cause, text, known


@dataclass(kw_only=True)
class RoleClient(Child):
    """Every place belongs to one side: the learner's are in `inbox`, `outbox` and `waiting`."""

    job: RoleJob
    memory: RoleMemory
    orders: Connection
    answers: Connection
    ready: bool = False
    under_way: deque[tuple[int, int]] = field(default_factory=deque)  # orders and their places
    inbox: list[int] = field(default_factory=list)  # free places for chunks
    outbox: list[int] = field(default_factory=list)  # free places for samples
    asked: int = 0  # places that the role may fill
    waiting: deque[tuple[int, int]] = field(default_factory=deque)  # (place, steps) of samples
    due: bool = False  # more batches were due than places asked for, after the newest order
    adds: int = 0  # chunks under way

    def __post_init__(self) -> None:
        os.set_blocking(self.answers.fileno(), False)
        self.inbox += range(len(self.memory.inbox.memory))
        self.outbox += range(len(self.memory.outbox.memory))
        self.numbers = self.memory.numbers.array()

    @property
    def report(self) -> Report:
        return Report(*self.numbers[2:].tolist())

    @property
    def unused(self) -> int:
        """Steps of the samples that wait."""
        return sum(steps for _, steps in self.waiting)

    def order(self, kind: int, place: int = 0) -> None:
        self.under_way.append((kind, place))
        with suppress(OSError):  # dead: the next health check replaces it
            send(self.orders, kind, place)

    def add(self, chunk: Chunk, source: int) -> None:
        """Send a chunk. Only while `inbox` has a place."""
        place = self.inbox.pop()
        self.memory.put_chunk(place, chunk, source)
        self.adds += 1
        self.order(ADD, place)

    def ask(self, *, once: bool) -> None:
        """Let the role fill a place with the next batch that is due, or that is due now."""
        self.asked += 1
        self.order(ASK_ONCE if once else ASK, self.outbox.pop())

    def feedback(self, place: int, priority: Tensor) -> None:
        """Send new priorities; the place is free for the orders that follow."""
        self.memory.put_priority(place, priority)
        self.order(FEEDBACK, place)

    def read(self) -> bool:
        """Take the answers that have arrived; whether there were any."""
        found = False
        with suppress(EOFError, OSError):
            while answers := receive(self.answers):
                found = True
                for answer in answers:
                    if answer.kind == DONE:
                        self._done(bool(answer.a))
                    else:
                        self.asked -= 1
                        self.waiting.append((answer.a, answer.b))
        return found

    def _done(self, due: bool) -> None:
        kind, place = self.under_way.popleft()
        self.due = due
        if kind == ADD:
            self.adds -= 1
            self.inbox.append(place)
        elif kind == ASK_ONCE and (not self.waiting or self.waiting[-1][0] != place):
            self.asked -= 1
            self.outbox.append(place)

    def drop_places(self) -> int:
        """Take back every place for samples. Return the steps of those that wait. Only while no
        order is under way; the role forgets its places with the next one."""
        unused = self.unused
        self.waiting.clear()
        self.asked, self.outbox = 0, list(range(len(self.memory.outbox.memory)))
        return unused

    def request(
        self,
        name: str,
        value: Any,
        tensors: dict[str, Tensor] | None,
        alive: Callable[[], None],
    ) -> tuple[Any, dict[str, Tensor]]:
        """Send a request for a checkpoint and wait for its answer. Raises RoleLostError."""
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


def lost_to(message: tuple[LudusError | None, str, str]) -> RoleLostError:
    """The loss of a role that has sent this error."""
    return RoleLostError(message[1], message[2], known=True)
