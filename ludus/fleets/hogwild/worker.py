"""A hogwild worker process: environments, a local copy of the network, and a training loop.

It copies the shared weights, acts for a fragment, computes gradients, and applies them to the
shared weights. Rows stay in the process; it reports episode ends and sums of metrics.
"""

from __future__ import annotations

import copy
import gc
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ludus import seeding
from ludus.collect.collector import Collected, Collector
from ludus.contract import Algorithm, Values
from ludus.envs.backends.serial import set_heartbeat
from ludus.envs.backends.workers import register_shipped
from ludus.envs.make import make_envs
from ludus.envs.render.screenshots import Camera
from ludus.fleets.hogwild.shared_parameters import (
    Board,
    TryLock,
    count_steps,
    move_net,
    move_statistics,
    shared_names,
)
from ludus.learn.eager import EagerUpdates
from ludus.learn.learner import Learner
from ludus.learn.placement import arrange_images
from ludus.process.child import dump_when_asked, run_child
from ludus.process.modules import import_modules
from ludus.process.shared_tensors import SharedTensors
from ludus.replay.store import build_store
from ludus.run.networks import normalizer_for
from ludus.settings.resolve import Config, from_tree
from ludus.track.atomic_files import open_append
from ludus.track.run_dir.rundir import RunDir
from ludus.types import EpisodeEnd, Loss

BEAT_SECONDS = 0.25  # between heartbeats while it is paused
_PARTS = ("env", "act", "learn", "other")  # of the time spent


@dataclass(frozen=True)
class Job:
    """The arguments of a worker process."""

    config: Mapping[str, Any]  # resolved settings as plain values
    algorithm: Algorithm
    slab: SharedTensors
    step_lock: TryLock  # held while steps are counted
    index: int
    generation: int  # number of earlier workers with this index; changes the seeds
    barrier: int
    precision: str
    order: str  # memory format of images
    crash_dir: Path
    stacks: Path  # file for stack dumps of all threads
    env_state: Mapping[str, np.ndarray[Any, Any]]
    registered: Any  # the gymnasium EnvSpec, if only the main process has registered the id
    every: float  # seconds between reports


@dataclass
class WorkerReport:
    """Results of the fragments since the previous report."""

    episodes: list[tuple[int, EpisodeEnd]] = field(default_factory=list)  # with the global step
    sums: dict[str, tuple[float, int]] = field(default_factory=dict)  # (sum, count) by metric
    rates: list[float] = field(default_factory=list)  # learning rates of the newest update
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(_PARTS, 0.0))


def worker_main(pipe: Connection, job: Job) -> None:
    """The main function of a worker process."""

    def body() -> None:
        dump_when_asked(job.stacks, open_append)
        # Modules of the fork server are never garbage; scanning them would copy their pages.
        gc.freeze()
        worker = Worker(job)
        pipe.send(("paused", (WorkerReport(), worker.collector.state())))
        worker.serve(pipe)

    run_child(pipe, body, threads=None)


