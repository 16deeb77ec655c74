"""Watch and replace replay roles, and wait for their answers."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ludus.errors import LudusError
from ludus.process.child import UNGUARDED_CAUSE, unguarded
from ludus.process.supervisor import Supervisor
from ludus.replay.roles.launcher import ProcessLauncher
from ludus.replay.roles.link import RoleLauncher, RoleLink, RoleLostError, lost_to
from ludus.replay.roles.role import RoleJob, example_sample, shard_plan
from ludus.replay.roles.settings import Roles
from ludus.replay.roles.transport import Fields, sample_fields
from ludus.seeding import stream_seed
from ludus.types import Chunk, map_fields

START_SECONDS = 300.0
LOOK = 0.2  # seconds between health checks
PATIENCE = 10  # times the usual timeout, for requests of a checkpoint


class RoleSupervisor(Supervisor):
    """N replay roles, wherever `launch` starts them."""

    def __init__(
        self, made: Roles, launch: Callable[[Roles, Fields], RoleLauncher] = ProcessLauncher
    ) -> None:
        super().__init__(made.hang_seconds, START_SECONDS, "replay")
        self.made = made
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
        self.members: list[RoleLink] = []
        self.launcher = launch(made, self.fields)
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

    def _start(self, job: RoleJob) -> RoleLink:
        return self.launcher.start(job, self.clock.read())

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
        if self.launcher.wait(self.members, seconds):
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
                first = member.job.generation == 0 or not member.placed
                limit = self.timeout(first=first, ready=member.ready)
                self._alive(member, now, limit)
            except RoleLostError as lost:
                self._replace(member, lost)

    def _alive(self, member: RoleLink, now: float | None = None, limit: float = 0.0) -> None:
        """Raise RoleLostError for a role that died or hangs. Without a `limit`: that of a request
        for a checkpoint."""
        if member.exited:
            raise RoleLostError(member.exit_cause())
        now, limit = self.clock.read() if now is None else now, limit or PATIENCE * self.hang
        if self.hangs(member, member.heartbeat(now), now, limit):
            raise RoleLostError(member.hang_cause(limit, self.made.read_file))

    def _replace(self, member: RoleLink, lost: RoleLostError) -> None:
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
        self.launcher.close(self.members)
