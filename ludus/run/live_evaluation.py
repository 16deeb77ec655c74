"""The live evaluator: a process that evaluates the learner's newest weights during training. The
learner never waits for it. Its results form a separate curve.

The learner copies its weights only when the evaluator is ready for new ones. On a cluster it may
run on another machine (ray_evaluation.py): `EvaluatorCore` and `EvaluatorHandle`, which is the
learner's side, know nothing of what carries weights and results.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from torch import nn

from ludus.collect.collector import never
from ludus.contract import Algorithm
from ludus.envs.backends.workers import register_shipped, shipped_spec
from ludus.envs.config import EnvConfig
from ludus.envs.make import probe_spec
from ludus.evals.evaluate import evaluate_policy
from ludus.fleets.processes.transport import WeightsBoard
from ludus.learn.placement import prepare_gpu
from ludus.process.child import run_child
from ludus.process.fork_server import process_context
from ludus.process.modules import import_modules
from ludus.process.shared_tensors import SharedTensors
from ludus.process.supervisor import NO_HEARTBEAT, ActiveClock, Child
from ludus.process.yield_cpu import CpuYielder, family_seconds, own_seconds, use_batch_scheduling
from ludus.run.networks import build_net
from ludus.run.state import RUNNING
from ludus.settings.resolve import Config

if TYPE_CHECKING:
    from ludus.run.recording.recorder import Recorder

Array: TypeAlias = np.ndarray[Any, Any]
ATTEMPTS = 3  # failures in a row after which the run continues without an evaluator
START_SECONDS = 120.0  # time limit for imports and for making environments
BEAT_SECONDS = 0.2  # between heartbeats while it sleeps
LAST_SECONDS = 30.0  # time limit for the running evaluation when training ends
_BEAT, _OVER = 0, 1  # indices of `signs`: newest heartbeat (monotonic); training has ended


@dataclass(frozen=True)
class Job:
    algorithm: Algorithm
    env: EnvConfig
    num_envs: int  # of the training run
    num_returns: int  # of the normaliser's running returns
    episodes: int
    seed: int
    epsilon: float
    registered: Any
    device: str


class EvaluatorCore:
    """What an evaluator does, wherever its weights come from: load them into `net`, then play."""

    def __init__(self, job: Job) -> None:
        self.job, self.net = job, _net(job)

    def play(
        self, alive: Callable[[], bool], beat: Callable[[], None]
    ) -> tuple[list[float], list[int], float]:
        """Play whole episodes. Return their scores and lengths, and the seconds they took."""
        job, start = self.job, time.perf_counter()
        got = evaluate_policy(
            job.algorithm, self.net, job.env, episodes=job.episodes, seed=job.seed,
            epsilon=job.epsilon, stopping=alive, heartbeat=beat,
        )  # fmt: skip
        return got.scores, got.lengths, time.perf_counter() - start


def yielder_for(job: Job, sleep: Callable[[float], None]) -> CpuYielder:
    helped = job.env.workers > 0  # this process's CPU clock does not include workers
    return CpuYielder(
        sleep=sleep,
        clock=time.monotonic if helped else time.process_time,
        spent=family_seconds if helped else own_seconds,
    )


def serve(
    pipe: Connection, imports: tuple[str, ...], board: WeightsBoard, signs: SharedTensors
) -> None:
    """The main function of the evaluator's process."""
    use_batch_scheduling()  # first: threads inherit it

    def body() -> None:
        import_modules(imports)
        job: Job = pipe.recv()
        register_shipped(job.registered)
        yielder = yielder_for(job, partial(rest, signs.array()))
        evaluate(pipe, job, board, signs.array(), yielder)

    run_child(pipe, body)


