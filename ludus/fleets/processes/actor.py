"""An actor: a process with a Collector, environments and a policy of its own.

In lockstep it collects one chunk when told to; running free it goes on by itself, with the newest
weights it can get, and waits only where the learner has not taken its chunks
(chunks.py).
"""

from __future__ import annotations

import select
import time
from collections import deque
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ludus.collect.collector import Collected, Collector
from ludus.collect.device_collector import DeviceCollector
from ludus.compute.cuda_graph import captures
from ludus.compute.gpu_memory import is_out_of_memory
from ludus.contract import Algorithm
from ludus.envs.backends.serial import hear_signs
from ludus.envs.backends.workers import register_shipped
from ludus.envs.config import EnvConfig
from ludus.envs.make import make_envs
from ludus.envs.render.screenshots import Camera
from ludus.errors import LudusError
from ludus.fleets.processes.chunks import Mailbox
from ludus.fleets.processes.weights import WeightsBoard
from ludus.learn.placement import arrange_images, prepare_cudnn
from ludus.process.child import dump_when_asked, run_child
from ludus.process.limits import available_cores
from ludus.process.shared_tensors import SharedTensors
from ludus.run.networks import normalizer_for
from ludus.settings.imports import import_again
from ludus.track.atomic_files import open_append

GENERATION = 1_000_003  # a replaced actor's seeds are those of a barrier that never comes
_LEAVE = 0  # column of the orders
# Seconds between looks at a full mailbox, longer each time: a hundred waiting actors that looked
# every millisecond would leave the learner nothing of two cores.
SHORTEST_NAP, LONGEST_NAP = 0.001, 0.05


@dataclass(frozen=True)
class Shared:
    """What actor and learner both see."""

    board: WeightsBoard
    mailbox: Mailbox
    beats: SharedTensors  # [actors] seconds of the monotonic clock: the newest heartbeat
    values: SharedTensors  # [schedules] as of the newest iteration
    orders: SharedTensors  # [1] leave


@dataclass(frozen=True)
class Job:
    """All that an actor is told at its start."""

    index: int
    actors: int
    generation: int  # how many had this index before
    env: EnvConfig
    algorithm: Algorithm
    rows: int
    seed: int
    device: str
    precision: str
    capture: str  # on | off | auto
    names: tuple[str, ...]  # of the values
    lockstep: bool
    pipelined: bool  # in lockstep as the inline fleet does it where learning overlaps
    pull_every: int  # steps of this actor between pulls; 0: before every chunk
    barrier: int
    registered: Any
    camera: Camera | None = None
    order: str = ""  # of images on a CPU, as the learner has it
    stacks: Path | None = None  # where to write what every thread is doing, when asked by a signal


def live(pipe: Connection, imports: tuple[str, ...], shared: Shared) -> None:
    """The main function of an actor process."""

    def body() -> None:
        import_again(imports)  # before the job comes, which may hold something of them
        job: Job = pipe.recv()
        dump_when_asked(job.stacks, open_append)
        register_shipped(job.registered)
        actor = Actor(job, shared, pipe)
        pipe.send(("ready", None))
        actor.serve()

    run_child(pipe, body, explain=_explain)


def _explain(error: BaseException) -> LudusError:
    if isinstance(error, LudusError):
        return error
    if is_out_of_memory(error):
        return LudusError(
            "E311",
            f"an actor's GPU is out of memory: {str(error).splitlines()[0]}",
            why="every actor process there needs a context of its own, and its net",
            fix="fewer run.actors with more env.num each, actor.device=cpu, or run.replay_on=host",
        )
    return LudusError(
        "E206",
        f"an actor failed: {type(error).__name__}: {error}",
        why="the environment or the algorithm raised it",
        fix="try it in one process with  run.fleet=inline",
    )


