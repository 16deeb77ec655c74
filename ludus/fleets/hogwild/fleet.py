"""The hogwild fleet: the main process starts, pauses and replaces the workers.

Workers learn from their own rows and send none: `poll` only receives messages.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from ludus.collect.collector import Collected, never
from ludus.errors import LudusError
from ludus.fleets.base import State
from ludus.fleets.health import ActorSupervisor, Reported, hung
from ludus.fleets.hogwild.shared_parameters import LEAVING, LIMIT, Board, TryLock
from ludus.fleets.hogwild.worker import Job, WorkerReport, worker_main
from ludus.process.shared_tensors import SharedTensors
from ludus.process.supervisor import Child, close_all, ready
from ludus.settings.resolve import Config
from ludus.settings.sections import FLEETS
from ludus.types import EnvSpec, EpisodeEnd

LEAVE_SECONDS, LEAVE_EACH = 5.0, 0.1  # time to pause when the run ends: base, per worker
CLOSE_SECONDS = 5.0


@dataclass(kw_only=True)
class Member(Child):
    """One worker process, as the main process sees it."""

    job: Job
    first_step: int = 0  # steps of its index at its start
    ready: bool = False  # its environments exist
    paused: bool = False  # waits for "go"; also before the first fragment
    barrier_done: bool = True  # has executed the newest barrier, or started after it


class HogwildFleet(ActorSupervisor):
    """The workers of a run. `make_job(index, generation, barrier, env_state)` makes the arguments
    of a worker."""

    capture_seconds = 0.0
    capabilities, learner_bound = FLEETS["hogwild"], None

    def __init__(
        self,
        cfg: Config,
        spec: EnvSpec,
        slab: SharedTensors,
        step_lock: TryLock,
        context: Any,
        make_job: Callable[[int, int, int, State], Job],
        run: Path | None = None,
    ) -> None:
        super().__init__(cfg, run)
        self.workers = self.actors
        self.leave_seconds = LEAVE_SECONDS + LEAVE_EACH * self.workers
        self.together = cfg.run.shared_statistics  # one set of optimizer statistics for all workers
        self.spec, self.num_envs = spec, cfg.env.num_envs * self.workers
        self.slab, self.board, self.step_lock = slab, Board(slab), step_lock
        self.context, self.make_job = context, make_job
        self.members: dict[int, Member] = {}  # by index; a dead worker may be missing
        self.env_states: list[State] = [{} for _ in range(self.workers)]
        self.barriers = 0
        self.reports: deque[WorkerReport] = deque()
        self.loaded: State = {}
        self.running = False  # "go" was sent, and not every worker has paused since
        self.starting = False
        self.leaving: Callable[[], bool] = never  # whether the run must end soon

    # Methods of the Fleet protocol.
    @property
    def acting(self) -> str:
        return f"hogwild, {self.workers} {'worker' if self.workers == 1 else 'workers'}"

    def publish(self, net: nn.ModuleDict, updates: int = 0) -> None:
        """Do nothing: all workers share the network."""

    def metrics(self) -> dict[str, float]:
        alive = sum(m.ready and m.process.is_alive() for m in self.members.values())
        return {"alive": alive, "restarts": self.restarts.count}

    def pids(self) -> list[int]:
        return [m.process.pid or 0 for _, m in sorted(self.members.items())]

    def poll(
        self, values: dict[str, Tensor], stopping: Callable[[], bool] = never
    ) -> list[Collected]:
        """Receive messages for a moment. Return no chunks."""
        self.receive(0.1)
        return []

    def barrier(self, number: int) -> list[EpisodeEnd]:
        """Start new episodes and reseed all generators, while all workers are paused."""
        self.barriers = number
        for member in self.members.values():
            member.barrier_done = False
            member.send(("barrier", number))
        self._until(lambda: self.all_paused and all(m.barrier_done for m in self.members.values()))
        cut: list[EpisodeEnd] = []
        while self.reports:
            cut += [episode for _, episode in self.reports.popleft().episodes]
        return cut

    def state(self) -> State:
        """Return the environment state that is kept across a barrier, and the optimizer statistics
        of all workers but the first, whose statistics are the run's optimizer state."""
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
        """The key prefix of a worker; empty for a single worker, as in an inline run."""
        return f"{index}/" if self.workers > 1 else ""

    def close(self) -> None:
        """End all workers, in any state."""
        self.over = True
        self.board.control[LEAVING], self.board.control[LIMIT] = 1, 0
        close_all(list(self.members.values()), CLOSE_SECONDS)
        self.members.clear()

    # Start, pause, resume.
    @property
    def all_paused(self) -> bool:
        """Whether every worker exists and is paused; at the end, every remaining worker."""
        whole = self.over or len(self.members) == self.workers
        return whole and all(m.paused for m in self.members.values())

    def start(self, barrier: int) -> None:
        self.barriers, self.starting = barrier, True
        for index in range(self.workers):
            self._start_worker(index, 0)
        self._until(lambda: self.all_paused)
        self.starting = False

    def resume(self, limit: int) -> None:
        """Let all workers continue until the sum of their steps is `limit`."""
        self.board.control[LEAVING], self.board.control[LIMIT] = 0, limit
        self.running = True
        for member in self.members.values():
            self._go(member)

    def pause(self) -> None:
        """Pause all workers after their fragments, or at once if the run must end."""
        self.board.control[LIMIT] = 0
        self._until(lambda: self.all_paused)

    def _until(self, done: Callable[[], bool]) -> None:
        """Receive messages until `done`. Replace hung workers; do not wait for them if the run must
        end."""
        left: float | None = None
        while not done():
            if self.leaving():
                self.board.control[LEAVING] = 1
                left = left or time.monotonic()
                if time.monotonic() - left > self.leave_seconds:
                    self.give_up(0.0)
                    return
            self.receive(0.05)

    def give_up(self, seconds: float) -> None:
        """Wait up to `seconds` for workers to pause, kill the others, and replace none. The shared
        state can be saved without them."""
        self.over = True
        self.board.control[LIMIT], self.board.control[LEAVING] = 0, 1
        deadline = time.monotonic() + seconds
        while not self.all_paused and time.monotonic() < deadline:
            self.receive(0.05)
        for index in [i for i, m in self.members.items() if not (m.paused and m.barrier_done)]:
            self.members.pop(index).end()
            if not self.starting:
                self.warn(f"actor {index} did not pause and was killed")

    def receive(self, seconds: float) -> None:
        """Receive messages for `seconds`, or until every worker has paused."""
        deadline = time.monotonic() + seconds
        while True:
            found = ready(self.members.values(), max(0.0, deadline - time.monotonic()))
            for member in found:
                self._take(member)
            self._check_health()
            if self.all_paused:
                self.running = False
            if not found or not self.running or time.monotonic() >= deadline:
                return

    def _start_worker(self, index: int, generation: int) -> None:
        job = self.make_job(index, generation, self.barriers, self.env_states[index])
        self.members[index] = Member.start(
            self.context, worker_main, (job,), name=f"worker-{index}", now=self.clock.read(),
            index=index, stacks=job.stacks, job=job, first_step=self.board.of(index, "steps"),
        )  # fmt: skip

    def _go(self, member: Member) -> None:
        member.paused = False
        member.send(("go", None))  # `_take` handles a dead worker

    def _take(self, member: Member) -> None:
        index = member.index
        try:
            kind, value = member.pipe.recv()
        except (EOFError, OSError):
            self._died(index, (None, member.exit_cause(), ""))
            return
        if kind == "error":
            self._died(index, value)
        elif kind == "report":
            self.reports.append(value)
        elif kind == "barrier_done":
            member.barrier_done = True
            self.reports.append(WorkerReport([(0, episode) for episode in value]))
        else:
            report, self.env_states[index] = value
            self.reports.append(report)
            if self.starting:
                self.time_start(member)
            member.paused = member.ready = True
            # A replacement that is ready while the others run joins them.
            if self.running and self.board.limit > self.board.steps:
                self._go(member)

    # Health.
    def _check_health(self) -> None:
        """Replace hung workers."""
        now = self.clock.read()
        for index, member in list(self.members.items()) if not self.over else ():
            limit = self._timeout(member)
            if self.hangs(member, float(self.board.beats[index]), now, limit):
                self._died(index, hung(member, limit))

    def _timeout(self, member: Member) -> float:
        return self.timeout(first=not member.job.generation, ready=member.ready)

    def _worked(self, member: Member) -> bool:
        """Whether this worker or a predecessor has finished a fragment."""
        return member.job.generation > 0 or self.board.of(member.index, "steps") > member.first_step

    def _died(self, index: int, failure: Reported) -> None:
        """Start a fresh process with the same index, environments and epsilon, from new seeds."""
        hung_too = [i for i, m in self.members.items() if m.dump_asked]
        member, error = self.members.pop(index), failure[0]
        member.end()
        if self.over:
            return
        at_start = self.starting or not self._worked(member)
        last = at_start or (error is not None and error.code == "E401")
        late = hung_too if member.dump_asked else [index]
        try:
            self.count_failure(member, failure, late, last=last)
        except LudusError:
            self.give_up(0.0 if at_start else self.leave_seconds)
            raise
        self._start_worker(index, member.job.generation + 1)