def evaluate(
    pipe: Connection, job: Job, board: WeightsBoard, signs: Array, yielder: CpuYielder
) -> None:
    """Evaluate the weights received, one set after the other, until the pipe closes."""
    core = EvaluatorCore(job)

    def beat() -> None:
        signs[_BEAT] = time.monotonic()

    def alive() -> bool:
        """Runs after every row; never stops the evaluation."""
        beat()
        if not signs[_OVER]:  # after training there is no need to yield
            yielder.pause()
        return False

    while True:
        pipe.send(("ready", None))
        step = pipe.recv()
        _, updates = board.pull(core.net)
        yielder.begin()  # do not count the wait for weights as work
        scores, lengths, spent = core.play(alive, beat)
        pipe.send(("result", (step, updates, scores, lengths, spent)))


def rest(signs: Array, seconds: float) -> None:
    """Sleep, with heartbeats, unless training ends."""
    end = time.monotonic() + seconds
    while (now := time.monotonic()) < end and not signs[_OVER]:
        signs[_BEAT] = now
        time.sleep(min(BEAT_SECONDS, end - now))


def _net(job: Job) -> nn.ModuleDict:
    spec = replace(probe_spec(job.env), num_envs=job.num_envs)
    net = build_net(job.algorithm, job.env, spec, job.num_returns)
    if job.device != "cpu":
        prepare_gpu(job.device, "fp32")
    return net.to(job.device).requires_grad_(False)


def one_core(env: EnvConfig) -> EnvConfig:
    """Limit the evaluator to one core: env.threads and env.workers are settings for training. One
    worker and the evaluator take turns. (With no worker, another implementation might step an Atari
    game.)"""
    if env.native_atari:
        return env.model_copy(update={"threads": 1})
    return env.model_copy(update={"workers": 1}) if env.workers > 1 else env


class EvaluatorHandle:
    """The learner's side. The loop calls `tend` between iterations; it never waits."""

    def __init__(
        self, cfg: Config, algorithm: Algorithm, net: nn.ModuleDict, written: Recorder
    ) -> None:
        self.cfg, self.net, self.written = cfg, net, written
        returns = net.state_dict().get(RUNNING)
        num_returns = 1 if returns is None else returns.numel()
        self.job = Job(
            algorithm, one_core(cfg.env), cfg.total_envs, num_returns, cfg.eval.episodes,
            cfg.run.seed, cfg.eval.epsilon, shipped_spec(cfg.env),
            "cpu" if cfg.eval.device == "auto" else cfg.eval.device,
        )  # fmt: skip
        self.failures, self.ready, self.busy, self.over = 0, False, False, False
        self.last_evaluated_update = -1  # number of updates of the weights evaluated last
        self.since = 0  # the step of those weights
        self.asked = 0.0  # time of the last start or request
        self.clock = ActiveClock(cfg.actor.hang_seconds / 4)
        self._prepare()
        self._start()

    # What depends on the transport.
    def _prepare(self) -> None:
        """Make what all evaluators of this run share."""
        raise NotImplementedError

    def _start(self) -> None:
        """Start an evaluator and note the time in `asked`, without waiting for it."""
        raise NotImplementedError

    def _give(self, step: int, updates: int) -> bool:
        """Send weights to evaluate. False if the evaluator is gone."""
        raise NotImplementedError

    def _message(self) -> tuple[str, Any] | None:
        """The next message; None if there is none yet."""
        raise NotImplementedError

    def _seen(self, now: float) -> tuple[float, bool]:
        """When its newest heartbeat was seen, and whether its evaluation has begun."""
        raise NotImplementedError

    def _exit_cause(self) -> str:
        raise NotImplementedError

    def _announce_end(self) -> None:
        """Let the evaluator know that training has ended."""
        raise NotImplementedError

    def _await(self, seconds: float) -> None:
        """Wait for a message."""
        raise NotImplementedError

    def _end(self) -> None:
        """End the evaluator at once."""
        raise NotImplementedError

    def tend(self, step: int, updates: int) -> None:
        """Write a result that has arrived; send newer weights if the evaluator is ready."""
        if self.given_up:
            return
        self._read_messages()
        every = self.cfg.eval.every or 1
        if self.ready and updates > self.last_evaluated_update and step - self.since >= every:
            if not self._give(step, updates):
                self._failed(self._exit_cause())
                return
            self.ready, self.last_evaluated_update, self.since = False, updates, step
            self.busy, self.asked = True, time.monotonic()

    def look(self) -> None:
        """Read messages as `tend` does, and send no weights."""
        if not self.given_up:
            self._read_messages()

    @property
    def given_up(self) -> bool:
        return self.failures >= ATTEMPTS

    def _read_messages(self) -> None:
        """Read its messages. Stop after a failure: its replacement has sent none yet."""
        now = self.clock.read()
        while (message := self._message()) is not None:
            if not self._handle_message(*message):
                return
        if not self.ready:
            self._check_heartbeat(now)

    def _check_heartbeat(self, now: float) -> None:
        hang = float(self.cfg.actor.hang_seconds)
        seen, begun = self._seen(now)
        # It makes environments before its first row, so a slow start looks like a hang.
        limit = hang if begun else max(START_SECONDS, hang)
        if now - seen > limit:
            self._failed(f"{NO_HEARTBEAT} for {limit:g} s")

    def finish(self, stopping: Callable[[], bool] = never) -> None:
        """After training, wait some time for the running evaluation; report if it is lost."""
        self.over = True
        self._announce_end()
        deadline = time.monotonic() + LAST_SECONDS
        while self.busy and not stopping() and time.monotonic() < deadline:
            self._await(0.1)
            self._read_messages()
        if self.busy:
            cause = "the run was stopped" if stopping() else f"no result after {LAST_SECONDS:g} s"
            self.written.say(f"the live evaluation of step {self.since} was given up: {cause}")

    def _handle_message(self, kind: str, value: Any) -> bool:
        """Handle one message. Return whether more messages may follow."""
        if kind == "ready":
            self.ready = True
        elif kind == "result":
            self.busy, self.failures = False, 0  # it works: only failures in a row end it
            self.written.write_evaluation(*value, live=True)
        else:
            self._failed(str(value[1]).splitlines()[0])
            return False
        return True

    def _failed(self, why: str) -> None:
        self.failures += 1
        again = self.failures < ATTEMPTS and not self.over
        left = "a new one starts" if again else "the run goes on without one"
        if self.over:
            left = f"the evaluation of step {self.since} is lost"
        self.written.say(f"warning: the live evaluator failed: {why}; {left}")
        self._end()
        self.ready = self.busy = False
        if again:
            self._start()

    def close(self) -> None:
        self._end()


