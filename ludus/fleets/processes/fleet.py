"""The processes fleet: N actors in separate processes (actor.py). This side starts them, receives
their messages, takes their chunks, and replaces hung and dead ones.

In lockstep every iteration requests one chunk from each actor, collected with the newest weights,
and returns them in the order of the actors: results do not depend on timing. Free actors collect
as fast as they can, and the learner takes the chunks that have arrived. In both modes the replay
ratio of the store decides how many updates follow.
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
import torch
from torch import Tensor, nn

from ludus.collect.collector import Collected, never
from ludus.compute.probe_act import extras_of
from ludus.contract import Algorithm, Episode, NStep, Plan, Unroll, stored_state
from ludus.envs.backends.workers import shipped_spec
from ludus.envs.render.screenshots import Camera
from ludus.errors import LudusError
from ludus.fleets.actor_core import device_of_actor, planned_mode
from ludus.fleets.base import State, join_state, split_state
from ludus.fleets.health import ActorSupervisor, Reported, hung, remove_empty_dumps, stack_file
from ludus.fleets.processes.actor import CONTROL, Job, Shared, actor_main
from ludus.fleets.processes.transport import ChunkLayout, Mailbox, MailboxError, WeightsBoard
from ludus.process.fork_server import process_context
from ludus.process.shared_tensors import SharedTensors
from ludus.process.supervisor import Child, close_all, ready
from ludus.run.compatibility import rows_of
from ludus.settings.resolve import Config
from ludus.settings.sections import FLEETS
from ludus.types import Ctx, EnvSpec, EpisodeEnd

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


class ProcessFleet(ActorSupervisor):
    """N actor processes. Actor i has the i-th part of the `num_envs` environments."""

    number = 0  # of the newest barrier
    asking = False  # waiting for one answer from each actor
    running = False  # free actors were asked to collect
    capture_seconds = 0.0  # of the slowest: actors capture in parallel
    updates = 0  # of the learner
    version = -1  # updates of the newest published weights
    lag = 0.0  # running mean of updates between acting and arrival
    lost = 0  # chunks that were dropped, overwritten or never announced

    def __init__(
        self,
        algorithm: Algorithm,
        spec: EnvSpec,
        plan: Plan,
        net: nn.ModuleDict,
        cfg: Config,
        *,
        precision: str = "fp32",
        capture: str = "auto",
        order: str = "",
        overlap: bool = False,
        crash: Path | None = None,
        camera: Camera | None = None,
        first: int = 0,
        all_actors: int = 0,
    ) -> None:
        """`first` of `all_actors` belong to the learners before this one (run.learners)."""
        super().__init__(cfg, crash.parent if crash is not None else None)
        self.cfg, self.names, self.crash = cfg, (*plan.schedules, "warming"), crash
        self.spec, self.num_envs = spec, self.actors * cfg.env.num_envs
        self.capabilities = replace(FLEETS["processes"], parallel=self.actors)
        self.lockstep, self.publish_every = cfg.lockstep, cfg.actor.publish_every
        # A ring copies its input rows; a queue keeps them and needs a copy.
        self.copy = isinstance(plan.view, Unroll | Episode)
        rows = self._share_memory(algorithm, plan, net)
        remove_empty_dumps(crash)
        self.fell_back: list[str] = []  # unexpected modes of acting, with reasons
        self.notices: deque[Notice] = deque()
        self.members: list[Member] = []
        self.kept: list[State] = [{} for _ in range(self.actors)]  # the newest that is known
        self.late_episodes: list[EpisodeEnd] = []  # of lost chunks
        self.claimed: list[tuple[Mailbox, int]] = []
        device = "cpu" if cfg.actor.device == "auto" else str(cfg.actor.device)
        self.planned = planned_mode(capture, device)
        self.start([
            Job(
                index=i, actors=self.actors, env=cfg.env, algorithm=algorithm, rows=rows,
                seed=cfg.run.seed, device=device_of_actor(device, first + i), precision=precision,
                capture=capture, names=self.names, pipelined=overlap and self.lockstep,
                remembers=self.layout.remembers, order=order, camera=camera if i == 0 else None,
                lockstep=self.lockstep, pull_every=cfg.actor.pull_every,
                registered=shipped_spec(cfg.env), first=first, all_actors=all_actors,
            )
            for i in range(self.actors)
        ])  # fmt: skip

    def _share_memory(self, algorithm: Algorithm, plan: Plan, net: nn.ModuleDict) -> int:
        """Make the memory that all actors share. Return the rows per chunk."""
        cfg, n = self.cfg, self.cfg.env.num_envs
        self.context = process_context("ludus.fleets.processes.actor")
        control = np.zeros(self.actors), np.zeros(len(self.names)), np.zeros(1, np.int64)
        self.control = SharedTensors.like(dict(zip(CONTROL, control, strict=True)), self.context)
        self.beats, self.values, self.orders = map(self.control.array, CONTROL)
        self.board = WeightsBoard(net, self.context)
        ctx = Ctx(torch.Generator().manual_seed(0), self.spec, actors=self.actors)
        state = stored_state(algorithm.begin(n, ctx))
        rows = rows_of(cfg, plan, state)
        waits = self.lockstep or cfg.actor.overflow == "wait"
        self.layout = ChunkLayout.of(
            self.spec, extras_of(algorithm, net, self.spec), state, rows, n,
            valued=_valued(plan, rows),
            # Unrolls may follow a gap in the stream. Replay never samples across a gap.
            before=not waits and isinstance(plan.view, Unroll),
        )  # fmt: skip
        return rows

    @property
    def acting(self) -> str:
        processes = "1 process" if self.actors == 1 else f"{self.actors} processes"
        words = [f"in {processes}", "lockstep" if self.lockstep else "free"]
        if self.fell_back:
            words += [f"{'some ' if self.actors > 1 else ''}{mode}" for mode in self.fell_back]
        elif self.planned:
            words.append(self.planned)
        return ", ".join(words)

    @property
    def learner_bound(self) -> bool | None:
        """Whether chunks are dropped because the learner is too slow. Chunks lost with a dead actor
        do not count."""
        return None if self.lockstep else any(m.mailbox.dropped for m in self.members)

    # Methods that the loop calls.
    def publish(self, net: nn.ModuleDict, updates: int = 0) -> None:
        self.release()
        due = self.version < 0 or self.lockstep or updates - self.version >= self.publish_every
        if due and (self.lockstep or updates != self.version):
            self.board.publish(net, updates)
            self.version = updates
        self.updates = updates

    def poll(
        self, values: dict[str, Tensor], stopping: Callable[[], bool] = never
    ) -> list[Collected]:
        self.release()
        self.values[:] = [float(values[name]) for name in self.names]
        if self.lockstep:
            return self._together(stopping)
        if not self.running:
            self.running = True
            for member in self.members:
                member.send(("run", None))
        deadline = time.monotonic() + LOOK
        while not self.notices and time.monotonic() < deadline and not stopping():
            self._listen(min(LOOK, max(0.0, deadline - time.monotonic())))
        self._listen(0.0)
        return self._take()

    def _together(self, stopping: Callable[[], bool]) -> list[Collected]:
        names, numbers = self.names, self.values.tolist()
        for member in self.members:
            member.asked, member.gave_up = dict(zip(names, numbers, strict=True)), False
            if member.ready:  # otherwise `_handle` asks it once it is ready
                member.send(("collect", member.asked))
        while any(m.asked is not None for m in self.members):
            if stopping():
                self.orders[0] = 1
            self._listen(LOOK)
        if any(m.gave_up for m in self.members):
            self.notices.clear()  # all actors or none
            return []
        self.notices = deque(sorted(self.notices, key=lambda notice: notice[0].index))
        return self._take()

    def _take(self) -> list[Collected]:
        """Read the announced chunks."""
        taken = []
        while self.notices:
            member, place, sequence, episodes, spent = self.notices.popleft()
            chunk = None
            if place is not None:
                with suppress(MailboxError):  # the actor was stopped while it held the lock
                    chunk = member.mailbox.claim(place, sequence, member.index, copy=self.copy)
            if chunk is None or place is None:
                self.lost += 1
                self.late_episodes += episodes  # reported with the next chunk
                continue
            self.claimed.append((member.mailbox, place))
            self.lag += 0.05 * (self.updates - chunk.version - self.lag)
            taken.append(Collected(chunk, self.late_episodes + episodes, *spent))
            self.late_episodes = []
        return taken

    def release(self) -> None:
        """Free the places of returned chunks: they have been copied or used."""
        for mailbox, place in self.claimed:
            mailbox.release(place)
        self.claimed.clear()

    def barrier(self, number: int) -> list[EpisodeEnd]:
        self.number = number
        self.release()
        answers = self._ask("barrier", number)
        return [episode for answer in answers if answer for episode in answer]

    def state(self) -> State:
        answers = self._ask("state", None)
        self.kept = [new or old for new, old in zip(answers, self.kept, strict=True)]
        return join_state(self.kept)

    def load_state(self, state: State) -> None:
        if not state:
            return
        self.kept = split_state(state, self.actors)
        for member, part in zip(self.members, self.kept, strict=True):
            member.send(("load", part))
        self._answers("load")

    def metrics(self) -> dict[str, float]:
        return {
            "alive": sum(m.ready and m.process.is_alive() for m in self.members),
            "restarts": self.restarts.count,
            "waiting_chunks": sum(m.mailbox.waiting for m in self.members),
            "dropped_chunks": self.lost,
            "policy_lag": self.lag,
        }

    # Processes.
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
        actor = self.cfg.actor
        mailbox = Mailbox(self.layout, actor.buffers, actor.overflow, self.context)
        shared = Shared(self.board, mailbox, self.control)
        self.beats[job.index] = time.monotonic()
        member = Member.start(
            self.context, actor_main, (self.cfg.run.imports, shared), name=f"actor-{job.number}",
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
    def _ask(self, command: str, value: Any) -> list[Any]:
        """Return one answer per actor: None from an actor that was replaced meanwhile, and from all
        if the run is over and only the checkpoint is left to write."""
        if self.over:
            return [None] * self.actors
        for member in self.members:
            member.send((command, value))
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
            if not member.reset:
                self.time_start(member)
            if member.asked is not None:  # replaced while a chunk was requested
                member.send(("collect", member.asked))
        elif kind == "chunk":
            first = not (member.worked or member.job.generation)
            if first and member.job.device != "cpu":
                self.time_start(member)  # includes graph capture
            member.asked, member.worked, member.last_sequence = None, True, value[1]
            self.notices.append((member, *value))
        elif kind == "nothing":
            member.asked, member.gave_up = None, True
        elif kind == "acting":
            mode, seconds = value
            self.capture_seconds = max(self.capture_seconds, seconds)
            if mode not in (self.planned, *self.fell_back):
                self.fell_back.append(mode)
        elif kind == "kept":
            self.kept[member.index] = value
        elif kind == "done":
            member.answer.append(value)
        elif kind == "error":
            self._replace(member, value)

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
        """Start a fresh process with the same index, environments and epsilon, from new seeds."""
        late = [m.index for m in self.members if member.dump_asked and m.dump_asked]
        last = not member.worked and member.job.generation == 0
        try:
            self.count_failure(member, failure, late or [member.index], last=last)
        except LudusError:
            self.over = True  # replace no more actors
            raise
        member.end(0.0)  # the learner does not wait for a process that is being killed
        # Announced chunks are complete in shared memory and are still taken.
        self.lost += member.mailbox.waiting_after(member.last_sequence)
        generation = member.job.generation + 1
        kept = self.kept[member.index]
        job = replace(member.job, generation=generation, barrier=self.number, kept=kept)
        fresh = self._start(job)
        fresh.asked, fresh.answer = member.asked, member.answer
        if self.asking and not fresh.answer:
            fresh.answer.append(None)  # it did not receive the request
        self.members[member.index] = fresh


def _valued(plan: Plan, rows: int) -> int:
    """Number of first priorities per chunk, including earlier rows whose windows end in it."""
    if plan.actor_priorities and isinstance(plan.view, NStep):
        return plan.view.n - 1 + rows
    return 0
