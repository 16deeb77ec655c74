"""The worker backend: slow Python environments stepped in worker processes.

Each worker is the serial backend over its own contiguous environments, writing straight into shared
memory; only a few bytes per step go through a pipe. Not for fast environments: a round trip costs
more than a hundred steps of CartPole.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, TypeAlias

import gymnasium as gym
import numpy as np

from ludus.envs.adapter import split
from ludus.envs.backends.failures import Streak, failure
from ludus.envs.backends.serial import EnvArrays, Serial, named_arrays
from ludus.envs.blueprint import Blueprint
from ludus.envs.build_progress import PATIENCE, Building
from ludus.envs.config import EnvConfig
from ludus.errors import ActorError, LudusError
from ludus.process.child import UNGUARDED_CAUSE, run_child, unguarded
from ludus.process.fork_server import process_context
from ludus.process.shared_tensors import SharedTensors
from ludus.process.supervisor import ActiveClock, Child, close_all, ready
from ludus.seeding import env_seed

Array: TypeAlias = np.ndarray[Any, Any]
START_SECONDS = 120.0  # limit for importing and making environments
SLICE = 1.0  # seconds of one wait, the most that a suspended process loses of its limit
CLOSE_SECONDS = 2.0  # for a worker to exit; then it is killed


def shipped_spec(cfg: EnvConfig) -> Any:
    """The gymnasium EnvSpec of the id, for processes without it; None for a local class."""
    registered = gym.registry.get(cfg.id.rpartition(":")[2])
    known = registered is not None and isinstance(registered.entry_point, str)
    return registered if known else None


def register_shipped(registered: Any) -> None:
    if registered is None or registered.id in gym.registry:
        return
    with suppress(Exception):  # if it fails, making the environment raises with the reason
        importlib.import_module(registered.entry_point.partition(":")[0])
    # Importing a package such as ale-py has already registered its ids.
    gym.registry.setdefault(registered.id, registered)


@dataclass(frozen=True)
class Job:
    """The arguments of a worker."""

    cfg: EnvConfig
    part: slice  # its environments
    groups: tuple[slice, ...]  # its environments of each group, from its own first
    shared: SharedTensors  # `named_arrays`, actions and resets of all environments
    first_env: int
    registered: Any  # the gymnasium EnvSpec, if only the parent has registered the id


def _views(shared: SharedTensors, part: slice) -> EnvArrays:
    """The shared arrays of a part of the environments."""
    return EnvArrays.of({name: shared.array(name)[part] for name in shared.places})


def work(pipe: Connection, job: Job) -> None:
    """The main function of a worker process."""

    def body() -> None:
        from ludus.envs.make import make_serial  # imports this module

        register_shipped(job.registered)
        first, num = job.first_env + job.part.start, job.part.stop - job.part.start
        arrays = _views(job.shared, job.part)
        backend, _ = make_serial(job.cfg, first, num, job.groups, [], arrays=arrays)
        pipe.send(("ok", (None, {}, {})))
        _serve(pipe, job, backend)

    run_child(pipe, body, explain=_explain)  # one torch thread: workers share the cores


def _explain(error: BaseException) -> LudusError:
    if isinstance(error, LudusError):
        return error
    return LudusError(
        "E205",
        f"an environment worker failed: {type(error).__name__}: {error}",
        why="the environment raised it, or its answer cannot be sent to another process",
        fix="try it alone with  ludus check ENV  or in this process with  env.workers=0",
    )


def _serve(pipe: Connection, job: Job, backend: Serial) -> None:
    actions, resets = job.shared.array("actions"), job.shared.array("resets")
    own = [slice(job.part.start + g.start, job.part.start + g.stop) for g in job.groups]
    while True:
        command, value = pipe.recv()
        if command == "close":
            backend.close()
            return
        backend.arrays.infos.clear()
        backend.arrays.failures.clear()
        if command == "reset":
            backend.reset(value)
        else:
            backend.send(actions[own[value]].copy(), resets[own[value]].copy(), value)
            backend.recv(value)
        infos, failures = (
            {job.part.start + i: value for i, value in table.items()}
            for table in (backend.arrays.infos, backend.arrays.failures)
        )
        pipe.send(("ok", (value if command == "step" else None, infos, failures)))


class Workers:
    """The backend in the parent process."""

    def __init__(
        self,
        cfg: EnvConfig,
        blueprint: Blueprint,
        first_env: int,
        building: Building,
    ) -> None:
        num = cfg.num_envs
        self._context = process_context("ludus.envs.make")
        self._cfg, self._timeout, self._first_env = cfg, cfg.timeout, first_env
        self._groups = split(num, cfg.group_count)
        lives, shape = cfg.ends_at_life_loss, (num, *blueprint.spec.action_shape)
        arrays = named_arrays(blueprint.codec, num, blueprint.mask_width, lives=lives)
        arrays |= {"actions": np.zeros(shape, blueprint.actions.dtype)}
        arrays |= {"resets": np.zeros(num, bool)}
        self._shared = SharedTensors.like(arrays, self._context)
        self.arrays = _views(self._shared, slice(0, num))
        self._actions, self._resets = self._shared.array("actions"), self._shared.array("resets")
        self._parts = split(num, min(cfg.workers, num))
        self._early: set[tuple[int, int | None]] = set()  # answers received early
        self._asked: set[tuple[int, int]] = set()  # (worker, group) of unanswered steps
        self._seeds: list[int] = [0] * num  # the newest
        self._streaks, self._restarts = [Streak() for _ in self._parts], 0
        self._rows = [0] * len(self._groups)
        self._children: list[Child] = []
        self._owners: list[list[int]] = [
            [w for w, part in enumerate(self._parts) if _common(part, group)]
            for group in self._groups
        ]
        try:
            for w in range(len(self._parts)):
                self._start(w)
            self._await_start(range(len(self._parts)), building)
        except BaseException:
            self.close()
            raise

    def _start(self, w: int) -> None:
        cfg, part = self._cfg, self._parts[w]
        common = [_common(part, group) for group in self._groups]
        groups = tuple(slice(c.start - part.start, c.stop - part.start) for c in common)
        job = Job(cfg, part, groups, self._shared, self._first_env, shipped_spec(cfg))
        child = Child.start(self._context, work, (job,), name=f"env-{part.start}", index=w)
        self._children[w : w + 1] = [child]

    def _await_start(self, workers: Sequence[int], building: Building | None = None) -> None:
        """Wait until these workers have made their environments; count them in `building`."""
        seconds = max(START_SECONDS, self._timeout)
        clock = ActiveClock(2 * PATIENCE)
        waiting = set(workers)
        while waiting:
            found = self._ready(waiting, PATIENCE)
            if clock.read() > seconds and not found:
                raise self._late(sorted(waiting), seconds, "start")
            for w in found:
                waiting.discard(w)
                self._take(w)
                if building is not None:
                    building.done(self._parts[w].stop - self._parts[w].start)
            if building is not None:
                building.tick()

    def _ready(self, workers: set[int], seconds: float) -> list[int]:
        """The workers that answered or died."""
        return [child.index for child in ready([self._children[w] for w in workers], seconds)]

    def reset(self, seeds: Sequence[int]) -> None:
        self._early.clear()
        self._asked.clear()
        self._seeds = list(seeds)
        for w, part in enumerate(self._parts):
            self._request(w, ("reset", list(seeds[part])))
        self._collect(range(len(self._parts)), "reset")

    def send(self, actions: Array, resets: Array, group: int) -> None:
        part = self._groups[group]
        self._actions[part], self._resets[part] = actions, resets
        for w in self._owners[group]:
            self._asked.add((w, group))
            self._request(w, ("step", group))

    def recv(self, group: int) -> None:
        self._rows[group] += 1
        self._collect(self._owners[group], "step", group)
        self._asked -= {(w, group) for w in self._owners[group]}

    def close(self) -> None:
        close_all(self._children, CLOSE_SECONDS)
        self._children = []

    @property
    def _limit(self) -> float:
        """Seconds for all environments of a worker."""
        return self._timeout * max(len(range(part.start, part.stop)) for part in self._parts)

    def _request(self, w: int, message: tuple[str, Any]) -> None:
        if not self._children[w].send(message):
            self._restart(w, self._death(w))
            if message[0] == "reset":
                self._early.add((w, None))

    def _death(self, w: int) -> LudusError:
        """Why a worker died: its traceback may still be in the pipe."""
        try:
            while True:
                self._take(w)
        except LudusError as error:
            return error

    def _collect(self, workers: Sequence[int], what: str, group: int | None = None) -> None:
        """Wait for one answer from each worker for `group`."""
        seconds, clock = self._limit, ActiveClock(SLICE)
        waiting = {w for w in workers if (w, group) not in self._early}
        self._early -= {(w, group) for w in workers}
        while waiting:
            left = max(0.0, seconds - clock.time)
            found = self._ready(waiting, min(left, SLICE))
            if clock.read() >= seconds and not found:
                late = sorted(waiting)
                for w in late:
                    self._restart(w, self._late(late, seconds, what))
                self._early -= {(w, group) for w in late}
                return
            for w in found:
                try:
                    answered = self._take(w)
                except LudusError as error:
                    self._restart(w, error)
                    self._early.discard((w, group))
                    answered = group
                if answered == group:
                    waiting.discard(w)
                else:  # it serves two groups and answered the other one first
                    self._early.add((w, answered))

    def _take(self, w: int) -> int | None:
        try:
            kind, value = self._children[w].pipe.recv()
        except (EOFError, OSError):
            raise self._dead(w) from None
        if kind == "error":
            error, _, text = value
            raise error from ActorError(text)
        group, infos, failures = value
        if infos:  # whole episodes
            self._streaks[w].count = 0
        self.arrays.infos.update(infos)
        self.arrays.failures.update(failures)
        return None if group is None else int(group)

    def _restart(self, w: int, error: LudusError) -> None:
        """Replace a worker that died or hangs and start new episodes, or raise. Its open requests
        count as answered."""
        gave_up = isinstance(error.__cause__, ActorError)  # it restarts its environments itself
        restarts = self._cfg.rebuilds and not gave_up
        self._streaks[w].add(error, self._rows_of(w), restarts=restarts)
        self._children[w].end()
        self._restarts += 1
        part = self._parts[w]
        lost = range(part.start, part.stop)
        failed = {i: failure(error, self._seeds[i]) for i in lost}
        for i in lost:
            self._seeds[i] = env_seed(self._seeds[i], "restart", i, self._restarts)
        self._start(w)
        self._await_start([w])
        if self._children[w].send(("reset", self._seeds[part])):
            self._collect([w], "reset")
        else:
            self._restart(w, self._dead(w))
        self.arrays.failures.update(failed)
        self._early |= {(w, group) for who, group in self._asked if who == w}

    def _rows_of(self, w: int) -> int:
        """Steps so far of each environment of a worker."""
        owned = zip(self._owners, self._rows, strict=True)
        return min(rows for owners, rows in owned if w in owners)

    def _where(self, w: int) -> str:
        part = self._parts[w]
        first, last = self._first_env + part.start, self._first_env + part.stop - 1
        return f"environments {first} to {last} of {self._cfg.id}, worker {w}"

    def _dead(self, w: int) -> LudusError:
        cause = self._children[w].exit_cause()
        if cause == UNGUARDED_CAUSE:
            return unguarded("E205", "env.workers")
        return LudusError(
            "E205",
            f"an environment's {cause}",
            where=self._where(w),
            why="a crash in native code, os._exit, or the system ran out of memory (signal 9)",
            fix="try it alone with  ludus check ENV  and fewer  env.num",
        )

    def _late(self, late: Sequence[int], seconds: float, what: str) -> LudusError:
        return LudusError(
            "E205",
            f"no answer to {what} within {seconds:g} s",
            where="; ".join(self._where(w) for w in late),
            why="the environment hangs, or one of its steps takes longer than env.timeout",
            fix="raise  env.timeout  (seconds) if it is merely slow",
        )


def _common(part: slice, group: slice) -> range:
    """The environments that are in both."""
    start = min(max(group.start, part.start), part.stop)
    return range(start, max(min(group.stop, part.stop), start))