class LiveEvaluator(EvaluatorHandle):
    """An evaluator in a process of this machine: weights through shared memory, messages through a
    pipe."""

    def _prepare(self) -> None:
        self.context = process_context("ludus.fleets.processes.actor")
        self.board = WeightsBoard(self.net, self.context)
        self.signs = SharedTensors.of(np.zeros(2), self.context)

    def _start(self) -> None:
        self.child = Child.start(
            self.context, serve, (self.cfg.run.imports, self.board, self.signs), name="evaluator",
            daemon=self.cfg.env.workers == 0, now=self.clock.read(),
        )  # fmt: skip
        self.asked = time.monotonic()
        self.child.send(self.job)

    def _give(self, step: int, updates: int) -> bool:
        self.board.publish(self.net, updates)
        return self.child.send(step)

    def _message(self) -> tuple[str, Any] | None:
        try:
            return self.child.pipe.recv() if self.child.pipe.poll(0) else None
        except (EOFError, OSError):
            return "error", (None, self._exit_cause(), "")

    def _seen(self, now: float) -> tuple[float, bool]:
        beat = float(self.signs.array()[_BEAT])
        return self.child.last_beat(max(beat, self.asked), now), beat > self.asked

    def _exit_cause(self) -> str:
        return self.child.exit_cause(1.0)

    def _announce_end(self) -> None:
        self.signs.array()[_OVER] = 1

    def _await(self, seconds: float) -> None:
        with suppress(OSError):
            self.child.pipe.poll(seconds)

    def _end(self) -> None:
        self.child.end()
