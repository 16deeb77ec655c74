"""The learner's side of actors: starting them, hearing them, seeing that they live, replacing them.

What they are asked and what becomes of their chunks is the fleet's business (fleet.py).
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import numpy as np

from ludus.envs.backends.workers import process_context
from ludus.errors import ActorError, LudusError
from ludus.fleets.health import (
    Heard,
    Rarely,
    Restarts,
    ask_for_stack,
    ended,
    ends_run,
    looking_clock,
    never_worked,
    patience,
    silent,
    start_seconds,
    sweep,
    tidy,
    verdict,
)
from ludus.fleets.processes.actor import Job, Shared, live, next_generation
from ludus.fleets.processes.chunks import ChunkLayout, Mailbox
from ludus.fleets.processes.weights import WeightsBoard
from ludus.masking import hide
from ludus.process.fork_server import undisturbed
from ludus.process.shared_tensors import Block
from ludus.settings.resolve import Config
from ludus.track.atomic_files import make_folder, write_atomic
from ludus.types import EpisodeEnd

CLOSE_SECONDS = 2.0
LOOK = 0.2  # seconds between looks at the actors' health while waiting

# Who, the place of the chunk (None: dropped), its sequence, episodes that ended, what it cost.
Notice = tuple["Member", int | None, int, list[EpisodeEnd], Any]


@dataclass
class Member:
    """The learner's side of one actor."""

    job: Job
    process: Any
    pipe: Connection
    mailbox: Mailbox
    started: float  # by the crew's clock
    ready: bool = False
    reset: bool = False  # its environments have begun their first episodes
    worked: bool = False  # a chunk of its own has arrived
    told: int = -1  # the sequence of the newest one that it announced
    asked: dict[str, float] | None = None  # lockstep: a chunk is due, with these values
    answer: deque[Any] = field(default_factory=deque)
    gave_up: bool = False
    heard: Heard = field(default_factory=Heard)
    dumping: float | None = None  # when it was asked for its stack

    @property
    def index(self) -> int:
        return self.job.index


