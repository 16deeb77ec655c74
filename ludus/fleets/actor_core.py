"""An actor without its transport: environments, a policy, and the rows they produce.

It knows no process, pipe or shared memory. Its caller copies weights into `net` and takes the
chunks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from ludus.collect.collector import Collected, Collector
from ludus.collect.device_runner import choose_runner
from ludus.compute.cuda_graph import EMULATED, captures
from ludus.compute.gpu_memory import is_out_of_memory
from ludus.contract import Algorithm, lasting_state
from ludus.envs.adapter import Envs
from ludus.envs.backends.serial import set_heartbeat
from ludus.envs.config import EnvConfig
from ludus.envs.make import make_envs
from ludus.envs.render.screenshots import Camera
from ludus.errors import LudusError
from ludus.learn.placement import arrange_images, prepare_gpu
from ludus.process.limits import available_cores
from ludus.run.networks import build_net
from ludus.types import EpisodeEnd, tree_leaves

GENERATION = 1_000_003  # offset of barrier numbers in the seeds of replacements


@dataclass(frozen=True, kw_only=True)
class ActorJob:
    """The arguments of an actor."""

    index: int
    actors: int  # of this learner
    first: int = 0  # actors of the learners before this one
    all_actors: int = 0  # of all learners; 0: as many as `actors`
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
    registered: Any = None  # the gymnasium EnvSpec, if only the main process has registered the id
    order: str = ""  # the learner's memory format for images on a CPU
    camera: Camera | None = None
    kept: Mapping[str, Any] = field(default_factory=dict)  # the newest known state of predecessors

    @property
    def number(self) -> int:
        """The index among the actors of all learners."""
        return self.first + self.index

    @property
    def count(self) -> int:
        """The actors of all learners."""
        return self.all_actors or self.actors


class ActorCore:
    """The environments and policy of one actor. It calls `beat` while its environments work."""

    def __init__(self, job: ActorJob, beat: Callable[[], None]) -> None:
        self.job, n = job, job.env.num_envs
        if job.device != "cpu":
            prepare_gpu(job.device, job.precision)
        envs = make_envs(
            _own_share(job), seed=job.seed, first_env=job.number * n, camera=job.camera
        )
        set_heartbeat(envs.backend, beat)
        envs.spec = replace(envs.spec, num_envs=n * job.count)
        self.collector = self._collector(envs)
        self.net = build_net(job.algorithm, job.env, envs.spec, n * job.count)
        self.net.to(job.device).requires_grad_(False)
        arrange_images(self.net, torch.device(job.device).type, job.order)
        self.values = {k: torch.zeros((), device=job.device) for k in job.names}
        if job.generation:
            if job.kept:
                self.load_state(job.kept)
            self.barrier(job.barrier + GENERATION * job.generation)

    def _collector(self, envs: Envs) -> Collector:
        job = self.job
        captured = captures(job.capture, job.device)
        runner = choose_runner(job.device, captured=captured, must_capture=job.capture == "on")
        made = Collector(
            job.algorithm, envs, seed=job.seed, index=job.number, device=job.device,
            pipelined=job.pipelined, precision=job.precision, runner=runner,
        )  # fmt: skip
        made.ctx.actors = job.count
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

    @property
    def lasts(self) -> bool:
        """Whether the algorithm has lasting state."""
        return bool(tree_leaves(lasting_state(self.collector.runner.state(0))))

    def state(self) -> dict[str, Any]:
        return self.collector.state()

    def load_state(self, state: Mapping[str, Any]) -> None:
        self.collector.load_state(state)

    def close(self) -> None:
        self.collector.close()


def explain_failure(error: BaseException) -> LudusError:
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


def _own_share(job: ActorJob) -> EnvConfig:
    """Give native emulators this actor's share of the cores; by default they use all of them."""
    if job.env.native_atari and job.env.threads == "auto":
        share = max(1, available_cores() // job.count)
        return job.env.model_copy(update={"threads": share})
    return job.env


def device_of_actor(device: str, index: int) -> str:
    """Distribute the actors over all GPUs."""
    if device != "cuda":
        return device
    return f"cuda:{index % max(1, torch.cuda.device_count())}"


def planned_mode(capture: str, device: str) -> str:
    """The expected mode of acting; empty on a CPU without capture."""
    if captures(capture, device):
        return EMULATED if device == "cpu" else "captured"
    return "" if device == "cpu" else "eager"
