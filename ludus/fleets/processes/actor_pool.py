"""The learner's side of actor processes: start them, receive messages, replace hung and dead ones.

The fleet (fleet.py) sends the requests and takes the chunks.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from ludus.errors import LudusError
from ludus.fleets.health import ActorSupervisor, Reported, hung, remove_empty_dumps, stack_file
from ludus.fleets.processes.actor import CONTROL, Job, Shared, actor_main
from ludus.fleets.processes.transport import ChunkLayout, Mailbox, WeightsBoard
from ludus.process.fork_server import process_context
from ludus.process.shared_tensors import SharedTensors
from ludus.process.supervisor import Child, close_all, ready
from ludus.settings.resolve import Config
from ludus.types import EpisodeEnd

CLOSE_SECONDS = 2.0
LOOK = 0.2  # seconds between health checks while waiting

# (actor, place of the chunk or None if dropped, its sequence, ended episodes, seconds spent)
Notice = tuple["Member", int | None, int, list[EpisodeEnd], Any]


@dataclass(kw_only=True)
class Member(Child):
    """One actor process, as the learner sees it."""

    job: Job
    mailbox: Mailbox
    ready: bool = False
    reset: bool = False  # its environments have started their first episodes
    worked: bool = False  # its first chunk has arrived
    last_sequence: int = -1  # of its newest announced chunk
    asked: dict[str, float] | None = None  # lockstep: schedule values of the requested chunk
    answer: deque[Any] = field(default_factory=deque)
    gave_up: bool = False


class ActorPool(ActorSupervisor):
    """The actor processes of a run, by index."""

    board: WeightsBoard  # created by the fleet before the first actor starts
    layout: ChunkLayout
    planned: str  # expected mode of acting

    def __init__(self, cfg: Config, names: tuple[str, ...], crash: Path | None) -> None:
        super().__init__(cfg, crash.parent if crash is not None else None)
        self.cfg, self.names, self.crash = cfg, names, crash
        self.context = process_context("ludus.fleets.processes.actor")
        control = np.zeros(self.actors), np.zeros(len(names)), np.zeros(1, np.int64)
        self.control = SharedTensors.like(dict(zip(CONTROL, control, strict=True)), self.context)
        self.beats, self.values, self.orders = map(self.control.array, CONTROL)
        remove_empty_dumps(crash)
        self.number = 0  # of the newest barrier
        self.asking = False  # waiting for one answer from each actor
        self.fell_back: list[str] = []  # unexpected modes of acting, with reasons
        self.capture_seconds = 0.0  # of the slowest: actors capture in parallel
        self.lost = 0  # chunks that were dropped, overwritten or never announced
        self.notices: deque[Notice] = deque()
        self.members: list[Member] = []

    def start(self, jobs: list[Job]) -> None:
        """Start all actors and wait until each has its environments."""
        try:
            for job in jobs:
                self.members.append(self._start(job))
            self._until(lambda: all(m.ready for m in self.members))
        except BaseException:
            self.close()
            raise

    def _start(self, job: Job) -> Member:
        if self.crash is not None:  # each generation has its own file for its stack dump
            job = replace(job, stacks=stack_file(self.crash, job.index, job.generation))
        mailbox = Mailbox(
            self.layout, self.cfg.actor.buffers, self.cfg.actor.overflow, self.context
        )
        shared = Shared(self.board, mailbox, self.control)
        self.beats[job.index] = time.monotonic()
        member = Member.start(
            self.context, actor_main, (self.cfg.run.imports, shared), name=f"actor-{job.index}",
            daemon=job.env.workers == 0, now=self.clock.read(), index=job.index, stacks=job.stacks,
            job=job, mailbox=mailbox,
        )  # fmt: skip
        member.send(job)
        return member

    def close(self) -> None:
        self.orders[0] = 1
        close_all(self.members, CLOSE_SECONDS)
        self.members = []

    def pids(self) -> list[int]:
        return [m.process.pid for m in self.members]

    # Messages.
    def _send(self, member: Member, command: str, value: Any) -> None:
        member.send((command, value))  # `_check_health` replaces dead actors

    def _ask(self, command: str, value: Any) -> list[Any]:
        """Return one answer per actor: None from an actor that was replaced meanwhile, and from all
        if the run is over and only the checkpoint is left to write."""
        if self.over:
            return [None] * self.actors
        for member in self.members:
            self._send(member, command, value)
        return self._answers(command)

    def _answers(self, command: str) -> list[Any]:
        self.asking = True
        try:
            self._until(lambda: all(m.answer for m in self.members))
        finally:
            self.asking = False
        if command == "barrier":
            for member in self.members:
                member.reset = True
        return [member.answer.popleft() for member in self.members]

    def _until(self, done: Callable[[], bool]) -> None:
        """Receive messages until `done`, without a limit while all actors send heartbeats."""
        while not done():
            self._listen(LOOK)

    def _listen(self, seconds: float) -> None:
        """Receive messages for up to `seconds`, then check the actors' health."""
        for member in ready(self.members, seconds):
            for message in member.messages():
                self._handle(member, *message)
        self._check_health()

    def _handle(self, member: Member, kind: str, value: Any) -> None:
        if kind == "ready":
            member.ready = True
            member.reset = member.job.generation > 0
            self._time_start(member)
            if member.asked is not None:  # replaced while a chunk was requested
                self._send(member, "collect", member.asked)
        elif kind == "chunk":
            if not member.worked and member.job.device != "cpu":
                self._time_start(member)  # includes graph capture
            member.asked, member.worked, member.last_sequence = None, True, value[1]
            self.notices.append((member, *value))
        elif kind == "nothing":
            member.asked, member.gave_up = None, True
        elif kind == "acting":
            mode, seconds = value
            self.capture_seconds = max(self.capture_seconds, seconds)
            if mode not in (self.planned, *self.fell_back):
                self.fell_back.append(mode)
        elif kind == "done":
            member.answer.append(value)
        elif kind == "error":
            self._replace(member, value)

    def _time_start(self, member: Member) -> None:
        if member.job.generation == 0:
            self.time_start(member)

    # Health.
    def _check_health(self) -> None:
        now = self.clock.read()
        for member in list(self.members):
            if member.process.exitcode is not None:
                self._died(member)
                continue
            limit = self._timeout(member)
            if self.hangs(member, float(self.beats[member.index]), now, limit):
                self._replace(member, hung(member, limit))

    def _timeout(self, member: Member) -> float:
        # On a GPU the first rows arrive after library loading and graph capture.
        ready = member.reset and (member.worked or member.job.device == "cpu")
        return self.timeout(first=member.job.generation == 0, ready=ready)

    def _died(self, member: Member) -> None:
        """Replace a dead actor, after reading the error that it may have sent."""
        for message in member.messages():
            self._handle(member, *message)
        if member in self.members:
            self._replace(member, (None, member.exit_cause(), ""))

    def _replace(self, member: Member, failure: Reported) -> None:
        """Start a fresh process with the same index, slots and epsilon, from new seeds."""
        late = [m.index for m in self.members if member.dump_asked and m.dump_asked]
        last = not member.worked and member.job.generation == 0
        try:
            self.count_failure(
                member.index, failure, member.stacks, late or [member.index], last=last
            )
        except LudusError:
            self.over = True  # replace no more actors
            raise
        member.end(0.0)  # the learner does not wait for a process that is being killed
        # Announced chunks are complete in shared memory and are still taken.
        self.lost += member.mailbox.waiting_after(member.last_sequence)
        generation = member.job.generation + 1
        fresh = self._start(replace(member.job, generation=generation, barrier=self.number))
        fresh.asked, fresh.answer = member.asked, member.answer
        if self.asking and not fresh.answer:
            fresh.answer.append(None)  # it did not receive the request
        self.members[member.index] = fresh
