"""The main process's side of hogwild workers: starting, pausing, listening, replacing the dead.

It is the run's `Fleet`, but rows stay where they are made: `poll` only listens.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, nn

from ludus.collect.collector import Collected, never
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
    tidy,
    verdict,
)
from ludus.fleets.hogwild.shared_parameters import LEAVING, LIMIT, Board, Slab, Turn
from ludus.fleets.hogwild.worker import Job, News, work
from ludus.masking import hide
from ludus.process.fork_server import undisturbed
from ludus.settings.resolve import Config
from ludus.settings.sections import FLEETS
from ludus.track.atomic_files import make_folder, write_atomic
from ludus.types import EnvSpec, EpisodeEnd

LEAVE_SECONDS, LEAVE_EACH = 5.0, 0.1  # to come to rest, when the run is to end
CLOSE_SECONDS = 5.0
State = dict[str, np.ndarray[Any, Any]]


@dataclass
class Member:
    """One worker."""

    job: Job
    process: BaseProcess
    pipe: Connection
    began: int = 0  # steps of its number when it was hired
    started: float = 0.0  # by the crew's clock
    ready: bool = False  # has its environments
    paused: bool = False  # asleep until told to go; also before the first fragment
    barred: bool = True  # has done the newest barrier, as who starts after it has
    heard: Heard = field(default_factory=Heard)
    dumping: float | None = None  # since when it is asked for its stack


class Crew:
    """`make_job(index, life, barrier, env_state)` says what a worker is told."""

    capture_seconds = 0.0
    capabilities, learner_bound = FLEETS["hogwild"], None

    def __init__(
        self,
        cfg: Config,
        spec: EnvSpec,
        slab: Slab,
        turn: Turn,
        context: Any,
        make_job: Callable[[int, int, int, State], Job],
        run: Path | None = None,
    ) -> None:
        self.workers, self.slots = cfg.run.actors, cfg.env.slots
        self.spec, self.num_envs = spec, cfg.env.slots * self.workers
        self.slab, self.board, self.turn = slab, Board(slab), turn
        self.context, self.make_job = context, make_job
        self.hang, self.on_error = float(cfg.actor.hang_seconds), cfg.env.on_error
        self.restarts = Restarts(cfg.actor.restarts, cfg.actor.restart_minutes, run, self.workers)
        self.spared = Rarely()
        self.clock = looking_clock(self.hang)
        self.members: dict[int, Member] = {}  # by index; one that died may be missing
        self.lives = [0] * self.workers
        self.env_states: list[State] = [{} for _ in range(self.workers)]
        self.slowest = 0.0  # seconds that a first worker needed to get ready
        self.barriers = 0
        self.news: deque[News] = deque()
        self.loaded: State = {}
        self.running = False  # told to go, and not everybody has come to rest since
        self.starting = False
        self.over = False  # nobody is replaced any more: only a checkpoint is still to be written
        self.tell: Callable[[str], None] = lambda _: None
        self.leaving: Callable[[], bool] = never  # whether the run is to end, and soon

    # As a fleet.
    @property
    def acting(self) -> str:
        return f"hogwild, {self.workers} {'worker' if self.workers == 1 else 'workers'}"

    def publish(self, net: nn.ModuleDict, updates: int = 0) -> None:
        """The net is shared: everybody has it already."""

    def metrics(self) -> dict[str, float]:
        alive = sum(m.ready and m.process.is_alive() for m in self.members.values())
        return {"alive": alive, "restarts": self.restarts.count}

    def pids(self) -> list[int]:
        return [m.process.pid or 0 for _, m in sorted(self.members.items())]

    def poll(
        self, values: dict[str, Tensor], stopping: Callable[[], bool] = never
    ) -> list[Collected]:
        """Listen for a moment. No rows ever come."""
        self.hear(0.1)
        return []

    def barrier(self, number: int) -> list[EpisodeEnd]:
        """New episodes and generators for all, while they rest."""
        self.barriers = number
        for member in self.members.values():
            member.barred = False
            self._send(member, "barrier", number)
        self._until(lambda: self.resting and all(m.barred for m in self.members.values()))
        cut: list[EpisodeEnd] = []
        while self.news:
            cut += [episode for _, episode in self.news.popleft().episodes]
        return cut

    def state(self) -> State:
        """What outlives a barrier in the workers' environments, and optimizer statistics that only
        one of them has; the first worker's are the run's optimizer state."""
        envs = {
            f"{self._prefix(i)}{k}": v
            for i, state in enumerate(self.env_states)
            for k, v in state.items()
        }
        own = [n for n in self.slab.places if n.startswith("stat") and not n.startswith("stat0/")]
        return {**envs, **{name: self.slab.tensor(name).numpy() for name in own}}

    def load_state(self, state: State) -> None:
        self.loaded = state
        for i in range(self.workers):
            prefix = self._prefix(i)
            mine = {k[len(prefix) :]: v for k, v in state.items() if k.startswith(prefix)}
            self.env_states[i] = mine

    def _prefix(self, index: int) -> str:
        """A single worker's checkpoint looks like that of a run in one process."""
        return f"{index}/" if self.workers > 1 else ""

    def close(self) -> None:
        """All of them, whatever they are doing."""
        self.over = True
        self.board.control[LEAVING], self.board.control[LIMIT] = 1, 0
        for member in self.members.values():
            self._send(member, "close", None)
        deadline = time.monotonic() + CLOSE_SECONDS
        for member in self.members.values():
            self._drain(member.process, deadline)
        for index in list(self.members):
            self._bury(index)

    def _drain(self, process: BaseProcess, deadline: float) -> None:
        """Read what a worker still has to say: it cannot end while its pipe is full."""
        while process.is_alive() and time.monotonic() < deadline:
            for member in self.members.values():
                with suppress(EOFError, OSError):
                    while member.pipe.poll():
                        member.pipe.recv()
            process.join(0.02)

    # Starting, pausing, going on.
    @property
    def started(self) -> bool:
        return bool(self.members)

    @property
    def resting(self) -> bool:
        """Whether every worker is there and asleep; at the end, every one that is left."""
        whole = self.over or len(self.members) == self.workers
        return whole and all(m.paused for m in self.members.values())

    def start(self, barrier: int) -> None:
        self.barriers, self.starting = barrier, True
        for index in range(self.workers):
            self._hire(index)
        self._until(lambda: self.resting)
        self.starting = False

    def resume(self, limit: int) -> None:
        """Everybody goes on until the steps of all are `limit`."""
        self.board.control[LEAVING], self.board.control[LIMIT] = 0, limit
        self.running = True
        for member in self.members.values():
            self._go(member)

    def pause(self) -> None:
        """Everybody to rest after this fragment, or without it if the run is being left."""
        self.board.control[LIMIT] = 0
        self._until(lambda: self.resting)

    def _until(self, done: Callable[[], bool]) -> None:
        """Listen until then. Who hangs is replaced; who wants to leave does not wait for it."""
        left: float | None = None
        while not done():
            if self.leaving():
                self.board.control[LEAVING] = 1
                left = left or time.monotonic()
                if time.monotonic() - left > self._leave_seconds:
                    self.give_up(0.0)
                    return
            self.hear(0.05)

    @property
    def _leave_seconds(self) -> float:
        return LEAVE_SECONDS + LEAVE_EACH * self.workers

    def give_up(self, seconds: float) -> None:
        """Let everybody come to rest, end who has not by then, and replace nobody: what they share
        can be saved, without them."""
        self.over = True
        self.board.control[LIMIT], self.board.control[LEAVING] = 0, 1
        deadline = time.monotonic() + seconds
        while not self.resting and time.monotonic() < deadline:
            self.hear(0.05)
        for index in [i for i, m in self.members.items() if not (m.paused and m.barred)]:
            self._bury(index)
            if not self.starting:
                self.tell(f"actor {index} did not come to rest and was ended")

    def hear(self, seconds: float) -> None:
        """Listen for so long, or until everybody rests."""
        deadline = time.monotonic() + seconds
        while True:
            pipes = {m.pipe: i for i, m in self.members.items()}
            ready = wait(list(pipes), max(0.0, deadline - time.monotonic()))
            for pipe in ready:
                assert isinstance(pipe, Connection)
                self._take(pipes[pipe])
            self._watch()
            if self.resting:
                self.running = False
            if not ready or not self.running or time.monotonic() >= deadline:
                return

    def _hire(self, index: int) -> None:
        job = self.make_job(index, self.lives[index], self.barriers, self.env_states[index])
        with suppress(OSError):
            make_folder(job.stacks.parent)
        ours, theirs = self.context.Pipe()
        process = self.context.Process(
            target=work, args=(theirs, job), name=f"ludus-worker-{index}", daemon=True
        )
        with undisturbed():
            process.start()
        theirs.close()  # so that its death reads as the end of the pipe
        began, now = self.board.of(index, "steps"), self.clock.read()
        self.members[index] = Member(job, process, ours, began, now, heard=Heard(now))

    def _send(self, member: Member, command: str, value: Any) -> None:
        with suppress(OSError):  # it died in its sleep; the pipe's end will be heard
            member.pipe.send((command, value))

    def _go(self, member: Member) -> None:
        member.paused = False
        self._send(member, "go", None)

    def _take(self, index: int) -> None:
        member = self.members[index]
        try:
            kind, value = member.pipe.recv()
        except (EOFError, OSError):
            member.process.join(10.0)  # its pipe ends before it does; how it ended is to be told
            self._died(index, ended(member.process.exitcode))
            return
        if kind == "error":
            error, cause, text = value
            self._died(index, cause, text, error)
        elif kind == "news":
            self.news.append(value)
        elif kind == "barred":
            member.barred = True
            self.news.append(News([(0, episode) for episode in value]))
        else:
            news, self.env_states[index] = value
            self.news.append(news)
            if self.starting:
                self.slowest = max(self.slowest, self.clock.read() - member.started)
            member.paused = member.ready = True
            # A replacement that is ready while the others are under way joins them.
            if self.running and self.board.limit > self.board.steps:
                self._go(member)

    # Health.
    def _watch(self) -> None:
        """Replace who shows no sign of life."""
        now = self.clock.read()
        for index, member in list(self.members.items()) if not self.over else ():
            beat = member.heard.look(float(self.board.beats[index]), now)
            limit = self._patience(member)
            found = verdict(now, beat, member.dumping, limit)
            if found == "ask":
                member.dumping = now
                ask_for_stack(member.process.pid, member.job.stacks)
            elif found == "spare":
                member.dumping = None
                if self.spared.due(index, now):
                    self.tell(f"actor {index} was silent for {self.hang:g} s, and goes on")
            elif found == "dead":
                self._died(index, silent(limit, member.job.stacks))

    def _patience(self, member: Member) -> float:
        first = start_seconds(self.workers, self.slots) if not member.job.life else None
        return patience(self.hang, first, self.slowest, ready=member.ready)

    def _worked(self, member: Member) -> bool:
        """It or one before it has done a fragment."""
        return member.job.life > 0 or self.board.of(member.job.index, "steps") > member.began

    def _bury(self, index: int) -> Member:
        member = self.members.pop(index)
        if member.process.is_alive():
            member.process.kill()
        member.process.join(1.0)
        member.pipe.close()
        tidy(member.job.stacks)
        return member

    def _died(
        self, index: int, cause: str, text: str = "", error: LudusError | None = None
    ) -> None:
        """A fresh process with the same index, slots and epsilon, from new seeds."""
        silent_too = [i for i, m in self.members.items() if m.dumping]
        member, first = self._bury(index), cause.splitlines()[0]
        late = silent_too if member.dumping else [index]
        if self.over:
            return
        hopeless = self.starting or not self._worked(member)
        fatal = error is not None and error.code == "E401"
        if hopeless or fatal or ends_run(self.on_error, error):
            self.give_up(0.0 if hopeless else self._leave_seconds)
            raise error or never_worked(cause, late) from ActorError(text or cause)
        if text:
            with suppress(OSError):
                write_atomic(member.job.stacks.with_suffix(".txt"), hide(text).encode())
        self.tell(f"actor {index} is replaced: {first}")
        try:
            self.restarts.add(index, first, text)
        except LudusError:
            self.give_up(self._leave_seconds)
            raise
        self.lives[index] += 1
        self._hire(index)
