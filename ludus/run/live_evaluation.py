"""The live evaluator: a process that evaluates the learner's newest weights while training goes on,
without ever making the learner wait. Its results are a curve of their own.

The learner copies its weights out when the evaluator is ready for new ones, and at no other time.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from typing import Any, Protocol, TypeAlias

import numpy as np
import torch
from torch import nn

from ludus.collect.collector import never
from ludus.contract import Algorithm
from ludus.envs.backends.workers import register_shipped, shipped_spec
from ludus.envs.config import EnvConfig
from ludus.envs.make import probe_spec
from ludus.evals.evaluate import evaluate_policy
from ludus.fleets.processes.weights import WeightsBoard
from ludus.learn.placement import prepare_cudnn
from ludus.process.child import run_child
from ludus.process.fork_server import process_context
from ludus.process.health import NO_HEARTBEAT, heartbeat_clock
from ludus.process.shared_tensors import SharedTensors
from ludus.process.supervisor import Child
from ludus.process.yield_cpu import CpuYielder, family_seconds, own_seconds, use_batch_scheduling
from ludus.run.networks import normalizer_for
from ludus.run.recording.messages import with_rules
from ludus.run.state import RUNNING
from ludus.settings.imports import import_again
from ludus.settings.resolve import Config
from ludus.track.metrics.sinks import Copies
from ludus.track.metrics.writer import MetricWriter
from ludus.units import show_count

Array: TypeAlias = np.ndarray[Any, Any]
ATTEMPTS = 3  # evaluators in a row that may fail before the run goes on without one
START_SECONDS = 120.0  # importing and making environments may take this long
BEAT_SECONDS = 0.2  # between heartbeats while it rests
LAST_SECONDS = 30.0  # for the evaluation that is under way when training ends
_BEAT, _OVER = 0, 1  # of the signs: newest heartbeat (monotonic); whether training has ended


@dataclass(frozen=True)
class Job:
    algorithm: Algorithm
    env: EnvConfig
    columns: int  # of the normaliser's running returns
    episodes: int
    seed: int
    epsilon: float
    registered: Any
    device: str


class Written(Protocol):
    """What the evaluator needs of a recorder."""

    writer: MetricWriter
    board: Copies
    evaluation: str  # the newest one, for the screen

    def say(self, text: str) -> None: ...


def follow(
    pipe: Connection, imports: tuple[str, ...], board: WeightsBoard, signs: SharedTensors
) -> None:
    """The main function of the evaluator's process."""
    use_batch_scheduling()  # first: threads inherit it

    def body() -> None:
        import_again(imports)
        job: Job = pipe.recv()
        register_shipped(job.registered)
        helped = job.env.workers > 0  # their work is ours, and our own clock does not see it
        yielder = CpuYielder(
            sleep=partial(rest, signs.array()),
            clock=time.monotonic if helped else time.process_time,
            spent=family_seconds if helped else own_seconds,
        )
        evaluate(pipe, job, board, signs.array(), yielder)

    run_child(pipe, body)


def evaluate(
    pipe: Connection, job: Job, board: WeightsBoard, signs: Array, yielder: CpuYielder
) -> None:
    """Evaluate the weights that are handed out, one after the other, until the pipe ends."""
    net = _net(job)

    def beat() -> None:
        signs[_BEAT] = time.monotonic()

    def alive() -> bool:
        """Called after every row; never stops the evaluation."""
        beat()
        if not signs[_OVER]:  # else no training is left to give way to
            yielder.pause()
        return False

    while True:
        pipe.send(("ready", None))
        step = pipe.recv()
        _, updates = board.pull(net)
        yielder.begin()  # to wait for weights was no work; to make environments is
        start = time.perf_counter()
        got = evaluate_policy(
            job.algorithm, net, job.env, episodes=job.episodes, seed=job.seed,
            epsilon=job.epsilon, stopping=alive, sign=beat,
        )  # fmt: skip
        spent = time.perf_counter() - start
        pipe.send(("result", (step, updates, got.scores, got.lengths, spent)))


def rest(signs: Array, seconds: float) -> None:
    """Sleep, with heartbeats, unless training ends."""
    end = time.monotonic() + seconds
    while (now := time.monotonic()) < end and not signs[_OVER]:
        signs[_BEAT] = now
        time.sleep(min(BEAT_SECONDS, end - now))


def _net(job: Job) -> nn.ModuleDict:
    spec = probe_spec(job.env)
    with torch.random.fork_rng(devices=[]):
        net = job.algorithm.build(spec)
    normalizer = normalizer_for(job.env, spec, job.columns)
    if normalizer is not None:
        net["normalizer"] = normalizer
    if job.device != "cpu":
        prepare_cudnn("fp32")
    return net.to(job.device).requires_grad_(False)


def _columns(net: nn.ModuleDict) -> int:
    """Of the learner's own normaliser: how many there are is for the fleet to know."""
    returns = net.state_dict().get(RUNNING)
    return 1 if returns is None else returns.numel()


def one_core(env: EnvConfig) -> EnvConfig:
    """A core to spare is all the evaluator may ask for: env.threads and env.workers are what
    training has. One worker and the evaluator take turns. (None would not do: without workers an
    Atari game may be stepped by another implementation.)"""
    if env.native_atari:
        return env.model_copy(update={"threads": 1})
    return env.model_copy(update={"workers": 1}) if env.workers > 1 else env


