"""Fleets of actors outside this process, whatever carries their chunks: requests and answers, the
order of chunks in lockstep, and the replacement of hung and dead actors.

In lockstep every iteration requests one chunk from each actor, collected with the newest weights,
and returns them in the order of the actors: results do not depend on timing. Free actors collect
as fast as they can, and the learner takes the chunks that have arrived. In both modes the replay
ratio of the store decides how many updates follow.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn

from ludus.collect.collector import Collected, never
from ludus.compute.probe_act import extras_of
from ludus.contract import Algorithm, NStep, Plan, Unroll, stored_state
from ludus.envs.backends.workers import shipped_spec
from ludus.envs.render.screenshots import Camera
from ludus.errors import LudusError
from ludus.fleets.actor_core import ActorJob, device_of_actor, planned_mode
from ludus.fleets.base import State, join_state, split_state
from ludus.fleets.health import ActorSupervisor, Reported, hung, remove_empty_dumps, stack_file
from ludus.fleets.member import Member
from ludus.replay.chunk_layout import ChunkLayout
from ludus.run.compatibility import rows_of
from ludus.settings.resolve import Config
from ludus.types import Chunk, Ctx, EnvSpec, EpisodeEnd

LOOK = 0.2  # seconds between health checks while waiting

M = TypeVar("M", bound=Member)
# (actor, what `_claim` needs, sequence of the chunk, ended episodes, seconds spent)
Notice = tuple[M, Any, int, list[EpisodeEnd], Any]


class ActorFleet(ActorSupervisor, Generic[M]):
    """N actors. Actor i has the i-th part of the `num_envs` environments."""

    number = 0  # of the newest barrier
    asking = False  # waiting for one answer from each actor
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
        self.capabilities = replace(cfg.run.capabilities, parallel=self.actors)
        self.lockstep, self.publish_every = cfg.lockstep, cfg.actor.publish_every
        rows = self._lay_out(algorithm, plan, net)
        remove_empty_dumps(crash)
        self.fell_back: list[str] = []  # unexpected modes of acting, with reasons
        self.notices: deque[Notice[M]] = deque()
        self.members: list[M] = []
        self.kept: list[State] = [{} for _ in range(self.actors)]  # the newest that is known
        self.late_episodes: list[EpisodeEnd] = []  # of lost chunks
        self._prepare(plan, net)
        device = "cpu" if cfg.actor.device == "auto" else str(cfg.actor.device)
        self.planned = planned_mode(capture, device)
        self.start([
            ActorJob(
                index=i, actors=self.actors, env=cfg.env, algorithm=algorithm, rows=rows,
                seed=cfg.run.seed, device=device_of_actor(device, first + i), precision=precision,
                capture=capture, names=self.names, pipelined=overlap and self.lockstep,
                remembers=self.layout.remembers, order=order, camera=camera if i == 0 else None,
                registered=shipped_spec(cfg.env), first=first, all_actors=all_actors,
            )
            for i in range(self.actors)
        ])  # fmt: skip

    def _lay_out(self, algorithm: Algorithm, plan: Plan, net: nn.ModuleDict) -> int:
        """Lay out the chunks. Return their rows."""
        cfg, n = self.cfg, self.cfg.env.num_envs
        ctx = Ctx(torch.Generator().manual_seed(0), self.spec, actors=self.actors)
        state = stored_state(algorithm.begin(n, ctx))
        rows = rows_of(cfg, plan, state)
        # Unrolls may follow a gap in the stream. Replay never samples across a gap.
        before = not self._waits() and isinstance(plan.view, Unroll)
        self.layout = ChunkLayout.of(
            self.spec, extras_of(algorithm, net, self.spec), state, rows, n,
            valued=valued_rows(plan, rows), before=before,
        )  # fmt: skip
        return rows

    # Methods of each transport.
    def _prepare(self, plan: Plan, net: nn.ModuleDict) -> None:
        """Make what all actors share."""
        raise NotImplementedError

    def _waits(self) -> bool:
        """Whether actors wait for the learner, so that no chunk is dropped."""
        raise NotImplementedError

    def _start(self, job: ActorJob) -> M:
        raise NotImplementedError

    def _enough(self) -> bool:
        """Whether enough actors are ready for the training to begin."""
        return all(m.ready for m in self.members)

    def _absent(self, member: M) -> bool:
        """Whether requests go on without this actor."""
        return False

    def _update_weights(self, net: nn.ModuleDict, updates: int) -> None:
        raise NotImplementedError

    def _set_values(self, values: list[float]) -> None:
        """Note the schedules' newest values, for free actors."""
        raise NotImplementedError

    def _run_free(self) -> None:
        """Let free actors collect."""
        raise NotImplementedError

    def _leave(self) -> None:
        """Ask the actors to give up incomplete chunks."""
        raise NotImplementedError

    def _ready(self, seconds: float) -> Sequence[M]:
        """Wait up to `seconds` for actors that have a message or have died."""
        raise NotImplementedError

    def _beat(self, member: M, now: float) -> float:
        """Return a number that changes with each heartbeat of the actor."""
        raise NotImplementedError

    def _claim(self, member: M, place: Any, sequence: int) -> Chunk | None:
        """Return an announced chunk; None if it is lost."""
        raise NotImplementedError

    def _count_lost(self, member: M) -> None:
        """Count the chunks that a dead actor did not announce."""

    def release(self) -> None:
        """Free the memory of returned chunks: they have been copied or used."""

    @property
    def learner_bound(self) -> bool | None:
        raise NotImplementedError

    @property
    def where(self) -> str:
        """Where the actors are, for reports."""
        return "1 process" if self.actors == 1 else f"{self.actors} processes"

    @property
    def acting(self) -> str:
        words = [f"in {self.where}", "lockstep" if self.lockstep else "free"]
        if self.fell_back:
            words += [f"{'some ' if self.actors > 1 else ''}{mode}" for mode in self.fell_back]
        elif self.planned:
            words.append(self.planned)
        return ", ".join(words)

    # Methods that the loop calls.
    def publish(self, net: nn.ModuleDict, updates: int = 0) -> None:
        self.release()
        due = self.version < 0 or self.lockstep or updates - self.version >= self.publish_every
        if due and (self.lockstep or updates != self.version):
            self._update_weights(net, updates)
            self.version = updates
        self.updates = updates

    def poll(
        self, values: dict[str, Tensor], stopping: Callable[[], bool] = never
    ) -> list[Collected]:
        self.release()
        numbers = [float(values[name]) for name in self.names]
        self._set_values(numbers)
        if self.lockstep:
            return self._together(dict(zip(self.names, numbers, strict=True)), stopping)
        self._run_free()
        deadline = time.monotonic() + LOOK
        while not self.notices and time.monotonic() < deadline and not stopping():
            self._listen(min(LOOK, max(0.0, deadline - time.monotonic())))
        self._listen(0.0)
        return self._take()

    def _together(self, values: dict[str, float], stopping: Callable[[], bool]) -> list[Collected]:
        for member in self.members:
            member.asked, member.gave_up = values, False
            if member.ready:  # otherwise `_handle` asks it once it is ready
                member.send(("collect", member.asked))
        while any(m.asked is not None for m in self.members):
            if stopping():
                self._leave()
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
            chunk = self._claim(member, place, sequence)
            if chunk is None:
                self.lost += 1
                self.late_episodes += episodes  # reported with the next chunk
                continue
            self.lag += 0.05 * (self.updates - chunk.version - self.lag)
            taken.append(Collected(chunk, self.late_episodes + episodes, *spent))
            self.late_episodes = []
        return taken

    def barrier(self, number: int) -> list[EpisodeEnd]:
        self.number = number
        self.release()
        answers = self._ask("barrier", [number] * self.actors)
        return [episode for answer in answers if answer for episode in answer]

    def state(self) -> State:
        answers = self._ask("state", [None] * self.actors)
        self.kept = [new or old for new, old in zip(answers, self.kept, strict=True)]
        return join_state(self.kept)

    def load_state(self, state: State) -> None:
        if state:
            self.kept = split_state(state, self.actors)
            self._ask("load", self.kept)

    def metrics(self) -> dict[str, float]:
        return {
            "alive": sum(m.ready and not m.exited for m in self.members),
            "restarts": self.restarts.count,
            "dropped_chunks": self.lost,
            "policy_lag": self.lag,
        }

    # Processes.
    def start(self, jobs: list[ActorJob]) -> None:
        """Start all actors and wait until each has its environments."""
        try:
            for job in jobs:
                self.members.append(self._start(job))
            self._until(self._enough)
        except BaseException:
            self.close()
            raise

    def _stacks(self, job: ActorJob) -> Path | None:
        """The file for the stack dump of an actor; each generation has its own."""
        return self.crash and stack_file(self.crash, job.index, job.generation)

    def close(self) -> None:
        raise NotImplementedError

    def pids(self) -> list[int]:
        return [m.pid for m in self.members if m.pid is not None]

    # Messages.
    def _ask(self, command: str, values: Sequence[Any]) -> list[Any]:
        """Return one answer per actor: None from an actor that was replaced meanwhile, and from all
        if the run is over and only the checkpoint is left to write."""
        if self.over:
            return [None] * self.actors
        for member, value in zip(self.members, values, strict=True):
            if self._absent(member):
                member.answer.append(None)
            else:
                member.send((command, value))
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
        for member in self._ready(seconds):
            for message in member.messages():
                self._handle(member, *message)
        self._check_health()

    def _handle(self, member: M, kind: str, value: Any) -> None:
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
            if member.exited:
                self._died(member)
                continue
            limit = self._timeout(member)
            if self.hangs(member, self._beat(member, now), now, limit):
                self._replace(member, hung(member, limit))

    def _timeout(self, member: M) -> float:
        # On a GPU the first rows arrive after library loading and graph capture.
        ready = member.reset and (member.worked or member.job.device == "cpu")
        return self.timeout(first=member.job.generation == 0, ready=ready)

    def _died(self, member: M) -> None:
        """Replace a dead actor, after reading the error that it may have sent."""
        for message in member.messages():
            self._handle(member, *message)
        if member in self.members:
            self._replace(member, (None, member.exit_cause(), ""))

    def _replace(self, member: M, failure: Reported) -> None:
        """Start a fresh process with the same index, environments and epsilon, from new seeds."""
        self._count(member, failure)
        member.end(0.0)  # the learner does not wait for a process that is being killed
        self._count_lost(member)
        generation = member.job.generation + 1
        kept = self.kept[member.index]
        job = replace(member.job, generation=generation, barrier=self.number, kept=kept)
        fresh = self._start(job)
        fresh.asked, fresh.answer = member.asked, member.answer
        if self.asking and not fresh.answer:
            fresh.answer.append(None)  # it did not receive the request
        self.members[member.index] = fresh

    def _count(self, member: M, failure: Reported) -> None:
        """Count a failure; raise if it ends the run."""
        late = [m.index for m in self.members if member.dump_asked and m.dump_asked]
        try:
            last = self._is_final(member)
            self.count_failure(member, failure, late or [member.index], last=last)
        except LudusError:
            self.over = True  # replace no more actors
            raise

    def _is_final(self, member: M) -> bool:
        """Whether the failure of an actor ends the run, because a replacement would fail, too."""
        return not member.worked and member.job.generation == 0


def valued_rows(plan: Plan, rows: int) -> int:
    """Number of first priorities per chunk, including earlier rows whose windows end in it."""
    if plan.actor_priorities and isinstance(plan.view, NStep):
        return plan.view.n - 1 + rows
    return 0
