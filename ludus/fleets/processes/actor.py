"""An actor process: an `ActorCore` that sends chunks and receives weights through shared memory.

The core has the environments and a policy, and knows no process, pipe or shared memory. In lockstep
an actor collects one chunk per request. Otherwise it collects continuously with the newest weights,
and waits only while its mailbox is full (transport.py).
"""

from __future__ import annotations

import select
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from ludus.collect.collector import Collected, Collector
from ludus.collect.device_runner import choose_runner
from ludus.compute.cuda_graph import captures
from ludus.compute.gpu_memory import is_out_of_memory
from ludus.contract import Algorithm
from ludus.envs.adapter import Envs
from ludus.envs.backends.serial import set_heartbeat
from ludus.envs.backends.workers import register_shipped
from ludus.envs.config import EnvConfig
from ludus.envs.make import make_envs
from ludus.envs.render.screenshots import Camera
from ludus.errors import LudusError
from ludus.fleets.processes.transport import Mailbox, WeightsBoard
from ludus.learn.placement import arrange_images, prepare_gpu
from ludus.process.child import dump_when_asked, run_child
from ludus.process.limits import available_cores
from ludus.process.modules import import_modules
from ludus.process.shared_tensors import SharedTensors
from ludus.run.networks import build_net
from ludus.track.atomic_files import open_append
from ludus.types import EpisodeEnd

GENERATION = 1_000_003  # offset of barrier numbers in the seeds of replacements
_LEAVE = 0  # index into `orders`
CONTROL = ("beats", "values", "orders")  # see Shared
# Seconds between checks of a full mailbox. They grow, because a hundred actors that check every
# millisecond would take the cores from the learner.
SHORTEST_NAP, LONGEST_NAP = 0.001, 0.05


@dataclass(frozen=True, kw_only=True)
class ActorJob:
    """The arguments of an actor."""

    index: int
    actors: int
    env: EnvConfig
    algorithm: Algorithm
    rows: int  # per chunk
    seed: int
    device: str
    precision: str
    capture: str  # on | off | auto
    names: tuple[str, ...]  # of schedules
    pipelined: bool = False  # act like the inline fleet with run.overlap
    remembers: bool = False  # chunks include the frames and action before their first row
    generation: int = 0  # number of earlier actors with this index
    barrier: int = 0  # number of the newest barrier
    order: str = ""  # the learner's memory format for images on a CPU
    camera: Camera | None = None


class ActorCore:
    """The environments and policy of one actor. It calls `beat` while its environments work."""

    def __init__(self, job: ActorJob, beat: Callable[[], None]) -> None:
        self.job, n = job, job.env.num_envs
        if job.device != "cpu":
            prepare_gpu(job.device, job.precision)
        envs = make_envs(_own_share(job), seed=job.seed, first_env=job.index * n, camera=job.camera)
        set_heartbeat(envs.backend, beat)
        self.collector = self._collector(envs)
        self.net = build_net(job.algorithm, job.env, envs.spec, n * job.actors)
        self.net.to(job.device).requires_grad_(False)
        arrange_images(self.net, torch.device(job.device).type, job.order)
        self.values = {k: torch.zeros((), device=job.device) for k in job.names}
        if job.generation:
            self.barrier(job.barrier + GENERATION * job.generation)

    def _collector(self, envs: Envs) -> Collector:
        job = self.job
        captured = captures(job.capture, job.device)
        runner = choose_runner(job.device, captured=captured, must_capture=job.capture == "on")
        made = Collector(
            job.algorithm, envs, seed=job.seed, index=job.index, device=job.device,
            pipelined=job.pipelined, precision=job.precision, runner=runner,
        )  # fmt: skip
        made.ctx.actors = job.actors
        made.runner.keeps_before = job.remembers
        return made

    @property
    def mode(self) -> tuple[str, float]:
        """(mode of acting, seconds spent on capturing graphs)."""
        return self.collector.mode, self.collector.capture_seconds

    def collect(
        self, values: dict[str, float], updates: int, stopping: Callable[[], bool]
    ) -> Collected | None:
        """Collect one chunk with the weights after `updates` updates; None if `stopping`."""
        for name, number in values.items():
            self.values[name].fill_(number)
        got = self.collector.collect(self.net, self.job.rows, self.values, stopping)
        return got and replace(got, chunk=got.chunk._replace(version=updates))

    def barrier(self, number: int) -> list[EpisodeEnd]:
        return self.collector.barrier(number)

    def state(self) -> dict[str, Any]:
        return self.collector.envs.state()

    def load_state(self, state: dict[str, Any]) -> None:
        self.collector.envs.load(state)

    def close(self) -> None:
        self.collector.close()


