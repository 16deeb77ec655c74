"""The worker backend: slow Python environments stepped in processes of their own.

Each worker is the serial backend over its own contiguous slots, writing straight into shared
memory; only a few bytes per step go through a pipe. Not for fast environments: a round trip costs
more than a hundred steps of CartPole.
"""

from __future__ import annotations

import importlib
import multiprocessing
import time
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, TypeAlias

import gymnasium as gym
import numpy as np

from ludus.envs.adapter import split
from ludus.envs.backends.failures import IN_A_ROW, Streak, can_restart, failure, too_many
from ludus.envs.backends.worker import Job, Shared, work
from ludus.envs.build_progress import PATIENCE, Building
from ludus.envs.config import EnvConfig
from ludus.envs.spec import ObsCodec
from ludus.errors import ActorError, LudusError
from ludus.process.clock import Awake
from ludus.process.fork_server import start_server
from ludus.process.main_guard import UNGUARDED, refuse_import, unguarded
from ludus.process.shared_tensors import Block
from ludus.seeding import env_seed

Array: TypeAlias = np.ndarray[Any, Any]
START_SECONDS = 120.0  # importing and making environments may take this long
SLICE = 1.0  # of a wait: what being stopped in it may cost of the time that is left
CLOSE_SECONDS = 2.0  # for a worker's own clean end; then it is killed, as it ignores SIGTERM


def process_context(*preload: str) -> Any:
    """Fresh processes, never a fork of this one with its threads and its accelerator.

    A fork server imports Ludus once for all of them: starting four workers takes 0.1 s instead of
    four imports of torch, and they share its memory. Its first user decides on `preload`.
    """
    refuse_import()
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(preload or ("ludus.envs.make",)))
    start_server()
    return context


def shipped_spec(cfg: EnvConfig) -> Any:
    """What gymnasium knows of the id, for a process that may not; None if that is a local class."""
    registered = gym.registry.get(cfg.id.rpartition(":")[2])
    known = registered is not None and isinstance(registered.entry_point, str)
    return registered if known else None


def register_shipped(registered: Any) -> None:
    if registered is None or registered.id in gym.registry:
        return
    with suppress(Exception):  # if it fails, making the environment says so, and why
        importlib.import_module(registered.entry_point.partition(":")[0])
    # A package that registers its ids itself, as ale-py does, has just done so.
    gym.registry.setdefault(registered.id, registered)


