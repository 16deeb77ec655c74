"""The processes fleet: N actors in processes of their own (run/actor.py).

In lockstep every iteration asks every actor for one chunk, acted with the weights just published,
and hands them over in the order of the actors: what is learned does not depend on timing. Free
actors collect as fast as they can; the learner takes what is there. Either way the store's pace
decides how much is learned from it.
"""

from __future__ import annotations

import os
import pickle
import signal
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ludus.config import Config
from ludus.contract import Algorithm, NStep, Plan
from ludus.contract import Sequence as SequenceView
from ludus.envs.workers import Block, process_context, shipped_spec
from ludus.errors import LudusError
from ludus.run.actor import Job, Shared, live, next_generation, values_of
from ludus.run.collector import Collected, never
from ludus.run.extras import extras_of
from ludus.run.health import ActorError, Restarts
from ludus.run.mailbox import ChunkLayout, Mailbox, MailboxError
from ludus.run.weights import WeightsBoard
from ludus.types import Ctx, EnvSpec, EpisodeEnd

START_SECONDS = 120.0  # importing and making environments may take this long
CLOSE_SECONDS = 2.0
LOOK = 0.2  # seconds between looks at the actors' health while waiting
DUMP_SECONDS = 0.5  # for an actor to write down what it is doing


@dataclass
class Member:
    """The learner's side of one actor."""

    job: Job
    process: Any
    pipe: Connection
    mailbox: Mailbox
    started: float
    ready: bool = False
    asked: dict[str, float] | None = None  # lockstep: a chunk is due, with these values
    answer: deque[Any] = field(default_factory=deque)
    gave_up: bool = False
    dumping: float | None = None

    @property
    def index(self) -> int:
        return self.job.index


