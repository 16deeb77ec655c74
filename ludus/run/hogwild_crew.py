"""The main process's side of hogwild workers: starting, pausing, listening, replacing the dead.

It is the run's `Fleet`, but rows stay where they are made: `poll` only listens.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

import numpy as np
from torch import Tensor, nn

from ludus.errors import LudusError
from ludus.run.collector import Collected, never
from ludus.run.hogwild_memory import LEAVING, LIMIT, Board, Slab
from ludus.run.hogwild_worker import Job, News, work
from ludus.types import EnvSpec, EpisodeEnd

START_SECONDS, START_EACH = 300.0, 5.0  # imports and environments; each more worker wants its share
STUCK_SECONDS = 120.0  # without a finished fragment, while everybody waits
CLOSE_SECONDS = 5.0
RESTARTS, WITHIN = 5, 600.0  # more deaths in so many seconds end the run
State = dict[str, np.ndarray[Any, Any]]


class WorkerError(Exception):
    """Carries the text of a worker's traceback as the cause of the error raised here."""

    def __str__(self) -> str:
        return "\n" + str(self.args[0])


@dataclass
class Member:
    process: BaseProcess
    pipe: Connection
    paused: bool = False  # asleep until told to go; also before the first fragment
    barred: bool = False
    moved: float = field(default_factory=time.monotonic)  # when its counter last changed
    steps: int = -1
    env_state: State = field(default_factory=dict)


