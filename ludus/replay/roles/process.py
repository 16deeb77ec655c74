"""A replay process: a `ReplayRole` that executes the learner's orders in their sequence."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import IO, Any

from ludus.process.child import dump_when_asked, run_child
from ludus.process.modules import import_modules
from ludus.replay.roles.link import ADD, ASK, ASK_ONCE, BREAK, FEEDBACK, RESEED
from ludus.replay.roles.role import ReplayRole, RoleJob
from ludus.replay.roles.transport import (
    DONE,
    NUMBERS,
    SAMPLE,
    Record,
    RoleMemory,
    receive,
    receive_tensors,
    send,
    send_tensors,
)

IDLE = 0.5  # seconds between heartbeats without orders
# Requests for a checkpoint: whether tensors follow the request, and whether the answer has some.
REQUESTS = {
    "state": (False, True), "load": (True, False), "forget": (True, False),
    "refill": (False, False), "rows": (False, False), "marker": (False, False),
    "segment": (False, True), "is_live": (False, False), "restore": (True, False),
}  # fmt: skip


def role_main(
    pipe: Connection,
    imports: tuple[str, ...],
    memory: RoleMemory,
    orders: Connection,
    answers: Connection,
    threads: int,
    stacks: Path | None,
    open_file: Callable[[Path], IO[Any]],
) -> None:
    """The main function of a replay process."""

    def body() -> None:
        import_modules(imports)  # before receiving the job, which may contain their objects
        job: RoleJob = pipe.recv()
        dump_when_asked(stacks, open_file)
        server = Server(ReplayRole(job), memory, pipe, orders, answers)
        pipe.send(("ready", None))
        server.serve()

    run_child(pipe, body, threads=threads)


class Server:
    """Executes orders and answers requests."""

    def __init__(
        self,
        role: ReplayRole,
        memory: RoleMemory,
        pipe: Connection,
        orders: Connection,
        answers: Connection,
    ) -> None:
        self.role, self.memory = role, memory
        self.pipe, self.orders, self.answers = pipe, orders, answers
        os.set_blocking(orders.fileno(), False)
        self.numbers = memory.numbers.array()
        self.weighed = 0.0  # when the memory of this process was measured
        self.beat()

    def beat(self) -> None:
        self.numbers[0] = time.monotonic()

    def serve(self) -> None:
        while True:
            self.beat()
            self._report()
            for ready in wait([self.orders, self.pipe], IDLE):
                if ready is self.orders:
                    for order in receive(self.orders):
                        self.beat()
                        self._execute(order)
                elif not self._answer(*self.pipe.recv()):
                    return

    def _execute(self, order: Record) -> None:
        role, kind = self.role, order.kind
        if kind == ADD:
            role.add(self.memory.take_chunk(order.a))
        elif kind in (ASK, ASK_ONCE):
            role.ask(order.a)
        elif kind == FEEDBACK:
            role.feedback(*self.memory.take_priority(order.a))
        elif kind == BREAK:
            role.break_streams(order.a)
        elif kind == RESEED:
            role.reseed(order.a)
        for drawn in role.draws():
            self.memory.write_sample(drawn)
            send(self.answers, SAMPLE, drawn.place, drawn.steps)
        if kind == ASK_ONCE:
            role.forget_places()
        self._report()
        send(self.answers, DONE, role.due)

    def _report(self) -> None:
        self.numbers[2:] = self.role.report()
        now = time.monotonic()
        if now - self.weighed > 1.0:
            self.weighed, self.numbers[1] = now, own_bytes()

    def _answer(self, request: str, value: Any) -> bool:
        """Answer a request. Return False if the process must exit."""
        if request == "close":
            return False
        takes, gives = REQUESTS[request]
        given = (receive_tensors(self.pipe, self.beat),) if takes else ()
        found = getattr(self.role, request)(value, *given)
        result, tensors = found if gives else (found, {})
        self._report()
        self.pipe.send(("done", result))
        if gives:
            send_tensors(self.pipe, tensors, self.beat)
        return True


def own_bytes() -> float:
    """Memory of this process that is in use; 0 where the system does not tell."""
    try:
        with open("/proc/self/statm") as file:
            return float(int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE"))
    except OSError:
        return 0.0


assert NUMBERS[:2] == ("beat", "memory"), "Server writes them by position"