def _own_share(job: ActorJob) -> EnvConfig:
    """Give native emulators this actor's share of the cores; by default they use all of them."""
    if job.env.native_atari and job.env.threads == "auto":
        share = max(1, available_cores() // job.actors)
        return job.env.model_copy(update={"threads": share})
    return job.env


@dataclass(frozen=True)
class Shared:
    """The memory that actor and learner share."""

    board: WeightsBoard
    mailbox: Mailbox
    # beats [actors]: monotonic time of the newest heartbeat. values [schedules]: as of the newest
    # iteration. orders [1]: nonzero: stop collecting.
    control: SharedTensors


@dataclass(frozen=True, kw_only=True)
class Job(ActorJob):
    """The arguments of an actor process."""

    lockstep: bool
    pull_every: int  # steps of this actor between weight pulls; 0: before every chunk
    registered: Any  # the gymnasium EnvSpec, if only the main process has registered the id
    stacks: Path | None = None  # file for stack dumps of all threads


def actor_main(pipe: Connection, imports: tuple[str, ...], shared: Shared) -> None:
    """The main function of an actor process."""

    def body() -> None:
        import_modules(imports)  # before receiving the job, which may contain their objects
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
            why="every actor process needs its own CUDA context and network there",
            fix="fewer run.actors with more env.num each, actor.device=cpu, or run.replay_on=host",
        )
    return LudusError(
        "E206",
        f"an actor failed: {type(error).__name__}: {error}",
        why="the environment or the algorithm raised it",
        fix="try it in one process with  run.fleet=inline",
    )


class Actor:
    """Runs an `ActorCore` on commands from a pipe, with shared memory for chunks and weights."""

    def __init__(self, job: Job, shared: Shared, pipe: Connection) -> None:
        self.job, self.shared, self.pipe = job, shared, pipe
        self.beats, self.values, self.orders = map(shared.control.array, CONTROL)
        self.beat()
        self.core = ActorCore(job, self.beat)
        self.reported_mode = self.core.mode
        self.stamp, self.updates = -1, 0  # of the newest pulled weights
        self.since_pull, self.chunk_steps = 0, job.rows * job.env.num_envs
        self.nap = SHORTEST_NAP
        self.pending: deque[tuple[str, Any]] = deque()  # commands that ended a wait
        self.running = job.generation > 0 and not job.lockstep
        self.beat()

    def beat(self) -> None:
        self.beats[self.job.index] = time.monotonic()

    def stopping(self) -> bool:
        """Called after every row; sends a heartbeat."""
        self.beat()
        return bool(self.orders[_LEAVE])

    def serve(self) -> None:
        while True:
            self.beat()
            if self.pending:
                if not self._execute(*self.pending.popleft()):
                    return
                continue
            if not self.running or self.pipe.poll(0):
                if self.pipe.poll(1.0) and not self._execute(*self.pipe.recv()):
                    return
                continue
            if self.orders[_LEAVE]:
                time.sleep(0.01)
                continue
            self._collect(dict(zip(self.job.names, self.values.tolist(), strict=True)))

    def _execute(self, command: str, value: Any) -> bool:
        """Execute a command. Return False if the process must exit."""
        core = self.core
        if command == "close":
            core.close()
            return False
        if command == "collect":
            self._collect(value)
        elif command == "run":
            self.running = True
        elif command == "barrier":
            self.pipe.send(("done", core.barrier(value)))
        elif command == "state":
            self.pipe.send(("done", core.state()))
        elif command == "load":
            core.load_state(value)
            self.pipe.send(("done", None))
        return True

    def _collect(self, values: dict[str, float]) -> None:
        job, core = self.job, self.core
        if self.stamp < 0 or self.since_pull >= job.pull_every or job.lockstep:
            self.stamp, self.updates = self.shared.board.pull(core.net, self.stamp)
            self.since_pull = 0
        got = core.collect(values, self.updates, self.stopping)
        if core.mode != self.reported_mode:
            self.reported_mode = core.mode
            self._send("acting", core.mode)
        if got is None:
            self._send("nothing", None)
            return
        self.since_pull += self.chunk_steps
        self.nap = SHORTEST_NAP
        place = self.shared.mailbox.put(got.chunk, self._pause)
        spent = (got.env_seconds, got.act_seconds, got.process)
        self._send("chunk", (place, got.chunk.sequence, list(got.episodes), spent))

    def _send(self, kind: str, value: Any) -> None:
        """Send a message. The pipe may be full while the learner evaluates or saves; waiting for it
        sends heartbeats, too."""
        while not _writable(self.pipe):
            if self.stopping():
                return  # the learner no longer reads messages
        self.pipe.send((kind, value))

    def _pause(self) -> bool:
        """Sleep while the mailbox is full. Return True to stop waiting. Answers the requests of a
        checkpoint; other commands end the wait, because they end the stream."""
        time.sleep(self.nap)
        self.nap = min(1.5 * self.nap, LONGEST_NAP)
        while not self.pending and self.pipe.poll(0):
            command, value = self.pipe.recv()
            if command in ("state", "run"):
                self._execute(command, value)
            else:
                self.pending.append((command, value))
        return self.stopping() or bool(self.pending)


def _writable(pipe: Connection) -> bool:
    """Wait up to 0.1 s until the pipe accepts a message; whether it does."""
    poller = select.poll()
    poller.register(pipe, select.POLLOUT)
    return bool(poller.poll(100))


def device_of_actor(device: str, index: int) -> str:
    """Distribute the actors over all GPUs."""
    if device != "cuda":
        return device
    return f"cuda:{index % max(1, torch.cuda.device_count())}"
