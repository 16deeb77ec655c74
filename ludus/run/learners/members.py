"""Members: the other learners of a group, as the main process sees them.

It starts them, sends every command to all, and waits for their answers. A learner that fails or
exits ends the run: the others then stop what they were doing, and only save their part.
"""

from __future__ import annotations

import secrets
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing import util
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ludus.contract import Algorithm
from ludus.envs.backends.workers import shipped_spec
from ludus.errors import ActorError, LudusError
from ludus.fleets.base import Fleet, State, join_state, split_state
from ludus.learn.compression import Compression
from ludus.learn.group import LearnerGroup
from ludus.process.fork_server import process_context
from ludus.process.shared_tensors import SharedTensors
from ludus.process.supervisor import Child, close_all, ready
from ludus.process.watchdog import Call, Pulse
from ludus.run.learners.loop import GroupLoop
from ludus.run.learners.member import MemberJob, Report, learner_folder, member_main
from ludus.settings.resolve import Config
from ludus.settings.sections import Capabilities
from ludus.track.run_dir.rundir import RunDir
from ludus.types import EnvSpec, EpisodeEnd

LOOK = 0.2  # seconds between checks while waiting
CLOSE_SECONDS = 5.0
ABORT_SECONDS = 2.0  # for a learner to stop after another one failed
PATIENCE = 60.0  # for an answer when the run ends after a failure


@dataclass(kw_only=True)
class Member(Child):
    """One other learner."""

    ready: bool = False
    answer: list[Any] = field(default_factory=list)
    aborted: bool = False
    gone: bool = False
    metrics: dict[str, float] = field(default_factory=dict)  # of its fleet
    pids: list[int] = field(default_factory=list)