class WorkerLearner(Learner):
    """The learner of one worker: gradients of a local copy, applied to the shared weights. Updates
    take no lock (Mnih et al. 2016, section 4). `net` acts and computes gradients; `shared` is the
    same network in memory that all workers write.

    Only trained parameters are copied. Targets and normalisers are read from shared memory.
    """

    def __init__(
        self,
        *args: Any,
        slab: SharedTensors,
        board: Board,
        index: int,
        together: bool,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.board, self.index = board, index
        self.together = together  # one set of statistics for all workers
        self.shared = copy.deepcopy(self.net)
        move_net(self.shared, slab, fill=False)
        self.optimizer = self.algorithm.optimizer(self.shared)
        self.shared_params = [p for g in self.optimizer.param_groups for p in g["params"]]
        move_statistics(self.optimizer, slab, 0 if together else index, fill=False)
        trained = {id(p) for p in self.params}
        for name, t in shared_names(self.net).items():
            if id(t) not in trained:
                t.data = slab.tensor(f"net/{name}")
        counted = [s for s in self.optimizer.state.values() if "step" in s]
        if together:
            # Adam increments this count and then divides by a function of it. If another worker
            # reset a shared count to 0 in between, Adam would divide by zero.
            for state in counted:
                state["step"] = state["step"].clone()
        self.steps = [state["step"] for state in counted]
        self.again = self.plan.epochs * self.plan.minibatches > 1

    def reseed(self, barrier: int) -> None:
        self.ctx.rng.manual_seed(seeding.stream_seed(self.seed, "learner", self.index, barrier))

    @torch.no_grad()
    def refresh(self) -> None:
        """Copy the shared weights to the local network."""
        torch._foreach_copy_(self.params, self.shared_params)
        self.ctx.updates.fill_(self.board.total("updates"))

    def _gradients(self, batch: Any, weight: Tensor | None) -> tuple[Loss, Tensor]:
        loss, total = super()._gradients(batch, weight)
        for mine, shared in zip(self.params, self.shared_params, strict=True):
            shared.grad = mine.grad  # a reference, only in this process
        return loss, total

    def _step(self) -> None:
        if self.together:
            self.prepare_step()
        self.optimizer.step()
        self.updates += 1
        self.board.add(self.index, "updates", 1)
        self.board.beat(self.index)
        # Update numbers may repeat or be skipped, unlike steps: see docs/contract.md.
        done = self.board.total("updates")
        self.ctx.updates.fill_(done)
        if "after_update" in self.hooks:
            self.algorithm.after_update(self.shared, done)
        if self.again:
            self.refresh()

    def prepare_step(self) -> None:
        """Set Adam's step to the number of updates of all workers. A shared counter could lose
        concurrent increments."""
        done = self.board.total("updates")
        for step in self.steps:
            step.fill_(done)

    @torch.no_grad()
    def count_steps(self, before: int, steps: int) -> None:
        if "after_steps" in self.hooks:
            self.algorithm.after_steps(self.shared, before, steps)


class Worker:
    def __init__(self, job: Job) -> None:
        import_modules(job.config["run"]["imports"])
        self.cfg = cfg = from_tree(job.config, "the main process")
        torch.set_num_threads(cfg.run.thread_count)
        register_shipped(job.registered)
        self.index, self.every, self.step_lock = job.index, job.every, job.step_lock
        self.board = Board(job.slab)
        seed = cfg.run.seed
        if job.generation:
            seed = seeding.env_seed(seed, "replacement", job.index, job.generation)
        first = job.index * cfg.env.num_envs
        camera = None
        if cfg.log.screenshots and job.index == 0:
            camera = Camera(RunDir(job.crash_dir.parent).screenshots, cfg.log.screenshots)
        self.envs = make_envs(_one_thread(cfg), seed=seed, first_env=first, camera=camera)
        set_heartbeat(self.envs.backend, lambda: self.board.beat(job.index))
        self.envs.spec = spec = replace(self.envs.spec, num_envs=cfg.total_envs)
        self.plan = job.algorithm.plan.for_envs(self.envs.num)
        self.learner = WorkerLearner(
            job.algorithm,
            spec,
            seed=seed,
            normalizer=normalizer_for(cfg.env, spec, cfg.env.num_envs),
            precision=job.precision,
            nan_limit=cfg.run.nan_limit,
            crash_dir=job.crash_dir / f"actor-{job.index}",
            slab=job.slab,
            board=self.board,
            index=job.index,
            together=cfg.run.shared_statistics,
        )
        arrange_images(self.learner.net, "cpu", job.order)
        self.collector = Collector(
            job.algorithm, self.envs, seed=seed, index=job.index, precision=job.precision
        )
        # Values that an actor samples once stay the same in its replacement.
        self.collector.ctx.seed, self.collector.ctx.actors = cfg.run.seed, cfg.run.actors
        horizon = cfg.run.horizon_steps
        self.store = build_store(
            self.plan, spec, self.envs.num, seed=seed, horizon=horizon,
            first_env=job.index * self.envs.num,
        )  # fmt: skip
        self.updates = EagerUpdates(self.store, self.learner)
        self.values = Values(self.plan, horizon)
        self.report, self.last_report_time = WorkerReport(), time.monotonic()
        if job.env_state:
            self.collector.load_state(job.env_state)
        self.barrier(job.barrier)

    def stopping(self) -> bool:
        """Called after every row; sends a heartbeat."""
        self.board.beat(self.index)
        return self.board.leaving()

    def barrier(self, number: int) -> list[EpisodeEnd]:
        cut = self.collector.barrier(number)
        self.store.break_streams()
        self.store.reseed(number)
        self.learner.break_streams()
        self.learner.reseed(number)
        return cut

    def serve(self, pipe: Connection) -> None:
        """Run fragments between pauses, and execute the main process's commands in a pause."""
        while True:
            self.board.beat(self.index)
            if not pipe.poll(BEAT_SECONDS):
                continue
            command, value = pipe.recv()
            if command == "close":
                self.envs.close()
                return
            if command == "barrier":
                pipe.send(("barrier_done", self.barrier(value)))
                continue
            while self.board.steps < self.board.limit and not self.board.leaving():
                self.fragment()
                if time.monotonic() - self.last_report_time > self.every:
                    pipe.send(("report", self.take_report()))
            pipe.send(("paused", (self.take_report(), self.collector.state())))

    def take_report(self) -> WorkerReport:
        report, self.report, self.last_report_time = self.report, WorkerReport(), time.monotonic()
        report.sums = self.learner.take_sums()
        report.rates = [float(group["lr"]) for group in self.learner.optimizer.param_groups]
        return report

    def fragment(self) -> None:
        """Algorithms 1 and S1 to S3 of Mnih et al. 2016, from one synchronisation to the next."""
        began, before = time.perf_counter(), sum(self.report.seconds.values())
        values = self.values.at(self.board.steps)  # annealed on the steps of all workers
        self.learner.refresh()
        version = int(self.learner.ctx.updates)
        got = self.collector.collect(self.learner.net, self.plan.chunk, values, self.stopping)
        if got is None:
            return
        self._insert(got, version)
        start = time.perf_counter()
        skipped, samples = self.learner.skipped, self.store.samples_drawn
        popped = getattr(self.store, "popped", 0)
        self.updates.start(values)
        self.updates.finish()
        self.report.seconds["learn"] += time.perf_counter() - start
        self.board.add(self.index, "skipped", self.learner.skipped - skipped)
        self.board.add(self.index, "samples_drawn", self.store.samples_drawn - samples)
        self.board.add(self.index, "popped", getattr(self.store, "popped", 0) - popped)
        if self.index == 0:  # the normalisers have a single writer
            self.learner.observe(got.chunk.rows)
        count_steps(self.board, self.step_lock, self.learner.count_steps)
        self.board.beat(self.index)
        known = sum(self.report.seconds.values()) - before
        self.report.seconds["other"] += max(0.0, time.perf_counter() - began - known)

    def _insert(self, got: Collected, version: int) -> None:
        # The only source of this worker's store.
        self.store.add(got.chunk._replace(source=0, version=version))
        self.board.add(self.index, "steps", int(got.chunk.rows.mask.sum()))
        step = self.board.steps
        self.report.episodes += [(step, episode) for episode in got.episodes]
        self.report.seconds["env"] += got.env_seconds
        self.report.seconds["act"] += got.act_seconds


def _one_thread(cfg: Config) -> Any:
    """Give native Atari one thread; by default it uses all cores, which the workers share."""
    if cfg.env.native_atari and cfg.env.threads == "auto":
        return cfg.env.model_copy(update={"threads": 1})
    return cfg.env
