"""An actor process: an `ActorCore` that sends chunks and receives weights through shared memory.

In lockstep an actor collects one chunk per request. Otherwise it collects continuously with the
newest weights, and waits only while its mailbox is full (transport.py).
"""

from __future__ import annotations

import select
import time
from collections import deque
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from ludus.envs.backends.workers import register_shipped
from ludus.fleets.actor_core import ActorCore, ActorJob, explain_failure
from ludus.fleets.processes.transport import Mailbox, WeightsBoard
from ludus.process.child import dump_when_asked, run_child
from ludus.process.modules import import_modules
from ludus.process.shared_tensors import SharedTensors
from ludus.track.atomic_files import open_append

_LEAVE = 0  # index into `orders`
CONTROL = ("beats", "values", "orders")  # see Shared
# Seconds between checks of a full mailbox. They grow, because a hundred actors that check every
# millisecond would take the cores from the learner.
SHORTEST_NAP, LONGEST_NAP = 0.001, 0.05


@dataclass(frozen=True)
class Shared:
    """The memory that actor and learner share."""

    board: WeightsBoard
    mailbox: Mailbox
    # beats [actors]: monotonic time of the newest heartbeat. values [schedules]: as of the newest
    # iteration. orders [1]: nonzero: stop collecting.
    control: SharedTensors


@dataclass(frozen=True)
class Job:
    """The arguments of an actor process."""

    core: ActorJob
    lockstep: bool
    pull_every: int  # steps of this actor between weight pulls; 0: before every chunk
    stacks: Path | None = None  # file for stack dumps of all threads


def actor_main(pipe: Connection, imports: tuple[str, ...], shared: Shared) -> None:
    """The main function of an actor process."""

    def body() -> None:
        import_modules(imports)  # before receiving the job, which may contain their objects
        job: Job = pipe.recv()
        dump_when_asked(job.stacks, open_append)
        register_shipped(job.core.registered)
        actor = Actor(job, shared, pipe)
        pipe.send(("ready", None))
        actor.serve()

    run_child(pipe, body, explain=explain_failure)


class Actor:
    """Runs an `ActorCore` on commands from a pipe, with shared memory for chunks and weights."""

    def __init__(self, job: Job, shared: Shared, pipe: Connection) -> None:
        self.job, self.shared, self.pipe = job.core, shared, pipe
        self.lockstep, self.pull_every = job.lockstep, job.pull_every
        self.beats, self.values, self.orders = map(shared.control.array, CONTROL)
        self.beat()
        self.core = ActorCore(self.job, self.beat)
        self.reported_mode = self.core.mode
        self.stamp, self.updates = -1, 0  # of the newest pulled weights
        self.since_pull, self.chunk_steps = 0, self.job.rows * self.job.env.num_envs
        self.nap = SHORTEST_NAP
        self.pending: deque[tuple[str, Any]] = deque()  # commands that ended a wait
        self.running = self.job.generation > 0 and not self.lockstep
        self.beat()

    def beat(self) -> None:
        self.beats[self.job.index] = time.monotonic()

    def stopping(self) -> bool:
        """Called after every row; sends a heartbeat."""
        self.beat()
        return bool(self.orders[_LEAVE])

    def serve(self) -> None:
        while True:
            self.beat()
            if self.pending:
                if not self._execute(*self.pending.popleft()):
                    return
                continue
            if not self.running or self.pipe.poll(0):
                if self.pipe.poll(1.0) and not self._execute(*self.pipe.recv()):
                    return
                continue
            if self.orders[_LEAVE]:
                time.sleep(0.01)
                continue
            self._collect(dict(zip(self.job.names, self.values.tolist(), strict=True)))

    def _execute(self, command: str, value: Any) -> bool:
        """Execute a command. Return False if the process must exit."""
        core = self.core
        if command == "close":
            core.close()
            return False
        if command == "collect":
            self._collect(value)
        elif command == "run":
            self.running = True
        elif command == "barrier":
            self.pipe.send(("done", core.barrier(value)))
        elif command == "state":
            self.pipe.send(("done", core.state()))
        elif command == "load":
            core.load_state(value)
            self.pipe.send(("done", None))
        return True

    def _collect(self, values: dict[str, float]) -> None:
        core = self.core
        if self.stamp < 0 or self.since_pull >= self.pull_every or self.lockstep:
            self.stamp, self.updates = self.shared.board.pull(core.net, self.stamp)
            self.since_pull = 0
        got = core.collect(values, self.updates, self.stopping)
        if core.mode != self.reported_mode:
            self.reported_mode = core.mode
            self._send("acting", core.mode)
        if got is None:
            self._send("nothing", None)
            return
        self.since_pull += self.chunk_steps
        self.nap = SHORTEST_NAP
        if core.lasts:
            self._send("kept", core.state())
        place = self.shared.mailbox.put(got.chunk, self._pause)
        spent = (got.env_seconds, got.act_seconds, got.process)
        self._send("chunk", (place, got.chunk.sequence, list(got.episodes), spent))

    def _send(self, kind: str, value: Any) -> None:
        """Send a message. The pipe may be full while the learner evaluates or saves; waiting for it
        sends heartbeats, too."""
        while not _writable(self.pipe):
            if self.stopping():
                return  # the learner no longer reads messages
        self.pipe.send((kind, value))

    def _pause(self) -> bool:
        """Sleep while the mailbox is full. Return True to stop waiting. Answers the requests of a
        checkpoint; other commands end the wait, because they end the stream."""
        time.sleep(self.nap)
        self.nap = min(1.5 * self.nap, LONGEST_NAP)
        while not self.pending and self.pipe.poll(0):
            command, value = self.pipe.recv()
            if command in ("state", "run"):
                self._execute(command, value)
            else:
                self.pending.append((command, value))
        return self.stopping() or bool(self.pending)


def _writable(pipe: Connection) -> bool:
    """Wait up to 0.1 s until the pipe accepts a message; whether it does."""
    poller = select.poll()
    poller.register(pipe, select.POLLOUT)
    return bool(poller.poll(100))