class Crew:
    """`make_job(index, life, barrier, env_state)` says what a worker is told."""

    capture_seconds, acting = 0.0, "eager"
    tell: Callable[[str], None] = staticmethod(lambda _: None)

    def __init__(
        self,
        spec: EnvSpec,
        slots: int,
        workers: int,
        slab: Slab,
        context: Any,
        make_job: Callable[[int, int, int, State], Job],
    ) -> None:
        self.spec, self.columns, self.workers = spec, slots * workers, workers
        self.slab, self.board = slab, Board(slab)
        self.context, self.make_job = context, make_job
        self.members: dict[int, Member] = {}  # by index; one that died may be missing
        self.lives = [0] * workers
        self.barriers = 0
        self.news: deque[News] = deque()
        self.loaded: State = {}
        self.deaths: deque[float] = deque()
        self.running = False  # told to go, and not everybody has come to rest since
        self.starting = False
        self.on_death: Callable[[int, str], None] = lambda index, text: None

    # As a fleet.
    def publish(self, net: nn.ModuleDict, updates: int = 0) -> None:
        """The net is shared: everybody has it already."""

    def metrics(self) -> dict[str, float]:
        return {}

    def poll(
        self, values: dict[str, Tensor], stopping: Callable[[], bool] = never
    ) -> list[Collected]:
        """Listen for a moment. No rows ever come."""
        self.hear(0.1)
        return []

    def barrier(self, number: int) -> list[EpisodeEnd]:
        """New episodes and generators for all, while they rest."""
        self.barriers = number
        cut: list[EpisodeEnd] = []
        for member in self.members.values():
            member.barred = False
            member.pipe.send(("barrier", number))
        deadline = time.monotonic() + STUCK_SECONDS
        while not all(m.barred for m in self.members.values()):
            if time.monotonic() > deadline:
                raise self._late("a barrier", [i for i, m in self.members.items() if not m.barred])
            self.hear(0.1)
        while self.news:
            cut += [episode for _, episode in self.news.popleft().episodes]
        return cut

    def land(self) -> None:
        """A worker at rest has nothing under way."""

    def state(self) -> State:
        """What outlives a barrier in the workers' environments, and optimizer statistics that only
        one of them has; the first worker's are the run's optimizer state."""
        envs = {
            f"{self._prefix(i)}{k}": v
            for i, member in self.members.items()
            for k, v in member.env_state.items()
        }
        own = [n for n in self.slab.places if n.startswith("stat") and not n.startswith("stat0/")]
        return {**envs, **{name: self.slab.tensor(name).numpy() for name in own}}

    def load(self, state: State) -> None:
        self.loaded = state

    def _prefix(self, index: int) -> str:
        """A single worker's checkpoint looks like that of a run in one process."""
        return f"{index}/" if self.workers > 1 else ""

    def close(self) -> None:
        """All of them, whatever they are doing."""
        self.board.control[LEAVING], self.board.control[LIMIT] = 1, 0
        for member in self.members.values():
            try:
                member.pipe.send(("close", None))
            except OSError:
                continue
        for end in (None, BaseProcess.kill):
            living = [m.process for m in self.members.values() if m.process.is_alive()]
            if end is not None:
                for process in living:
                    end(process)
            deadline = time.monotonic() + CLOSE_SECONDS
            for process in living:
                self._drain(process, deadline)
        for member in self.members.values():
            member.pipe.close()
        self.members = {}

    def _drain(self, process: BaseProcess, deadline: float) -> None:
        """Read what a worker still has to say: it cannot end while its pipe is full."""
        while process.is_alive() and time.monotonic() < deadline:
            for member in self.members.values():
                try:
                    while member.pipe.poll():
                        member.pipe.recv()
                except (EOFError, OSError):
                    continue
            process.join(0.02)

    # Starting, pausing, going on.
    @property
    def started(self) -> bool:
        return bool(self.members)

    @property
    def resting(self) -> bool:
        """Whether every worker is there and asleep."""
        return len(self.members) == self.workers and all(m.paused for m in self.members.values())

    def start(self, barrier: int) -> None:
        self.barriers, self.starting = barrier, True
        for index in range(self.workers):
            self._hire(index)
        deadline = time.monotonic() + START_SECONDS + START_EACH * self.workers
        while not self.resting:
            if time.monotonic() > deadline:
                late = [i for i, m in self.members.items() if not m.paused]
                raise self._late("their start", late)
            self.hear(0.5)
        self.starting = False

    def resume(self, limit: int) -> None:
        """Everybody goes on until the steps of all are `limit`."""
        self.board.control[LEAVING], self.board.control[LIMIT] = 0, limit
        self.running = True
        for index in list(self.members):
            self._go(index)

    def pause(self, *, leaving: bool = False) -> None:
        """Everybody to rest after this fragment, or, `leaving`, without it."""
        self.board.control[LIMIT] = 0
        self.board.control[LEAVING] = int(leaving)
        while not self.resting and self.members:
            self.hear(0.05)

    def hear(self, seconds: float) -> None:
        """Listen for so long, or until everybody rests."""
        deadline = time.monotonic() + seconds
        while True:
            pipes = {m.pipe: i for i, m in self.members.items()}
            ready = wait(list(pipes), max(0.0, deadline - time.monotonic()))
            for pipe in ready:
                assert isinstance(pipe, Connection)
                self._take(pipes[pipe])
            self._notice_the_stuck()
            if self.resting:
                self.running = False
            if not ready or not self.running or time.monotonic() >= deadline:
                return

    def _hire(self, index: int) -> None:
        prefix = self._prefix(index)
        state = {k[len(prefix) :]: v for k, v in self.loaded.items() if k.startswith(prefix)}
        job = self.make_job(index, self.lives[index], self.barriers, state)
        ours, theirs = self.context.Pipe()
        process = self.context.Process(
            target=work, args=(theirs, job), name=f"ludus-hogwild-{index}", daemon=True
        )
        process.start()
        theirs.close()  # so that its death reads as the end of the pipe
        self.members[index] = Member(process, ours)

    def _go(self, index: int) -> None:
        member = self.members[index]
        member.paused, member.moved = False, time.monotonic()
        try:
            member.pipe.send(("go", None))
        except OSError:  # it died in its sleep; the pipe's end will be heard
            return

    def _take(self, index: int) -> None:
        member = self.members[index]
        try:
            kind, value = member.pipe.recv()
        except (EOFError, OSError):
            self._died(index, None, *_how(member.process))
            return
        if kind == "error":
            self._died(index, *value)
        elif kind == "news":
            self.news.append(value)
        elif kind == "barred":
            member.barred = True
            self.news.append(News([(0, episode) for episode in value]))
        else:
            news, member.env_state = value
            self.news.append(news)
            member.paused = True
            # A replacement that is ready while the others are under way joins them.
            if self.running and self.board.limit > self.board.steps:
                self._go(index)

    def _notice_the_stuck(self) -> None:
        now, counts = time.monotonic(), self.board.counts[:, 0]
        waiting = self.running and not self.starting and self.board.limit <= self.board.steps
        for index, member in list(self.members.items()):
            if member.steps != counts[index] or not waiting or member.paused:
                member.steps, member.moved = int(counts[index]), now
            elif now - member.moved > STUCK_SECONDS:
                member.process.kill()
                what = f"no fragment was finished in {STUCK_SECONDS:g} s"
                self._died(index, None, what, "")

    # Deaths.
    def _died(self, index: int, error: LudusError | None, cause: str, text: str) -> None:
        member = self.members.pop(index)
        member.pipe.close()
        if self.starting or (error is not None and error.code == "E401"):
            self._rest_of_us()
            raise error or self._failed(cause) from WorkerError(text or cause)
        now = time.monotonic()
        self.deaths.append(now)
        while now - self.deaths[0] > WITHIN:
            self.deaths.popleft()
        if len(self.deaths) > RESTARTS:
            self._rest_of_us()
            raise self._too_many(index, cause) from WorkerError(text or cause)
        self.on_death(index, f"{cause}\n{text}".rstrip())
        self.lives[index] += 1
        self._hire(index)

    def _rest_of_us(self) -> None:
        """Bring the others to rest, so that what they share can be saved."""
        self.board.control[LIMIT] = 0
        deadline = time.monotonic() + CLOSE_SECONDS
        for member in self.members.values():
            while not (member.paused or self.starting) and time.monotonic() < deadline:
                try:
                    if member.pipe.poll(0.05):
                        kind, value = member.pipe.recv()
                        member.paused = kind in ("paused", "error")
                        self.news += [value[0]] if kind == "paused" else []
                except (EOFError, OSError):
                    member.paused = True

    def _failed(self, cause: str) -> LudusError:
        return LudusError(
            "E206",
            f"a worker could not start: {cause}",
            why="the environment or the network cannot be made in another process",
            fix="try it in this process with  run.fleet=inline run.actors=1",
        )

    def _too_many(self, index: int, cause: str) -> LudusError:
        return LudusError(
            "E206",
            f"workers died {len(self.deaths)} times within {WITHIN / 60:g} minutes: {cause}",
            where=f"actor {index}",
            why="the same thing fails again and again",
            fix="see log.txt in the run directory, then  ludus resume RUN",
        )

    def _late(self, what: str, late: list[int]) -> LudusError:
        return LudusError(
            "E206",
            f"no answer to {what} from actors {', '.join(map(str, late))}",
            why="an environment hangs, or the machine has too few cores for so many",
            fix="fewer  run.actors",
        )


def _how(process: BaseProcess) -> tuple[str, str]:
    process.join(1.0)
    code = process.exitcode
    how = f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"
    return f"it died without a word ({how})", ""