class Workers:
    """The parent's side."""

    def __init__(
        self,
        cfg: EnvConfig,
        codec: ObsCodec,
        action: Array,
        mask_width: int,
        first_slot: int = 0,
        building: Building | None = None,
    ) -> None:
        num = cfg.slots
        self._context = process_context()
        self._cfg, self._timeout, self._first_slot = cfg, cfg.timeout, first_slot
        self._groups = split(num, cfg.group_count)
        actions = np.repeat(action[None], num, 0)
        self._shared = self._share(codec, actions, mask_width, cfg.ends_at_life_loss)
        self.slots = self._shared.slots(slice(0, num))
        self._actions, self._resets = self._shared.actions.array(), self._shared.resets.array()
        self._parts = split(num, min(cfg.workers, num))
        self._early: set[tuple[int, int | None]] = set()  # answers taken before they were due
        self._asked: set[tuple[int, int]] = set()  # worker and group, of steps without an answer
        self._seeds: list[int] = [0] * num  # the newest
        self._streaks, self._restarts = [Streak() for _ in self._parts], 0
        self._rows = [0] * len(self._groups)
        self._pipes: list[Connection] = []
        self._processes: list[BaseProcess] = []
        self._owners: list[list[int]] = [
            [w for w, part in enumerate(self._parts) if _overlap(part, group)]
            for group in self._groups
        ]
        try:
            for w in range(len(self._parts)):
                self._start(w)
            self._await_start(range(len(self._parts)), building)
        except BaseException:
            self.close()
            raise

    def _share(self, codec: ObsCodec, actions: Array, mask_width: int, lives: bool) -> Shared:
        def block(array: Array) -> Block:
            return Block.like(array, self._context)

        num = len(actions)
        flags = np.zeros(num, bool)
        return Shared(
            obs=tuple(block(leaf) for leaf in codec.buffers(num)),
            reward=block(np.zeros(num)),
            terminal=block(flags),
            over=block(flags),
            action_mask=block(np.ones((num, mask_width), bool)) if mask_width else None,
            life=block(flags) if lives else None,
            actions=block(actions),
            resets=block(flags),
            seeds=block(np.full(num, -1, np.int64)),
        )

    def _start(self, w: int) -> None:
        cfg, part = self._cfg, self._parts[w]
        ours, theirs = self._context.Pipe()
        groups = tuple(_within(part, group) for group in self._groups)
        job = Job(cfg, part, groups, self._shared, self._first_slot, shipped_spec(cfg))
        name = f"ludus-env-{part.start}"
        process = self._context.Process(target=work, args=(theirs, job), name=name, daemon=True)
        process.start()
        theirs.close()  # so that its death reads as the end of the pipe
        self._pipes[w : w + 1] = [ours]
        self._processes[w : w + 1] = [process]

    def _await_start(self, workers: Sequence[int], building: Building | None = None) -> None:
        """Until these workers have made their environments; `building` hears of each."""
        seconds = max(START_SECONDS, self._timeout)
        clock = Awake(2 * PATIENCE)
        waiting = {self._pipes[w]: w for w in workers}
        while waiting:
            ready = wait(list(waiting), PATIENCE)
            if clock.read() > seconds and not ready:
                raise self._late(sorted(waiting.values()), seconds, "start")
            for pipe in ready:
                assert isinstance(pipe, Connection)
                w = waiting.pop(pipe)
                self._take(w)
                if building is not None:
                    building.done(self._parts[w].stop - self._parts[w].start)
            if building is not None:
                building.tick()

    def reset(self, seeds: Sequence[int]) -> None:
        self._early.clear()
        self._asked.clear()
        self._seeds = list(seeds)
        for w, part in enumerate(self._parts):
            self._tell(w, ("reset", list(seeds[part])))
        self._collect(range(len(self._parts)), "reset")

    def send(self, actions: Array, resets: Array, group: int) -> None:
        part = self._groups[group]
        self._actions[part], self._resets[part] = actions, resets
        for w in self._owners[group]:
            self._asked.add((w, group))
            self._tell(w, ("step", group))

    def recv(self, group: int) -> None:
        self._rows[group] += 1
        self._collect(self._owners[group], "step", group)
        self._asked -= {(w, group) for w in self._owners[group]}

    def close(self) -> None:
        for pipe in self._pipes:
            try:
                pipe.send(("close", None))
            except OSError:
                continue
        for final in (False, True):
            living = [p for p in self._processes if p.is_alive()]
            if final:
                for process in living:
                    process.kill()
            deadline = time.monotonic() + CLOSE_SECONDS
            for process in living:
                process.join(max(0.0, deadline - time.monotonic()))
        for pipe in self._pipes:
            pipe.close()
        self._pipes, self._processes = [], []

    @property
    def _limit(self) -> float:
        """Seconds for all slots of a worker."""
        return self._timeout * max(len(range(part.start, part.stop)) for part in self._parts)

    def _tell(self, w: int, message: tuple[str, Any]) -> None:
        try:
            self._pipes[w].send(message)
        except OSError:
            self._restart(w, self._last_words(w))
            if message[0] == "reset":
                self._early.add((w, None))

    def _last_words(self, w: int) -> LudusError:
        """Of a dead worker: its traceback may still be in the pipe."""
        try:
            while True:
                self._take(w)
        except LudusError as error:
            return error

    def _collect(self, workers: Sequence[int], what: str, group: int | None = None) -> None:
        """Wait for one answer of each worker, about `group`."""
        seconds, clock = self._limit, Awake(SLICE)
        waiting = {self._pipes[w]: w for w in workers if (w, group) not in self._early}
        self._early -= {(w, group) for w in workers}
        while waiting:
            left = max(0.0, seconds - clock.time)
            ready = wait(list(waiting), min(left, SLICE))
            if clock.read() >= seconds and not ready:
                late = sorted(waiting.values())
                for w in late:
                    self._restart(w, self._late(late, seconds, what))
                self._early -= {(w, group) for w in late}
                return
            for pipe in ready:
                assert isinstance(pipe, Connection)
                w = waiting[pipe]
                try:
                    answered = self._take(w)
                except LudusError as error:
                    self._restart(w, error)
                    self._early.discard((w, group))
                    answered = group
                if answered == group:
                    del waiting[pipe]
                else:  # it serves two groups, and was asked about the other one first
                    self._early.add((w, answered))

    def _take(self, w: int) -> int | None:
        try:
            kind, value = self._pipes[w].recv()
        except (EOFError, OSError):
            raise self._dead(w) from None
        if kind == "error":
            error, text = value
            raise error from ActorError(text)
        group, infos, failures = value
        if infos:  # whole episodes
            self._streaks[w].clear()
        self.slots.infos.update(infos)
        self.slots.failures.update(failures)
        return None if group is None else int(group)

    def _restart(self, w: int, error: LudusError) -> None:
        """Another process in place of one that died or hangs, with new episodes in its slots; or
        raise. What it was asked counts as answered."""
        gave_up = isinstance(error.__cause__, ActorError)  # it restarts environments by itself
        if gave_up or not (self._cfg.rebuilds and can_restart(error)):
            raise error
        if self._streaks[w].add(self._rows_of(w)) > IN_A_ROW:
            raise too_many(error) from error.__cause__
        process, part = self._processes[w], self._parts[w]
        process.kill()
        process.join()
        self._pipes[w].close()
        self._restarts += 1
        slots = range(part.start, part.stop)
        failed = {i: failure(error, self._seeds[i]) for i in slots}
        for i in slots:
            self._seeds[i] = env_seed(self._seeds[i], "restart", i, self._restarts)
        self._start(w)
        try:
            self._await_start([w])
            self._pipes[w].send(("reset", self._seeds[part]))
            self._collect([w], "reset")
        except OSError:
            self._restart(w, self._dead(w))
        self.slots.failures.update(failed)
        self._early |= {(w, group) for who, group in self._asked if who == w}

    def _rows_of(self, w: int) -> int:
        """Steps so far of each slot of a worker."""
        owned = zip(self._owners, self._rows, strict=True)
        return min(rows for owners, rows in owned if w in owners)

    def _where(self, w: int) -> str:
        part = self._parts[w]
        first, last = self._first_slot + part.start, self._first_slot + part.stop - 1
        return f"environment {self._cfg.id}, worker {w}, slots {first} to {last}"

    def _dead(self, w: int) -> LudusError:
        process = self._processes[w]
        process.join(10.0)  # its pipe ends before it does; how it ended is to be told
        code = process.exitcode
        if code == UNGUARDED:
            return unguarded("E205", "env.workers")
        how = f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"
        return LudusError(
            "E205",
            f"an environment's process died without a word ({how})",
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


def _overlap(a: slice, b: slice) -> bool:
    return bool(max(a.start, b.start) < min(a.stop, b.stop))


def _within(part: slice, group: slice) -> slice:
    """The slots of `group` that are in `part`, counted from the part's first."""
    start = min(max(group.start, part.start), part.stop)
    stop = max(min(group.stop, part.stop), start)
    return slice(start - part.start, stop - part.start)