class LiveEvaluator:
    """The learner's side. `tend` is called between iterations and never waits."""

    def __init__(
        self, cfg: Config, algorithm: Algorithm, net: nn.ModuleDict, written: Written
    ) -> None:
        self.cfg, self.net, self.written = cfg, net, written
        self.job = Job(
            algorithm, one_core(cfg.env), _columns(net), cfg.eval.episodes, cfg.run.seed,
            cfg.eval.epsilon, shipped_spec(cfg.env),
            "cpu" if cfg.eval.device == "auto" else cfg.eval.device,
        )  # fmt: skip
        self.context = process_context("ludus.fleets.processes.actor")
        self.board = WeightsBoard(net, self.context)
        self.signs = SharedTensors.of(np.zeros(2), self.context)
        self.failures, self.ready, self.busy, self.over = 0, False, False, False
        self.last_evaluated_update = -1  # updates in the weights that were evaluated last
        self.since = 0  # the step they were of
        self.clock = heartbeat_clock(cfg.actor.hang_seconds)
        self._start()

    def _start(self) -> None:
        self.child = Child.start(
            self.context, follow, (self.cfg.run.imports, self.board, self.signs), name="evaluator",
            daemon=self.cfg.env.workers == 0, now=self.clock.read(),
        )  # fmt: skip
        self.asked = time.monotonic()  # to start, or for an evaluation
        self.child.send(self.job)

    def tend(self, step: int, updates: int) -> None:
        """Take a result that is there; hand out newer weights to an evaluator that is ready."""
        if self.failures >= ATTEMPTS:
            return
        self._listen()
        every = self.cfg.eval.every or 1
        if self.ready and updates > self.last_evaluated_update and step - self.since >= every:
            self.board.publish(self.net, updates)
            if not self.child.send(step):
                self._failed(self.child.exit_cause(1.0))
                return
            self.ready, self.last_evaluated_update, self.since = False, updates, step
            self.busy, self.asked = True, time.monotonic()

    def _listen(self) -> None:
        """Take its messages. A failure ends it: its replacement has sent none yet."""
        now = self.clock.read()
        while (message := self._message()) is not None:
            if not self._hear(*message):
                return
        if not self.ready:
            self._check_heartbeat(now)

    def _check_heartbeat(self, now: float) -> None:
        beat, hang = float(self.signs.array()[_BEAT]), float(self.cfg.actor.hang_seconds)
        seen = self.child.heartbeat.look(max(beat, self.asked), now)  # a request is a new beginning
        # Before its first row it makes environments, and slow looks like hung.
        limit = hang if beat > self.asked else max(START_SECONDS, hang)
        if now - seen > limit:
            self._failed(f"{NO_HEARTBEAT} for {limit:g} s")

    def _message(self) -> tuple[str, Any] | None:
        try:
            return self.child.pipe.recv() if self.child.pipe.poll(0) else None
        except (EOFError, OSError):
            return "error", (None, self.child.exit_cause(1.0), "")

    def finish(self, stopping: Callable[[], bool] = never) -> None:
        """Training is over: wait a while for the running evaluation, and report if it is lost."""
        self.over = True
        self.signs.array()[_OVER] = 1
        deadline = time.monotonic() + LAST_SECONDS
        while self.busy and not stopping() and time.monotonic() < deadline:
            with suppress(OSError):
                self.child.pipe.poll(0.1)
            self._listen()
        if self.busy:
            self.written.say(f"the live evaluation of step {self.since} is given up: no time left")

    def _hear(self, kind: str, value: Any) -> bool:
        """Whether more messages may follow."""
        if kind == "ready":
            self.ready = True
        elif kind == "result":
            self.busy, self.failures = False, 0  # it works: only failures in a row end it
            self._write(*value)
        else:
            self._failed(str(value[1]).splitlines()[0])
            return False
        return True

    def _write(
        self, step: int, updates: int, scores: list[float], lengths: list[int], seconds: float
    ) -> None:
        """At the step that the weights are of, which is some time ago."""
        summary = self.written.writer.evaluation(
            step, updates, scores, lengths, checkpoint="live", seconds=seconds
        )
        self.written.board.write(
            step, {f"performance/live_eval_{k}": v for k, v in summary.items()}
        )
        rules = self.cfg.env.score_facts
        self.written.writer.event("live evaluation", step, mean=summary["mean"], **rules)
        score = f"{summary['mean']:.4g} ± {summary['std']:.3g} ({len(scores)} episodes)"
        at = show_count(step)
        self.written.evaluation = f"{score} at {at}"
        self.written.say(with_rules(f"live evaluation at step {at}: {score}", rules))

    def _failed(self, why: str) -> None:
        self.failures += 1
        again = self.failures < ATTEMPTS and not self.over
        left = "a new one starts" if again else "the run goes on without one"
        if self.over:
            left = f"the evaluation of step {self.since} is lost"
        self.written.say(f"warning: the live evaluator failed: {why}; {left}")
        self.child.end()
        self.ready = self.busy = False
        if again:
            self._start()

    def close(self) -> None:
        self.child.end()
