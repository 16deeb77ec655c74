"""The processes fleet: N actors in processes of this machine (actor.py). This side starts them,
receives their messages, and takes their chunks from shared memory."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import nn

from ludus.contract import Episode, Plan, Unroll
from ludus.fleets.actor_core import ActorJob
from ludus.fleets.actor_fleet import ActorFleet
from ludus.fleets.member import Member
from ludus.fleets.processes.actor import CONTROL, Job, Shared, actor_main
from ludus.fleets.processes.transport import Mailbox, MailboxError, WeightsBoard
from ludus.process.fork_server import process_context
from ludus.process.shared_tensors import SharedTensors
from ludus.process.supervisor import Child, close_all, ready
from ludus.types import Chunk

CLOSE_SECONDS = 2.0


@dataclass(kw_only=True)
class ProcessMember(Child, Member):
    """One actor process, as the learner sees it."""

    mailbox: Mailbox

    @property
    def pid(self) -> int | None:
        pid: int | None = self.process.pid
        return pid

    @property
    def exited(self) -> bool:
        return self.process.exitcode is not None


class ProcessFleet(ActorFleet[ProcessMember]):
    """N actor processes that share memory with the learner."""

    running = False  # free actors were asked to collect

    def _prepare(self, plan: Plan, net: nn.ModuleDict) -> None:
        self.context = process_context("ludus.fleets.processes.actor")
        control = np.zeros(self.actors), np.zeros(len(self.names)), np.zeros(1, np.int64)
        self.control = SharedTensors.like(dict(zip(CONTROL, control, strict=True)), self.context)
        self.beats, self.values, self.orders = map(self.control.array, CONTROL)
        self.board = WeightsBoard(net, self.context)
        self.copy = _keeps_rows(plan)
        self.claimed: list[tuple[Mailbox, int]] = []

    def _waits(self) -> bool:
        return self.lockstep or self.cfg.actor.overflow == "wait"

    @property
    def learner_bound(self) -> bool | None:
        """Whether chunks are dropped because the learner is too slow. Chunks lost with a dead actor
        do not count."""
        return None if self.lockstep else any(m.mailbox.dropped for m in self.members)

    def metrics(self) -> dict[str, float]:
        return super().metrics() | {"waiting_chunks": sum(m.mailbox.waiting for m in self.members)}

    def _start(self, job: ActorJob) -> ProcessMember:
        actor, stacks = self.cfg.actor, self._stacks(job)
        mailbox = Mailbox(self.layout, actor.buffers, actor.overflow, self.context)
        shared = Shared(self.board, mailbox, self.control)
        self.beats[job.index] = time.monotonic()
        member = ProcessMember.start(
            self.context, actor_main, (self.cfg.run.imports, shared), name=f"actor-{job.number}",
            daemon=job.env.workers == 0, now=self.clock.read(), index=job.index, stacks=stacks,
            job=job, mailbox=mailbox,
        )  # fmt: skip
        member.send(Job(job, self.lockstep, actor.pull_every, stacks))
        return member

    def close(self) -> None:
        self.orders[0] = 1
        close_all(self.members, CLOSE_SECONDS)
        self.members = []

    def _update_weights(self, net: nn.ModuleDict, updates: int) -> None:
        self.board.publish(net, updates)

    def _set_values(self, values: list[float]) -> None:
        self.values[:] = values

    def _run_free(self) -> None:
        if not self.running:
            self.running = True
            for member in self.members:
                member.send(("run", None))

    def _leave(self) -> None:
        self.orders[0] = 1

    def _ready(self, seconds: float) -> Sequence[ProcessMember]:
        return ready(self.members, seconds)

    def _beat(self, member: ProcessMember, now: float) -> float:
        return float(self.beats[member.index])

    def _claim(self, member: ProcessMember, place: Any, sequence: int) -> Chunk | None:
        chunk = None
        if place is not None:
            with suppress(MailboxError):  # the actor was stopped while it held the lock
                chunk = member.mailbox.claim(place, sequence, member.index, copy=self.copy)
        if chunk is not None:
            self.claimed.append((member.mailbox, place))
        return chunk

    def release(self) -> None:
        for mailbox, place in self.claimed:
            mailbox.release(place)
        self.claimed.clear()

    def _count_lost(self, member: ProcessMember) -> None:
        # Announced chunks are complete in shared memory and are still taken.
        self.lost += member.mailbox.waiting_after(member.last_sequence)


def _keeps_rows(plan: Plan) -> bool:
    """Whether the store keeps the rows of a chunk, as a queue does. A ring copies them."""
    return isinstance(plan.view, Unroll | Episode)