class Members:
    """The learners 1, 2, ... of a run. The main process is learner 0."""

    def __init__(self, cfg: Config, run: RunDir, pulse: Pulse) -> None:
        self.cfg, self.run, self.pulse = cfg, run, pulse
        self.ranks = range(1, cfg.run.learners)
        self.members: list[Member] = []
        self.busy = False  # a command is sent, and not all have answered
        self.broken = False  # the learners are not at the same place any more
        self.warn: Callable[[str], None] = lambda _: None
        self.context = process_context("torch._dynamo", "ludus.run.learners.member")
        self.leaving = SharedTensors.of(np.zeros(1, np.int64), self.context)
        # Removed with this process's temporary folder if it is killed.
        self.folder = Path(util.get_temp_dir()) / f"learners-{secrets.token_hex(4)}"
        self.folder.mkdir(mode=0o700)

    def start(self, algorithm: Algorithm, compute: dict[str, Any]) -> None:
        """Start all learners and wait until each has built its part."""
        cfg = self.cfg
        for rank in self.ranks:
            args = (cfg.run.imports, cfg.run.thread_count, self.leaving)
            member = Member.start(
                self.context, member_main, args, name=f"learner-{rank}", daemon=False, index=rank
            )
            self.members.append(member)
            member.send(
                MemberJob(
                    cfg.tree(), algorithm, rank, self.run.path, dict(compute), shipped_spec(cfg.env)
                )
            )
        while not all(member.ready for member in self.members):
            self.listen(LOOK)

    def meet(self, device: torch.device) -> LearnerGroup:
        """Connect all learners, in a thread: a learner that exits meanwhile must be noticed."""
        made: list[LearnerGroup | Exception] = []

        def connect() -> None:
            try:
                made.append(LearnerGroup(self.folder, 0, self.cfg.run.learners, device))
            except Exception as error:
                made.append(error)

        self.begin("meet", [self.folder for _ in self.ranks])
        thread = threading.Thread(target=connect, name="meet", daemon=True)
        thread.start()
        while thread.is_alive():
            self.listen(0.05)
        if isinstance(made[0], Exception):
            raise self.lost(made[0])
        self.finish()
        made[0].waiting = lambda: self.listen(0.0)
        return made[0]

    @property
    def together(self) -> bool:
        """Whether all learners wait for the next command, at the same place."""
        return not (self.busy or self.broken)

    # Commands.
    def begin(self, command: str, values: Sequence[Any] | None = None) -> None:
        """Send a command to all, which work on it meanwhile."""
        self.busy = True
        for i, member in enumerate(self.members):
            member.answer.clear()
            member.send((command, None if values is None else values[i]))

    def finish(self) -> list[Any]:
        """Wait for the answers of all."""
        with self._watched():
            while not all(member.answer for member in self.members):
                self.listen(LOOK)
        self.busy = False
        return [member.answer.pop() for member in self.members]

    def ask(self, command: str, values: Sequence[Any] | None = None) -> list[Any]:
        """As `begin` and `finish`. After a failure: the answers of those that still live, and None
        of the others."""
        if self.busy:
            self._abort()
        self.begin(command, values)
        if not self.broken:
            return self.finish()
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end and not all(m.answer or m.gone for m in self.members):
            self._read(LOOK)
        self.busy = False
        return [m.answer.pop() if m.answer and not m.gone else None for m in self.members]

    def leave(self) -> None:
        """Also give up incomplete rows."""
        self.leaving.array()[0] = 1

    def _abort(self) -> None:
        """Stop what the learners are doing; end those that do not stop."""
        self.broken, self.busy = True, False
        self.leave()
        for member in self.members:
            member.aborted = False
            member.send(("abort", None))
        end = time.monotonic() + ABORT_SECONDS
        while time.monotonic() < end and not all(m.aborted or m.gone for m in self.members):
            self._read(0.05)
        for member in self.members:
            member.answer.clear()
            if not (member.aborted or member.gone):
                member.process.kill()
                member.gone = True

    @contextmanager
    def _watched(self) -> Iterator[None]:
        self.pulse.enter(Call(lambda: "another learner"))
        try:
            yield
        finally:
            self.pulse.leave()

    # Messages.
    def listen(self, seconds: float) -> None:
        """Receive messages. Raise if a learner has failed or exited."""
        for member, failure in self._read(seconds):
            raise self._failed(member, failure)

    def _read(self, seconds: float) -> list[tuple[Member, Any]]:
        failures: list[tuple[Member, Any]] = []
        living = [member for member in self.members if not member.gone]
        for member in ready(living, seconds):
            for kind, value in member.messages():
                if kind in ("failed", "error"):
                    failures.append((member, value))
                    member.gone = member.gone or kind == "error"
                else:
                    self._take(member, kind, value)
        for member in living:
            if member.process.exitcode is not None and not member.gone:
                member.gone = True
                failures.append((member, (None, member.exit_cause(), "")))
        return failures

    def _take(self, member: Member, kind: str, value: Any) -> None:
        if kind == "ready":
            member.ready = True
        elif kind == "aborted":
            member.aborted = True
        elif kind == "warn":
            self.warn(f"learner {member.index}: {value}")
        elif kind == "done":
            member.answer.append(value)
            if isinstance(value, Report):
                member.metrics, member.pids = value.metrics, value.pids

    def _failed(self, member: Member, failure: Any) -> LudusError:
        """The error that ends the run."""
        known, cause, text = failure
        where = f"learner {member.index}"
        if known is not None:
            folder, run = str(learner_folder(self.run.path, member.index)), str(self.run.path)
            fix = known.fix.replace(f"ludus resume {folder}", f"ludus resume {run}")
            where = f"{where}: {known.where}" if known.where else where
            found = LudusError(
                known.code, known.what, where=where, why=known.why, fix=fix,
                exit_code=known.exit_code,
            )  # fmt: skip
            return found
        found = LudusError(
            "E403",
            f"a learner failed: {cause}",
            where=f"{where} of {self.cfg.run.learners} (run.learners)",
            why="its process was killed, or the algorithm or an environment raised in it",
            fix=f"ludus resume {self.run.path}   goes on from the checkpoint",
        )
        if text:
            found.__cause__ = ActorError(text)
        return found

    def lost(self, error: Exception) -> LudusError:
        """The error for a broken connection: its cause is the learner that has gone."""
        end = time.monotonic() + ABORT_SECONDS
        while time.monotonic() < end:
            for member, failure in self._read(0.05):
                return self._failed(member, failure)
        return LudusError(
            "E403",
            f"the learners lost each other: {error}",
            where=f"run.learners={self.cfg.run.learners}",
            why="a connection between their processes was cut",
            fix=f"ludus resume {self.run.path}   goes on from the checkpoint",
        )

    def close(self) -> None:
        self.leave()
        close_all(self.members, CLOSE_SECONDS)
        self.members = []
        shutil.rmtree(self.folder, ignore_errors=True)