class Crew:
    """The actors of a run, by index."""

    board: WeightsBoard  # made by the fleet before the first actor starts
    layout: ChunkLayout
    planned: str  # how actors act, as far as that can be told before they do

    def __init__(self, cfg: Config, names: tuple[str, ...], crash: Path | None) -> None:
        self.cfg, self.names, self.crash = cfg, names, crash
        self.actors = cfg.run.actors
        self.context = process_context("ludus.fleets.processes.actor")
        self.beats = Block.like(np.zeros(self.actors), self.context)
        self.values = Block.like(np.zeros(len(names)), self.context)
        self.orders = Block.like(np.zeros(1, np.int64), self.context)
        run = crash.parent if crash is not None else None
        self.restarts = Restarts(cfg.actor.restarts, cfg.actor.restart_minutes, run, self.actors)
        self.spared = Rarely()
        self.clock = looking_clock(cfg.actor.hang_seconds)
        sweep(crash)
        self.tell: Callable[[str], None] = lambda _: None
        self.slowest = 0.0  # seconds that an actor of the first generation needed to get ready
        self.number = 0  # of the newest barrier
        self.asking = False  # every actor owes an answer
        self.fell_back: list[str] = []  # other ways in which some act, and why
        self.capture_seconds = 0.0  # of the slowest: actors capture beside each other
        self.over = False  # too many have failed: nobody is asked any more
        self.lost = 0  # chunks that were dropped, overwritten or never announced
        self.notices: deque[Notice] = deque()
        self.members: list[Member] = []

    def start(self, jobs: list[Job]) -> None:
        """All of them; returns when each has its environments."""
        try:
            for job in jobs:
                self.members.append(self._start(job))
            self._until(lambda: all(m.ready for m in self.members))
        except BaseException:
            self.close()
            raise

    def _with_stacks(self, job: Job) -> Job:
        """Where it may write: a file of its own, which its replacement leaves alone."""
        if self.crash is None:
            return job
        with suppress(OSError):
            make_folder(self.crash)
        return replace(job, stacks=self.crash / f"actor-{job.index}-{job.generation}.stack")

    def _start(self, job: Job) -> Member:
        job = self._with_stacks(job)
        ours, theirs = self.context.Pipe()
        mailbox = Mailbox(
            self.layout, self.cfg.actor.buffers, self.cfg.actor.overflow, self.context
        )
        shared = Shared(self.board, mailbox, self.beats, self.values, self.orders)
        self.beats.array()[job.index] = time.monotonic()
        process = self.context.Process(
            target=live,
            args=(theirs, self.cfg.run.imports, shared),
            name=f"ludus-actor-{job.index}",
            daemon=job.env.workers == 0,  # a daemon may have no children
        )
        with undisturbed():
            process.start()
        theirs.close()  # so that its death reads as the end of the pipe
        with suppress(OSError):
            ours.send(job)
        now = self.clock.read()
        return Member(job, process, ours, mailbox, now, heard=Heard(now))

    def close(self) -> None:
        self.orders.array()[0] = 1
        for member in self.members:
            with suppress(OSError):
                member.pipe.send(("close", None))
        for final in (False, True):  # they ignore SIGTERM
            living = [m for m in self.members if m.process.is_alive()]
            for member in living:
                if final or member.dumping is not None:  # who is silent does not listen either
                    member.process.kill()
            deadline = time.monotonic() + CLOSE_SECONDS
            for member in living:
                member.process.join(max(0.0, deadline - time.monotonic()))
        for member in self.members:
            member.pipe.close()
            tidy(member.job.stacks)
        self.members = []

    def pids(self) -> list[int]:
        return [m.process.pid for m in self.members]

    # Talking to actors.
    def _send(self, member: Member, command: str, value: Any) -> None:
        with suppress(OSError):  # a dead one is found and replaced by `_tend`
            member.pipe.send((command, value))

    def _ask(self, command: str, value: Any) -> list[Any]:
        """One answer of every actor; None of one that was replaced meanwhile, or if all is over
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
        """However long it takes, as long as everybody shows signs of life."""
        while not done():
            self._listen(LOOK)

    def _listen(self, seconds: float) -> None:
        """Take what actors say, for at most so long; then look after them."""
        pipes = {member.pipe: member for member in self.members}
        for pipe in wait(list(pipes), seconds):
            assert isinstance(pipe, Connection)
            member = pipes[pipe]
            try:
                while pipe.poll(0):
                    self._hear(member, *pipe.recv())
            except (EOFError, OSError):
                continue  # `_tend` will find it dead
        self._tend()

    def _hear(self, member: Member, kind: str, value: Any) -> None:
        if kind == "ready":
            member.ready = True
            member.reset = member.job.generation > 0
            self._time_start(member)
            if member.asked is not None:  # replaced while its chunk was due
                self._send(member, "collect", member.asked)
        elif kind == "chunk":
            if not member.worked and member.job.device != "cpu":
                self._time_start(member)  # with its captures
            member.asked, member.worked, member.told = None, True, value[1]
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
            error, text = value
            self._replace(member, str(error.what), text, error)

    def _time_start(self, member: Member) -> None:
        if member.job.generation == 0:
            self.slowest = max(self.slowest, self.clock.read() - member.started)

    # Health.
    def _tend(self) -> None:
        now, beats = self.clock.read(), self.beats.array()
        for member in list(self.members):
            if member.process.exitcode is not None:
                self._last_words(member)
                continue
            beat = member.heard.look(float(beats[member.index]), now)
            found = verdict(now, beat, member.dumping, self._patience(member))
            if found == "ask":
                member.dumping = now
                ask_for_stack(member.process.pid, member.job.stacks)
            elif found == "spare":
                member.dumping = None
                if self.spared.due(member.index, now):
                    self.tell(f"actor {member.index} was silent for {self._hang:g} s, and goes on")
            elif found == "dead":
                self._replace(member, silent(self._patience(member), member.job.stacks))

    @property
    def _hang(self) -> float:
        return float(self.cfg.actor.hang_seconds)

    def _patience(self, member: Member) -> float:
        first = None
        if member.job.generation == 0:
            first = start_seconds(self.actors, self.cfg.env.slots)
        # On a GPU the first rows come after libraries were loaded and graphs captured.
        ready = member.reset and (member.worked or member.job.device == "cpu")
        return patience(self._hang, first, self.slowest, ready=ready)

    def _last_words(self, member: Member) -> None:
        """A dead actor may have said why."""
        if member not in self.members:
            return
        with suppress(EOFError, OSError):
            while member.pipe.poll(0):
                self._hear(member, *member.pipe.recv())
        if member in self.members:
            self._replace(member, ended(member.process.exitcode))

    def _replace(
        self, member: Member, cause: str, traceback: str = "", error: LudusError | None = None
    ) -> None:
        """A fresh process with the same index, slots and epsilon, from new seeds."""
        hopeless = not member.worked and member.job.generation == 0
        if hopeless or ends_run(self.cfg.env.on_error, error):
            self.over = True  # nothing to be tried again
            late = [m.index for m in self.members if member.dumping and m.dumping]
            who = late or [member.index]
            raise error or never_worked(cause, who) from ActorError(traceback or cause)
        if member.process.is_alive():
            member.process.kill()
        member.pipe.close()
        if traceback and self.crash is not None:
            name = f"actor-{member.index}-{member.job.generation}.txt"
            with suppress(OSError):  # a full disk must not end the run
                write_atomic(self.crash / name, hide(traceback).encode())
        first = cause.splitlines()[0]
        self.tell(f"actor {member.index} is replaced: {first}")
        # What it announced lies whole in its places, and is taken all the same.
        self.lost += member.mailbox.later_than(member.told)
        try:
            self.restarts.add(member.index, first, traceback)
        except LudusError:
            self.over = True
            raise
        fresh = self._start(next_generation(member.job, self.number))
        fresh.asked, fresh.answer = member.asked, member.answer
        if self.asking and not fresh.answer:
            fresh.answer.append(None)  # to a question that it cannot answer any more
        self.members[member.index] = fresh
        tidy(member.job.stacks)
