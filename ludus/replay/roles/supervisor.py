"""Start, watch and replace replay processes, and wait for their answers."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from multiprocessing.connection import wait
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor

from ludus.contract import Plan, Unroll
from ludus.errors import LudusError
from ludus.process.child import UNGUARDED_CAUSE, unguarded
from ludus.process.fork_server import process_context
from ludus.process.supervisor import Supervisor, close_all, hang_cause
from ludus.replay.chunk_layout import ChunkLayout
from ludus.replay.roles.client import RoleClient, RoleLostError, lost_to
from ludus.replay.roles.process import role_main
from ludus.replay.roles.role import RoleJob, example_sample, shard_plan
from ludus.replay.roles.transport import RoleMemory, sample_fields
from ludus.seeding import stream_seed
from ludus.types import Chunk, EnvSpec, Extras, map_fields

CLOSE_SECONDS, START_SECONDS = 2.0, 300.0
LOOK = 0.2  # seconds between health checks
PATIENCE = 10  # times the usual timeout, for requests of a checkpoint
SPARE = 2  # places beside those ahead and the one in use: priorities on their way from a GPU


@dataclass(frozen=True, kw_only=True)
class Roles:
    """What replay roles are made of."""

    plan: Plan
    spec: EnvSpec
    layout: ChunkLayout  # of the actors' chunks
    extras: Extras
    actors: int
    num_envs: int  # of each actor
    roles: int
    prefetch: int  # samples drawn ahead; 0: one when it is asked for
    ordered: bool  # the same samples in every run
    buffers: int  # chunks that may wait for a role, of each actor
    seed: int
    horizon: int
    device: torch.device
    hang_seconds: float
    restarts: int  # replaced roles that end the run ...
    restart_minutes: float  # ... within this time
    threads: int  # of each role, which copy frames
    imports: tuple[str, ...]
    # Files for stack dumps of role i, generation g; how they are opened and read.
    stack_file: Callable[[int, int], Path | None]
    open_file: Callable[[Path], IO[Any]]
    read_file: Callable[[Path], str]

    def shards(self) -> list[range]:
        """The actors of each role, side by side."""
        ends = [self.actors * i // self.roles for i in range(self.roles + 1)]
        return [range(lo, hi) for lo, hi in pairwise(ends)]


class RoleSupervisor(Supervisor):
    """The processes of N replay roles."""

    def __init__(self, made: Roles) -> None:
        super().__init__(made.hang_seconds, START_SECONDS, "replay")
        self.made = made
        self.context = process_context("ludus.fleets.processes.actor")
        arrays = made.layout.zeros()
        chunk = Chunk(made.layout.read(arrays, copy=False))
        if "priority" in arrays:
            chunk = chunk._replace(priority=torch.from_numpy(arrays["priority"]))
        example = example_sample(made.plan, made.spec, made.extras, chunk)
        self.fields = sample_fields(example)
        self.batch = map_fields(lambda x: x.new_empty(0), example.batch)  # for its structure
        self.shards = made.shards()
        self.barrier_number = 0
        self.wait_seconds = 0.0  # that the learner waited for a sample or a free place
        self.failures: list[float] = []
        self.checked = 0.0
        self.members: list[RoleClient] = []
        try:
            for index in range(made.roles):
                self.members.append(self._start(self._job(index)))
            while not all(m.ready for m in self.members):
                self._listen(LOOK)
        except BaseException:
            self.close()
            raise

    def _job(self, index: int) -> RoleJob:
        made, shard = self.made, self.shards[index]
        share = len(shard) / made.actors
        return RoleJob(
            index=index, plan=shard_plan(made.plan, share), spec=made.spec,
            num_envs=len(shard) * made.num_envs, first_env=shard.start * made.num_envs,
            # The first role draws as a store with the learner does.
            seed=stream_seed(made.seed, "replay", index) if index else made.seed,
            horizon=max(1, round(made.horizon * share)), extras=dict(made.extras),
        )  # fmt: skip

    def _start(self, job: RoleJob) -> RoleClient:
        made, context, shard = self.made, self.context, self.shards[job.index]
        ahead = made.prefetch + 1 + SPARE
        memory = RoleMemory.make(
            made.layout, made.buffers * len(shard), self.fields, ahead, context,
            copy=any(isinstance(feed.view, Unroll) for feed in made.plan.feeds),
        )  # fmt: skip
        theirs, orders = context.Pipe(duplex=False)
        answers, ours = context.Pipe(duplex=False)
        stacks = made.stack_file(job.index, job.generation)
        client = RoleClient.start(
            context, role_main,
            (made.imports, memory, theirs, ours, made.threads, stacks, made.open_file),
            name=f"replay-{job.index}", now=self.clock.read(), index=job.index, stacks=stacks,
            job=job, memory=memory, orders=orders, answers=answers,
        )  # fmt: skip
        theirs.close()  # orders to a dead role then fail
        ours.close()
        client.send(job)
        return client

    def _until(self, done: Callable[[], bool]) -> None:
        """Take answers until `done`, without a limit while all roles send heartbeats."""
        while not done():
            self._wait()

    def _wait(self) -> None:
        start = time.perf_counter()
        self._listen(LOOK)
        self.wait_seconds += time.perf_counter() - start

    def _read(self) -> bool:
        """Take the answers that have arrived; whether there were any."""
        found = [member.read() for member in self.members]
        if time.monotonic() - self.checked > LOOK:
            self._check()
        return any(found)

    def _listen(self, seconds: float) -> None:
        if self._read():
            return
        pipes = [member.pipe for member in self.members]
        answers = [member.answers for member in self.members]
        if set(wait([*answers, *pipes], seconds)) - set(answers):
            self._check()
        self._read()

    def _check(self) -> None:
        """Read messages, and replace roles that died or hang."""
        self.checked, now = time.monotonic(), self.clock.read()
        for member in list(self.members):
            try:
                for kind, value in member.messages():
                    if kind == "error":
                        raise lost_to(value)
                    member.ready = True
                    if not member.job.generation:
                        self.time_start(member)
                limit = self.timeout(first=member.job.generation == 0, ready=member.ready)
                self._alive(member, now, limit)
            except RoleLostError as lost:
                self._replace(member, lost)

    def _alive(self, member: RoleClient, now: float | None = None, limit: float = 0.0) -> None:
        """Raise RoleLostError for a role that died or hangs. Without a `limit`: that of a request
        for a checkpoint."""
        if member.process.exitcode is not None:
            raise RoleLostError(member.exit_cause())
        now, limit = self.clock.read() if now is None else now, limit or PATIENCE * self.hang
        if self.hangs(member, float(member.numbers[0]), now, limit):
            raise RoleLostError(hang_cause(limit, member.stacks, self.made.read_file))

    def _replace(self, member: RoleClient, lost: RoleLostError) -> None:
        """Start an empty role in place of a lost one. It collects as many rows as its warm-up asks
        for before it draws again."""
        index, made, now = member.job.index, self.made, time.monotonic()
        recent = [t for t in self.failures if now - t <= 60 * made.restart_minutes]
        self.failures.append(now)
        if lost.known or not member.ready or len(recent) >= made.restarts:
            raise self._failed(index, lost)
        report, plan = member.report, member.job.plan
        missing = max(int(report.missing), min(int(report.size), max(plan.warmup, plan.batch)))
        self.warn(
            f"replay {index} is replaced: {lost.cause.splitlines()[0]}; its {int(report.size)} "
            f"items are lost, and it gives samples again after {missing} more steps"
        )
        drawn = int(report.samples_drawn) - member.unused
        member.end(0.0)  # the learner does not wait for a process that is being killed
        fresh = self._start(replace(
            member.job, generation=member.job.generation + 1, barrier=self.barrier_number,
            counts=(int(report.steps_inserted), drawn, missing),
        ))  # fmt: skip
        self.members[index] = fresh
        self._forget(index)

    def _failed(self, index: int, lost: RoleLostError) -> LudusError:
        if lost.cause == UNGUARDED_CAUSE:
            return unguarded("E208", "run.replays")
        error = LudusError(
            "E208",
            f"a replay role failed: {lost.cause}",
            where=f"replay {index}",
            why="its memory is full, or the view or sampler fails in another process",
            fix="ludus resume RUN  goes on from the last checkpoint;  run.replays=0  keeps the "
            "replay of a new run with the learner",
        )
        if lost.text:
            error.add_note(lost.text)
        return error

    def _forget(self, index: int) -> None:
        """Called when the role with this index was replaced."""

    def _request(
        self, index: int, name: str, value: Any = None, tensors: dict[str, Tensor] | None = None
    ) -> tuple[Any, dict[str, Tensor]]:
        """Ask one role. A replacement answers for a role that is lost meanwhile, unless it was to
        be restored."""
        while True:
            member = self.members[index]
            try:
                return member.request(name, value, tensors, lambda m=member: self._alive(m))  # type: ignore[misc]
            except RoleLostError as lost:
                if tensors is not None:
                    raise self._failed(index, lost) from None
                self._replace(member, lost)
                self._until(lambda i=index: self.members[i].ready)  # type: ignore[misc]

    def close(self) -> None:
        close_all(self.members, CLOSE_SECONDS)