class GroupFleet:
    """The actors of all learners: the main process collects from its own, and the others from
    theirs. Barriers, state and metrics are of all."""

    def __init__(self, own: Fleet, members: Members, num_envs: int) -> None:
        self.own, self.members = own, members
        self.spec: EnvSpec = own.spec
        self.num_envs = num_envs
        self.capabilities: Capabilities = own.capabilities
        self.publish, self.poll = own.publish, own.poll

    @property
    def warn(self) -> Callable[[str], None]:
        return self.own.warn

    @warn.setter
    def warn(self, warn: Callable[[str], None]) -> None:
        self.own.warn = self.members.warn = warn

    def barrier(self, number: int) -> list[EpisodeEnd]:
        if not self.members.together:
            return [
                *self.own.barrier(number),
                *_joined(self.members.ask("barrier", self._same(number))),
            ]
        self.members.begin("barrier", self._same(number))
        return [*self.own.barrier(number), *_joined(self.members.finish())]

    def _same(self, value: Any) -> list[Any]:
        return [value for _ in self.members.ranks]

    def state(self) -> State:
        parts = [self.own.state(), *self.members.ask("state")]
        return join_state([part or {} for part in parts])

    def load_state(self, state: State) -> None:
        if state:
            own, *others = split_state(state, 1 + len(self.members.ranks))
            self.own.load_state(own)
            self.members.ask("load_state", others)

    def metrics(self) -> dict[str, float]:
        """Sums, but the mean of the policy lag."""
        parts = [self.own.metrics(), *(m.metrics for m in self.members.members)]
        found = {k: sum(part.get(k, 0.0) for part in parts) for k in parts[0]}
        if "policy_lag" in found:
            found["policy_lag"] /= len(parts)
        return found

    def close(self) -> None:
        self.own.close()

    @property
    def acting(self) -> str:
        return f"{self.own.acting}, for each learner" if self.own.pids() else self.own.acting

    @property
    def capture_seconds(self) -> float:
        return self.own.capture_seconds

    @property
    def learner_bound(self) -> bool | None:
        return self.own.learner_bound

    def pids(self) -> list[int]:
        return [*self.own.pids(), *(pid for m in self.members.members for pid in m.pids)]


def _joined(parts: Sequence[list[EpisodeEnd] | None]) -> list[EpisodeEnd]:
    return [episode for part in parts for episode in part or ()]


def start_learners(cfg: Config, algorithm: Algorithm, run: RunDir, loop: GroupLoop) -> None:
    """Start the other learners of `loop`'s group, and connect them."""
    members = Members(cfg, run, loop.pulse)
    try:
        members.start(algorithm, loop.compute_info)
        loop.learner.ctx.group = group = members.meet(loop.learner.device)
        loop.learner.compression = compression_of(cfg, group)
    except BaseException:
        with suppress(Exception):
            members.close()
        raise
    loop.members = members
    loop.fleet = GroupFleet(loop.fleet, members, cfg.total_envs)
    loop.compute_info["acting"] = loop.fleet.acting
    loop.clock.started = time.perf_counter()  # the start of the others is no time of training


def compression_of(cfg: Config, group: LearnerGroup) -> Compression | None:
    kind = cfg.run.compress
    return None if kind == "off" else Compression(kind, group, cfg.run.topk)
