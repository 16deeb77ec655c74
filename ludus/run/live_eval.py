"""The live evaluator: a process that follows the learner's newest weights and evaluates them as
configured, without ever making the learner wait. Its results are a curve of their own.

The learner copies its weights out when the evaluator is ready for new ones, and at no other time.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, Protocol

import torch
from torch import nn

from ludus.config import Config
from ludus.config_imports import import_again
from ludus.contract import Algorithm
from ludus.envs.config import EnvConfig
from ludus.envs.make import probe_spec
from ludus.envs.workers import leave_with_parent, process_context, register_shipped, shipped_spec
from ludus.errors import LudusError
from ludus.evals.evaluate import evaluate_policy
from ludus.run.actor import die_with_parent
from ludus.run.normalizing import normalizer_for
from ludus.run.weights import WeightsBoard
from ludus.track.metrics import MetricWriter
from ludus.track.tensorboard import Board

ATTEMPTS = 3  # evaluators that may fail before the run goes on without one
NICE = 10  # training comes first where cores are short


@dataclass(frozen=True)
class Job:
    algorithm: Algorithm
    env: EnvConfig
    columns: int  # of the normaliser's running returns
    episodes: int
    seed: int
    epsilon: float
    registered: Any


class Written(Protocol):
    """What the evaluator needs of a recorder."""

    writer: MetricWriter
    board: Board

    def say(self, text: str) -> None: ...


def follow(pipe: Connection, imports: tuple[str, ...], board: WeightsBoard) -> None:
    """The life of the evaluator's process."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    die_with_parent()
    threading.Thread(target=leave_with_parent, daemon=True).start()
    torch.set_num_threads(1)
    with suppress(OSError):
        os.nice(NICE)
    try:
        import_again(imports)
        job: Job = pipe.recv()
        register_shipped(job.registered)
        net = _net(job)
        while True:
            pipe.send(("ready", None))
            step = pipe.recv()
            _, updates = board.pull(net)
            start = time.perf_counter()
            got = evaluate_policy(
                job.algorithm, net, job.env, episodes=job.episodes, seed=job.seed,
                epsilon=job.epsilon,
            )  # fmt: skip
            spent = time.perf_counter() - start
            pipe.send(("result", (step, updates, got.scores, got.lengths, spent)))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return
    except BaseException as error:
        what = error.what if isinstance(error, LudusError) else f"{type(error).__name__}: {error}"
        with suppress(OSError):
            pipe.send(("error", what))


def _net(job: Job) -> nn.ModuleDict:
    spec = probe_spec(job.env)
    with torch.random.fork_rng(devices=[]):
        net = job.algorithm.build(spec)
    normalizer = normalizer_for(job.env, spec, job.columns)
    if normalizer is not None:
        net["normalizer"] = normalizer
    return net.requires_grad_(False)


class LiveEvaluator:
    """The learner's side. `tend` is called between iterations and never waits."""

    def __init__(
        self, cfg: Config, algorithm: Algorithm, net: nn.ModuleDict, written: Written
    ) -> None:
        self.cfg, self.net, self.written = cfg, net, written
        columns = cfg.run.actors * cfg.env.slots
        self.job = Job(
            algorithm, cfg.env, columns, cfg.eval.episodes, cfg.run.seed, cfg.eval.epsilon,
            shipped_spec(cfg.env),
        )  # fmt: skip
        self.context = process_context("ludus.run.actor")
        self.board = WeightsBoard(net, self.context)
        self.failures, self.ready = 0, False
        self.told = -1  # updates in the weights that were evaluated last
        self.since = 0  # the step they were of
        self._start()

    def _start(self) -> None:
        self.pipe, theirs = self.context.Pipe()
        self.process = self.context.Process(
            target=follow,
            args=(theirs, self.cfg.run.imports, self.board),
            name="ludus-evaluator",
            daemon=self.cfg.env.workers == 0,
        )
        self.process.start()
        theirs.close()
        with suppress(OSError):
            self.pipe.send(self.job)

    def tend(self, step: int, updates: int) -> None:
        """Take a result that is there; hand out newer weights to an evaluator that is ready."""
        if self.failures >= ATTEMPTS:
            return
        try:
            while self.pipe.poll(0):
                self._hear(*self.pipe.recv())
            every = self.cfg.eval.every or 1
            if self.ready and updates > self.told and step - self.since >= every:
                self.board.publish(self.net, updates)
                self.pipe.send(step)
                self.ready, self.told, self.since = False, updates, step
        except (EOFError, OSError):
            self._failed("its process ended without a word")

    def _hear(self, kind: str, value: Any) -> None:
        if kind == "ready":
            self.ready = True
        elif kind == "result":
            self._write(*value)
        else:
            self._failed(str(value).splitlines()[0])

    def _write(
        self, step: int, updates: int, scores: list[float], lengths: list[int], seconds: float
    ) -> None:
        """At the step that the weights are of, which is some time ago."""
        told = self.written.writer.evaluation(
            step, updates, scores, lengths, checkpoint="live", seconds=seconds
        )
        self.written.board.write(step, {f"performance/live_eval_{k}": v for k, v in told.items()})
        rules = self.cfg.env.score_facts
        self.written.writer.event("live evaluation", step, mean=told["mean"], **rules)

    def _failed(self, why: str) -> None:
        self.failures += 1
        left = "the run goes on without one" if self.failures >= ATTEMPTS else "a new one starts"
        self.written.say(f"warning: the live evaluator failed: {why}; {left}")
        self._stop()
        self.ready = False
        if self.failures < ATTEMPTS:
            self._start()

    def _stop(self) -> None:
        if self.process.is_alive():
            self.process.kill()
        self.process.join(2.0)
        self.pipe.close()

    def close(self) -> None:
        if self.failures < ATTEMPTS:
            self._stop()