class ProcessFleet:
    """`columns` is all slots of all actors; actor i has the i-th part of them."""

    capture_seconds = 0.0

    def __init__(
        self,
        algorithm: Algorithm,
        spec: EnvSpec,
        plan: Plan,
        net: nn.ModuleDict,
        cfg: Config,
        *,
        precision: str = "fp32",
        overlap: bool = False,
        crash: Path | None = None,
    ) -> None:
        self.spec, self.cfg, self.crash = spec, cfg, crash
        self.actors, n = cfg.run.actors, cfg.env.slots
        self.columns = self.actors * n
        self.lockstep, self.publish_every = cfg.lockstep, cfg.actor.publish_every
        self.rows = rows_of(cfg, plan)
        # A ring copies what it is given; a queue keeps it, and needs its own.
        self.copy = not isinstance(plan.view, NStep | SequenceView)
        self.context = process_context("ludus.run.actor")
        ctx = Ctx(torch.Generator().manual_seed(0), spec, actors=self.actors)
        extras = extras_of(algorithm, net, spec)
        self.layout = ChunkLayout.of(spec, extras, algorithm.begin(n, ctx), self.rows, n)
        self.board = WeightsBoard(net, self.context)
        self.names = (*plan.schedules, "warming")
        self.beats = Block.like(np.zeros(self.actors), self.context)
        self.values = Block.like(np.zeros(len(self.names)), self.context)
        self.orders = Block.like(np.zeros(1, np.int64), self.context)
        self.restarts = Restarts(cfg.actor.restarts, cfg.actor.restart_minutes)
        self.tell: Callable[[str], None] = lambda _: None
        self.number = 0  # of the newest barrier
        self.version = -1  # updates in the weights that were published last
        self.lag = 0.0  # updates between acting and arrival, a running mean
        self.lost = 0  # chunks that were announced and not there any more
        self.untold: list[EpisodeEnd] = []  # episodes of lost chunks
        self.updates = 0
        self.running = False
        self.notices: deque[tuple[Member, int | None, int, list[EpisodeEnd], Any]] = deque()
        self.claimed: list[tuple[Mailbox, int]] = []
        self.members: list[Member] = []
        device = "cpu" if cfg.actor.device == "auto" else str(cfg.actor.device)
        try:
            for i in range(self.actors):
                where = device_of_actor(device, i)
                job = Job(
                    i, self.actors, 0, cfg.env, algorithm, self.rows, cfg.run.seed, where,
                    precision, self.names, self.lockstep, overlap and self.lockstep,
                    cfg.actor.pull_every, 0,
                    shipped_spec(cfg.env), self._stacks(i),
                )  # fmt: skip
                self.members.append(self._start(job))
            self._until(lambda: all(m.ready for m in self.members), START_SECONDS, "start")
        except BaseException:
            self.close()
            raise

    @property
    def acting(self) -> str:
        return f"in {self.actors} processes, {'lockstep' if self.lockstep else 'free'}"

    def _stacks(self, index: int) -> Path | None:
        if self.crash is None:
            return None
        self.crash.mkdir(parents=True, exist_ok=True)
        return self.crash / f"actor-{index}.stack"

    def _start(self, job: Job) -> Member:
        ours, theirs = self.context.Pipe()
        mailbox = Mailbox(
            self.layout, self.cfg.actor.buffers, self.cfg.actor.overflow, self.context
        )
        shared = Shared(self.board, mailbox, self.beats, self.values, self.orders)
        self.beats.array()[job.index] = time.monotonic()
        process = self.context.Process(
            target=live,
            args=(theirs, self.cfg.run.imports, shared, pickle.dumps(job)),
            name=f"ludus-actor-{job.index}",
            daemon=job.env.workers == 0,  # a daemon may have no children
        )
        process.start()
        theirs.close()  # so that its death reads as the end of the pipe
        return Member(job, process, ours, mailbox, time.monotonic())

    # What the loop uses.
    def publish(self, net: nn.ModuleDict, updates: int = 0) -> None:
        self.settled()
        due = self.version < 0 or self.lockstep or updates - self.version >= self.publish_every
        if due and (self.lockstep or updates != self.version):
            self.board.publish(net, updates)
            self.version = updates
        self.updates = updates

    def poll(
        self, values: dict[str, Tensor], stopping: Callable[[], bool] = never
    ) -> list[Collected]:
        self.settled()
        self.values.array()[:] = values_of(values, self.names)
        if self.lockstep:
            return self._together(stopping)
        if not self.running:
            self.running = True
            for member in self.members:
                self._send(member, "run", None)
        deadline = time.monotonic() + LOOK
        while not self.notices and time.monotonic() < deadline and not stopping():
            self._listen(min(LOOK, max(0.0, deadline - time.monotonic())))
        self._listen(0.0)
        return self._take()

    def _together(self, stopping: Callable[[], bool]) -> list[Collected]:
        names, numbers = self.names, self.values.array().tolist()
        for member in self.members:
            member.asked, member.gave_up = dict(zip(names, numbers, strict=True)), False
            self._send(member, "collect", member.asked)
        while any(m.asked is not None for m in self.members):
            if stopping():
                self.orders.array()[0] = 1
            self._listen(LOOK)
        if any(m.gave_up for m in self.members):
            self.notices.clear()  # all or none
            return []
        self.notices = deque(sorted(self.notices, key=lambda notice: notice[0].index))
        return self._take()

    def _take(self) -> list[Collected]:
        """Everything that was announced."""
        taken = []
        while self.notices:
            member, place, sequence, episodes, spent = self.notices.popleft()
            chunk = None
            if place is not None:
                with suppress(MailboxError):  # stopped while it held the lock: it will be replaced
                    chunk = member.mailbox.claim(place, sequence, member.index, copy=self.copy)
            if chunk is None or place is None:
                self.lost += 1
                self.untold += episodes  # they happened all the same
                continue
            self.claimed.append((member.mailbox, place))
            self.lag += 0.05 * (self.updates - chunk.version - self.lag)
            taken.append(Collected(chunk, self.untold + episodes, *spent))
            self.untold = []
        return taken

    def settled(self) -> None:
        """What was handed over has been copied or learned from: its places are free."""
        for mailbox, place in self.claimed:
            mailbox.release(place)
        self.claimed.clear()

    def barrier(self, number: int) -> list[EpisodeEnd]:
        self.number = number
        self.settled()
        answers = self._ask("barrier", number)
        return [episode for answer in answers if answer for episode in answer]

    def land(self) -> None:
        """Actors have environments of their own."""

    def state(self) -> dict[str, np.ndarray[Any, Any]]:
        parts = [part for part in self._ask("state", None) if part]
        if len(parts) < self.actors:
            return {}
        return {key: np.concatenate([np.atleast_1d(p[key]) for p in parts]) for key in parts[0]}

    def load(self, state: dict[str, np.ndarray[Any, Any]]) -> None:
        if not state:
            return
        for i, member in enumerate(self.members):
            part = {k: np.array_split(v, self.actors)[i] for k, v in state.items()}
            self._send(member, "load", part)
        self._answers("load")

    def metrics(self) -> dict[str, float]:
        return {
            "alive": sum(m.ready and m.process.is_alive() for m in self.members),
            "restarts": self.restarts.count,
            "waiting_chunks": sum(m.mailbox.waiting for m in self.members),
            "dropped_chunks": self.lost,
            "policy_lag": self.lag,
        }

    def close(self) -> None:
        self.orders.array()[0] = 1
        for member in self.members:
            with suppress(OSError):
                member.pipe.send(("close", None))
        for end in ("wait", "terminate", "kill"):
            living = [m.process for m in self.members if m.process.is_alive()]
            if end != "wait":
                for process in living:
                    getattr(process, end)()
            deadline = time.monotonic() + CLOSE_SECONDS
            for process in living:
                process.join(max(0.0, deadline - time.monotonic()))
        for member in self.members:
            member.pipe.close()
        self.members = []

    # Talking to actors.
    def _send(self, member: Member, command: str, value: Any) -> None:
        with suppress(OSError):  # a dead one is found and replaced by `_tend`
            member.pipe.send((command, value))

    def _ask(self, command: str, value: Any) -> list[Any]:
        """One answer of every actor; None of one that was replaced meanwhile."""
        for member in self.members:
            self._send(member, command, value)
        return self._answers(command)

    def _answers(self, command: str) -> list[Any]:
        self._until(lambda: all(m.answer for m in self.members), START_SECONDS, command)
        return [member.answer.popleft() for member in self.members]

    def _until(self, done: Callable[[], bool], seconds: float, what: str) -> None:
        deadline = time.monotonic() + seconds
        while not done():
            if time.monotonic() > deadline:
                late = [m.index for m in self.members if not (m.answer or m.ready)]
                raise LudusError(
                    "E206",
                    f"no answer to {what} within {seconds:g} s",
                    where=f"actors {late}",
                    why="an environment hangs while it is made or reset",
                    fix="try it alone with  ludus check ENV",
                )
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
            if member.asked is not None:  # replaced while its chunk was due
                self._send(member, "collect", member.asked)
        elif kind == "chunk":
            member.asked = None
            self.notices.append((member, *value))
        elif kind == "nothing":
            member.asked, member.gave_up = None, True
        elif kind == "done":
            member.answer.append(value)
        elif kind == "error":
            error, text = value
            if not member.ready and member.job.generation == 0:
                raise error from ActorError(text)  # it never worked: nothing to be tried again
            self._replace(member, str(error.what), text)

    # Health.
    def _tend(self) -> None:
        now, beats = time.monotonic(), self.beats.array()
        for member in list(self.members):
            if member.process.exitcode is not None:
                self._last_words(member)
            elif member.dumping is not None:
                if now - member.dumping > DUMP_SECONDS:
                    stack = member.job.stacks
                    seen = f"; its stack is in {stack}" if stack is not None else ""
                    self._replace(member, f"no sign of life for {self._hang:g} s{seen}")
            elif now - max(beats[member.index], member.started) > self._patience(member):
                member.dumping = now
                with suppress(OSError):
                    os.kill(member.process.pid, signal.SIGUSR1)

    @property
    def _hang(self) -> float:
        return float(self.cfg.actor.hang_seconds)

    def _patience(self, member: Member) -> float:
        return self._hang if member.ready else max(START_SECONDS, self._hang)

    def _last_words(self, member: Member) -> None:
        """A dead actor may have said why."""
        if member not in self.members:
            return
        with suppress(EOFError, OSError):
            while member.pipe.poll(0):
                self._hear(member, *member.pipe.recv())
        if member in self.members:
            code = member.process.exitcode
            how = f"signal {-code}" if code < 0 else f"exit code {code}"
            self._replace(member, f"its process ended without a word ({how})")

    def _replace(self, member: Member, cause: str, traceback: str = "") -> None:
        """A fresh process with the same index, slots and epsilon, from new seeds."""
        if member.process.is_alive():
            member.process.kill()
        member.pipe.close()
        if traceback and self.crash is not None:
            name = f"actor-{member.index}-{member.job.generation}.txt"
            (self.crash / name).write_text(traceback, encoding="utf-8")
        first = cause.splitlines()[0]
        self.tell(f"actor {member.index} is replaced: {first}")
        self.notices = deque(n for n in self.notices if n[0] is not member)
        self.restarts.add(member.index, first, traceback)
        fresh = self._start(next_generation(member.job, self.number))
        fresh.asked = member.asked
        fresh.answer.append(None)  # to a question that it cannot answer any more
        self.members[member.index] = fresh


def rows_of(cfg: Config, plan: Plan) -> int:
    """Rows of a chunk: what the plan says; free actors with a replay send some more at once, since
    every chunk costs a message."""
    if cfg.actor.rows:
        return cfg.actor.rows
    replayed = isinstance(plan.view, NStep | SequenceView)
    return plan.chunk if cfg.lockstep or not replayed else max(plan.chunk, 16)


def device_of_actor(device: str, index: int) -> str:
    """Actors are spread over all GPUs."""
    if device != "cuda":
        return device
    return f"cuda:{index % max(1, torch.cuda.device_count())}"


__all__: Sequence[str] = ["ProcessFleet"]
