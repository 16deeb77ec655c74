"""The learner's side of actors: start them, receive their messages, replace the hung and the dead.

The fleet (fleet.py) decides what they are asked, and takes their chunks.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from ludus.errors import LudusError
from ludus.fleets.health import ActorSupervisor, Reported, hung, remove_empty_dumps
from ludus.fleets.processes.actor import Job, Shared, actor_main, next_generation
from ludus.fleets.processes.chunks import ChunkLayout, Mailbox
from ludus.fleets.processes.weights import WeightsBoard
from ludus.process.fork_server import process_context
from ludus.process.shared_tensors import SharedTensors
from ludus.process.supervisor import Child, close_all, ready
from ludus.settings.resolve import Config
from ludus.track.atomic_files import make_folder
from ludus.types import EpisodeEnd

CLOSE_SECONDS = 2.0
LOOK = 0.2  # seconds between looks at the actors' health while waiting

# Actor, place of the chunk (None: dropped), its sequence, ended episodes, seconds it took.
Notice = tuple["Member", int | None, int, list[EpisodeEnd], Any]


@dataclass(kw_only=True)
class Member(Child):
    """The learner's side of one actor."""

    job: Job
    mailbox: Mailbox
    ready: bool = False
    reset: bool = False  # its environments have begun their first episodes
    worked: bool = False  # a chunk of its own has arrived
    last_sequence: int = -1  # of the newest chunk that it announced
    asked: dict[str, float] | None = None  # lockstep: a chunk is due, with these values
    answer: deque[Any] = field(default_factory=deque)
    gave_up: bool = False


class ActorPool(ActorSupervisor):
    """The actors of a run, by index."""

    board: WeightsBoard  # made by the fleet before the first actor starts
    layout: ChunkLayout
    planned: str  # how actors are expected to act, before they do

    def __init__(self, cfg: Config, names: tuple[str, ...], crash: Path | None) -> None:
        super().__init__(cfg, crash.parent if crash is not None else None)
        self.cfg, self.names, self.crash = cfg, names, crash
        self.context = process_context("ludus.fleets.processes.actor")
        self.beats = SharedTensors.of(np.zeros(self.actors), self.context)
        self.values = SharedTensors.of(np.zeros(len(names)), self.context)
        self.orders = SharedTensors.of(np.zeros(1, np.int64), self.context)
        remove_empty_dumps(crash)
        self.number = 0  # of the newest barrier
        self.asking = False  # every actor owes an answer
        self.fell_back: list[str] = []  # other ways in which some act, and why
        self.capture_seconds = 0.0  # of the slowest: actors capture in parallel
        self.lost = 0  # chunks that were dropped, overwritten or never announced
        self.notices: deque[Notice] = deque()
        self.members: list[Member] = []

    def start(self, jobs: list[Job]) -> None:
        """Start all; return when each has its environments."""
        try:
            for job in jobs:
                self.members.append(self._start(job))
            self._until(lambda: all(m.ready for m in self.members))
        except BaseException:
            self.close()
            raise

    def _with_stacks(self, job: Job) -> Job:
        """Where it may write its stack. Its replacement has another file."""
        if self.crash is None:
            return job
        with suppress(OSError):
            make_folder(self.crash)
        return replace(job, stacks=self.crash / f"actor-{job.index}-{job.generation}.stack")

    def _start(self, job: Job) -> Member:
        job = self._with_stacks(job)
        mailbox = Mailbox(
            self.layout, self.cfg.actor.buffers, self.cfg.actor.overflow, self.context
        )
        shared = Shared(self.board, mailbox, self.beats, self.values, self.orders)
        self.beats.array()[job.index] = time.monotonic()
        member = Member.start(
            self.context, actor_main, (self.cfg.run.imports, shared), name=f"actor-{job.index}",
            daemon=job.env.workers == 0, now=self.clock.read(), index=job.index, stacks=job.stacks,
            job=job, mailbox=mailbox,
        )  # fmt: skip
        member.send(job)
        return member

    def close(self) -> None:
        self.orders.array()[0] = 1
        close_all(self.members, CLOSE_SECONDS)
        self.members = []

    def pids(self) -> list[int]:
        return [m.process.pid for m in self.members]

    # Messages.
    def _send(self, member: Member, command: str, value: Any) -> None:
        member.send((command, value))  # `_check_health` finds and replaces a dead one

    def _ask(self, command: str, value: Any) -> list[Any]:
        """One answer of every actor; None of one that was replaced meanwhile, or if the run is over
        and only a checkpoint is still to be written."""
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
        """However long it takes, as long as every actor sends heartbeats."""
        while not done():
            self._listen(LOOK)

    def _listen(self, seconds: float) -> None:
        """Take messages of actors, for so long at most; then check their health."""
        for member in ready(self.members, seconds):
            for message in member.messages():
                self._handle(member, *message)
        self._check_health()

    def _handle(self, member: Member, kind: str, value: Any) -> None:
        if kind == "ready":
            member.ready = True
            member.reset = member.job.generation > 0
            self._time_start(member)
            if member.asked is not None:  # replaced while its chunk was due
                self._send(member, "collect", member.asked)
        elif kind == "chunk":
            if not member.worked and member.job.device != "cpu":
                self._time_start(member)  # with its captures
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
        now, beats = self.clock.read(), self.beats.array()
        for member in list(self.members):
            if member.process.exitcode is not None:
                self._died(member)
                continue
            limit = self._timeout(member)
            if self.hangs(member, float(beats[member.index]), now, limit):
                self._replace(member, hung(member, limit))

    def _timeout(self, member: Member) -> float:
        # On a GPU the first rows come after libraries were loaded and graphs captured.
        ready = member.reset and (member.worked or member.job.device == "cpu")
        return self.timeout(first=member.job.generation == 0, ready=ready)

    def _died(self, member: Member) -> None:
        """A dead actor may have sent its error."""
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
            self.over = True  # no actor is replaced any more
            raise
        member.end()
        # Announced chunks lie whole in their places, and are taken all the same.
        self.lost += member.mailbox.waiting_after(member.last_sequence)
        fresh = self._start(next_generation(member.job, self.number))
        fresh.asked, fresh.answer = member.asked, member.answer
        if self.asking and not fresh.answer:
            fresh.answer.append(None)  # to a question that it cannot answer any more
        self.members[member.index] = fresh