class Actor:
    def __init__(self, job: Job, shared: Shared, pipe: Connection) -> None:
        self.job, self.shared, self.pipe = job, shared, pipe
        self.beats, self.orders = shared.beats.array(), shared.orders.array()
        self.beat()
        n = job.env.slots
        if job.device != "cpu":
            # Else an event would be recorded, and waited for, on the first GPU's stream.
            torch.cuda.set_device(job.device)
            prepare_cudnn(job.precision)
        first = job.index * n
        envs = make_envs(_own_share(job), seed=job.seed, first_slot=first, camera=job.camera)
        hear_signs(envs.backend, self.beat)
        self.collector = self._collector(envs)
        self.told = (self.collector.mode, 0.0)  # how it acts, and seconds spent on graphs
        with torch.random.fork_rng(devices=[]):
            self.net = job.algorithm.build(envs.spec)
        normalizer = normalizer_for(job.env, envs.spec, n * job.actors)
        if normalizer is not None:
            self.net["normalizer"] = normalizer
        self.net.to(job.device).requires_grad_(False)
        arrange_images(self.net, torch.device(job.device).type, job.order)
        self.values = {k: torch.zeros((), device=job.device) for k in job.names}
        self.stamp, self.updates = -1, 0  # of the weights at hand
        self.since_pull = 0
        self.nap = SHORTEST_NAP
        self.heard: deque[tuple[str, Any]] = deque()  # commands that ended the wait for a place
        self.running = False
        self.beat()
        if job.generation:
            self.collector.barrier(job.barrier + GENERATION * job.generation)
            self.running = not job.lockstep

    def _collector(self, envs: Any) -> Collector:
        job = self.job
        options: dict[str, Any] = {
            "seed": job.seed, "index": job.index, "device": job.device, "precision": job.precision,
            "pipelined": job.pipelined,
        }  # fmt: skip
        captured = captures(job.capture, job.device)
        made: Collector
        if captured or job.device != "cpu":
            options |= {"captured": captured, "must": job.capture == "on"}
            made = DeviceCollector(job.algorithm, envs, **options)
        else:
            made = Collector(job.algorithm, envs, **options)
        made.ctx.actors = job.actors
        made.remembers = self.shared.mailbox.layout.remembers
        return made

    def beat(self) -> None:
        self.beats[self.job.index] = time.monotonic()

    def stopping(self) -> bool:
        """Called after every row; sends a heartbeat."""
        self.beat()
        return bool(self.orders[_LEAVE])

    def serve(self) -> None:
        while True:
            self.beat()
            if self.heard:
                if not self._obey(*self.heard.popleft()):
                    return
                continue
            if not self.running or self.pipe.poll(0):
                if self.pipe.poll(1.0) and not self._obey(*self.pipe.recv()):
                    return
                continue
            if self.orders[_LEAVE]:
                time.sleep(0.01)
                continue
            current = self.shared.values.array()
            self._collect({k: float(v) for k, v in zip(self.job.names, current, strict=True)})

    def _obey(self, command: str, value: Any) -> bool:
        """Whether to go on."""
        collector = self.collector
        if command == "close":
            collector.close()
            return False
        if command == "collect":
            self._collect(value)
        elif command == "run":
            self.running = True
        elif command == "barrier":
            self.pipe.send(("done", collector.barrier(value)))
        elif command == "state":
            self.pipe.send(("done", collector.envs.state()))
        elif command == "load":
            collector.envs.load(value)
            self.pipe.send(("done", None))
        return True

    def _collect(self, values: dict[str, float]) -> None:
        job, collector = self.job, self.collector
        if self.stamp < 0 or self.since_pull >= job.pull_every or job.lockstep:
            self.stamp, self.updates = self.shared.board.pull(self.net, self.stamp)
            self.since_pull = 0
        for name, number in values.items():
            self.values[name].fill_(number)
        got = collector.collect(self.net, job.rows, self.values, self.stopping)
        acting = (collector.mode, collector.capture_seconds)
        if acting != self.told:
            self.told = acting
            self._say("acting", acting)
        if got is None:
            self._say("nothing", None)
            return
        self.since_pull += job.rows * job.env.slots
        self._deliver(got)

    def _deliver(self, got: Collected) -> None:
        chunk = got.chunk._replace(version=self.updates)
        self.nap = SHORTEST_NAP
        place = self.shared.mailbox.put(chunk, self._pause)
        spent = (got.env_seconds, got.act_seconds, got.process)
        self._say("chunk", (place, chunk.sequence, list(got.episodes), spent))

    def _say(self, kind: str, value: Any) -> None:
        """A learner that is away, evaluating or saving, leaves the pipe full: to wait for it is a
        sign of life too."""
        while not _writable(self.pipe):
            if self.stopping():
                return  # nobody will listen any more
        self.pipe.send((kind, value))

    def _pause(self) -> bool:
        """The learner has not taken what is there; whether to give up waiting. What a checkpoint
        asks is answered meanwhile; only what ends the stream anyway ends the wait."""
        time.sleep(self.nap)
        self.nap = min(1.5 * self.nap, LONGEST_NAP)
        while not self.heard and self.pipe.poll(0):
            command, value = self.pipe.recv()
            if command in ("state", "run"):
                self._obey(command, value)
            else:
                self.heard.append((command, value))
        return self.stopping() or bool(self.heard)


def _writable(pipe: Connection) -> bool:
    """Whether a message would fit, asked for a tenth of a second."""
    poller = select.poll()
    poller.register(pipe, select.POLLOUT)
    return bool(poller.poll(100))


def _own_share(job: Job) -> EnvConfig:
    """Native Atari takes every core for itself unless told otherwise; actors share them."""
    if job.env.native_atari and job.env.threads == "auto":
        share = max(1, available_cores() // job.actors)
        return job.env.model_copy(update={"threads": share})
    return job.env


def values_of(values: dict[str, Tensor], names: tuple[str, ...]) -> np.ndarray[Any, Any]:
    return np.array([float(values[name]) for name in names])


def next_generation(job: Job, barrier: int) -> Job:
    return replace(job, generation=job.generation + 1, barrier=barrier)
