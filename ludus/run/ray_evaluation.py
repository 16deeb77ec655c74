"""The live evaluator on a cluster: a Ray actor on a node that `ludus evaluator` has joined.

Weights go through Ray's object store, results come back as messages. Nothing waits for such a node:
while there is none, a process of the learner's machine evaluates in its place.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import psutil
import ray
import torch
from ray import exceptions
from torch import nn

from ludus import __version__
from ludus.collect.collector import never
from ludus.contract import Algorithm
from ludus.envs.backends.workers import register_shipped
from ludus.fleets.ray.process import Messages, Placed, host
from ludus.fleets.ray.remote import BEAT_SECONDS, done
from ludus.fleets.ray.weights import Weights, load_weights
from ludus.process.child import report
from ludus.process.modules import import_modules
from ludus.replay.chunk_layout import Bytes
from ludus.run.live_evaluation import (
    EvaluatorCore,
    EvaluatorHandle,
    Job,
    LiveEvaluator,
    yielder_for,
)  # fmt: skip
from ludus.settings.resolve import Config
from ludus.settings.sections import EVALUATOR_ROLE

if TYPE_CHECKING:
    from ludus.run.recording.recorder import Recorder

PLACE_SECONDS = 10.0  # time without a place after which a process evaluates instead
LOOK = 0.02  # seconds between looks for a message: each costs some calls of Ray
AGAIN = 1.0  # seconds between attempts of a call that was lost on the way
Beat: TypeAlias = tuple[int, int]  # the evaluation, and a number that grows with its rows


class EvaluatorActor:
    """Runs an `EvaluatorCore`. `prepare`, `setup` and `evaluate` return messages for the learner;
    `beat` and `end` have a thread of their own."""

    def __init__(self) -> None:
        self.beats: Beat = (0, 0)
        self.over = threading.Event()  # training has ended

    def beat(self) -> Beat:
        return self.beats

    def end(self) -> None:
        self.over.set()

    def prepare(self, imports: tuple[str, ...]) -> Messages:
        """The first call: import what later arguments may refer to."""

        def body() -> Messages:
            torch.set_num_threads(1)
            import_modules(imports)
            node = ray.get_runtime_context().get_node_id()
            return [("placed", Placed(os.getpid(), host(), __version__, node))]

        return _guarded(body)

    def setup(self, job: Job, pauses: bool) -> Messages:
        """`pauses`: whether to leave the machine to others, as beside the learner."""

        def body() -> Messages:
            register_shipped(job.registered)
            self.core = EvaluatorCore(job)
            self.yielder = yielder_for(job, self._rest) if pauses else None
            return [("ready", None)]

        return _guarded(body)

    def evaluate(self, weights: Bytes, step: int, updates: int, number: int) -> Messages:
        def body() -> Messages:
            self.beats = (number, 0)
            load_weights(self.core.net, weights)
            if self.yielder is not None:
                self.yielder.begin()
            scores, lengths, spent = self.core.play(self._alive, self._work)
            return [("result", (step, updates, scores, lengths, spent)), ("ready", None)]

        return _guarded(body)

    def _work(self) -> None:
        number, rows = self.beats
        self.beats = (number, rows + 1)

    def _alive(self) -> bool:
        """Runs after every row; never stops the evaluation."""
        self._work()
        if self.yielder is not None and not self.over.is_set():
            self.yielder.pause()
        return False

    def _rest(self, seconds: float) -> None:
        """Sleep, with heartbeats, unless training ends."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0 and not self.over.wait(min(BEAT_SECONDS, left)):
            self._work()


def _guarded(body: Callable[[], Messages]) -> Messages:
    """Run a call. An error is a message, too: Ray could not send every exception."""
    try:
        return body()
    except BaseException as error:
        return [("error", report(error, None))]


class RayEvaluator(EvaluatorHandle):
    """An evaluator on a node of the cluster."""

    place: Placed | None = None  # None: no node has room for it

    def _prepare(self) -> None:
        self.weights = Weights(self.net, ray.put)
        for name in ("beat", "end"):
            ray.method(concurrency_group="health")(getattr(EvaluatorActor, name))
        self.kind = ray.remote(concurrency_groups={"health": 1})(EvaluatorActor)
        self.number = 0  # of the newest evaluation

    def _start(self) -> None:
        gpu = self.job.device != "cpu"  # Ray shows it the one that it may use
        self.actor = self.kind.options(
            num_cpus=0, num_gpus=int(gpu), resources={EVALUATOR_ROLE: 1}, max_restarts=0,
            max_task_retries=0,
        ).remote()  # fmt: skip
        self.place, self.dead = None, ""
        self.process: psutil.Process | None = None  # if it runs on this machine
        self.waits_since = self.beat_seen = self.clock.read()
        self.beat: Beat = (0, 0)
        self.beat_reference: Any = None
        self.asked = self.looked = self.beat_asked = time.monotonic()
        self.messages: deque[tuple[str, Any]] = deque()
        self.call: Callable[[], Any] = partial(self.actor.prepare.remote, self.cfg.run.imports)
        self.reference: Any = self.call()  # the unanswered call; None: there is none
        self.lost = 0.0  # when a call was lost on the way

    @property
    def waits(self) -> bool:
        """Whether it has been without a place for long."""
        waited = self.clock.read() - self.waits_since
        return self.place is None and not self.given_up and waited > PLACE_SECONDS

    def _handle_message(self, kind: str, value: Any) -> bool:
        if kind != "placed":
            return super()._handle_message(kind, value)
        if value.version != __version__:
            self._failed(f"its node has Ludus {value.version}, the learner {__version__}")
            return False
        self.place, self.beat_seen = value, self.clock.read()
        here = value.host == host()
        if here:
            with suppress(psutil.NoSuchProcess):
                self.process = psutil.Process(value.pid)
        where = "this machine" if here else "another machine"
        self.written.say(f"the live evaluator runs on {where}, node {value.node[:8]}")
        self._do("setup", self._job_there(), here)
        return True

    def _job_there(self) -> Job:
        return self.job if self.job.device == "cpu" else replace(self.job, device="cuda:0")

    def _do(self, command: str, *given: Any) -> None:
        self.call = partial(getattr(self.actor, command).remote, *given)
        self.reference = self.call()

    def _give(self, step: int, updates: int) -> bool:
        self.number += 1
        self.beat_seen = self.clock.read()
        try:
            self.weights.publish(self.net, updates)
            self._do("evaluate", self.weights.reference, step, updates, self.number)
        except exceptions.RayError as error:
            self.dead = cause(error)
            return False
        return True

    def _message(self) -> tuple[str, Any] | None:
        now = time.monotonic()
        if not self.messages and now - self.looked >= LOOK:
            self.looked = now
            try:
                self._look(now)
            except exceptions.RayError as error:
                self.dead = cause(error)
                self.messages.append(("error", (None, self._exit_cause(), "")))
        return self.messages.popleft() if self.messages else None

    def _look(self, now: float) -> None:
        """Receive an answer and a heartbeat, and ask for the next heartbeat."""
        if self.lost and now - self.lost >= AGAIN:
            self.lost, self.reference = 0.0, self.call()
        if self.reference is not None and done(self.reference):
            reference, self.reference = self.reference, None
            try:
                self.messages.extend(ray.get(reference))
            except exceptions.ActorUnavailableError:  # the connection broke
                self.lost = now
        if self.beat_reference is not None and done(self.beat_reference):
            reference, self.beat_reference = self.beat_reference, None
            with suppress(exceptions.ActorUnavailableError):
                self._note_beat(ray.get(reference))
        if self.beat_reference is None and now - self.beat_asked >= BEAT_SECONDS:
            self.beat_asked, self.beat_reference = now, self.actor.beat.remote()

    def _note_beat(self, beat: Beat) -> None:
        if beat != self.beat:
            self.beat, self.beat_seen = beat, self.clock.read()

    def _seen(self, now: float) -> tuple[float, bool]:
        number, rows = self.beat
        # One that no node has room for cannot hang.
        seen = now if self.place is None else self.beat_seen
        return seen, number == self.number and rows > 0

    def _exit_cause(self) -> str:
        return f"process exited without an error message ({self.dead})"

    def _announce_end(self) -> None:
        with suppress(exceptions.RayError):
            self.actor.end.remote()

    def _await(self, seconds: float) -> None:
        if self.reference is None:
            time.sleep(seconds)
        else:
            ray.wait([self.reference], timeout=seconds)

    def _end(self) -> None:
        with suppress(exceptions.RayError):
            ray.kill(self.actor, no_restart=True)
        if self.process is not None:
            with suppress(psutil.NoSuchProcess):  # Ray leaves a stopped process alone
                self.process.kill()


def cause(error: Exception) -> str:
    """The line of an error of Ray that says why an actor died."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    known = (line for line in lines[1:] if "died" in line or "exit" in line)
    return next(known, lines[0] if lines else type(error).__name__).rstrip(".")


class ClusterEvaluator:
    """An evaluator on the node that offers itself for it. A process of this machine evaluates while
    there is none: before one joins, and after the loss of its node."""

    def __init__(
        self, cfg: Config, algorithm: Algorithm, net: nn.ModuleDict, written: Recorder
    ) -> None:
        self.start_here = partial(LiveEvaluator, cfg, algorithm, net, written)
        self.remote = RayEvaluator(cfg, algorithm, net, written)
        self.here: LiveEvaluator | None = None

    def tend(self, step: int, updates: int) -> None:
        here, remote = self.here, self.remote
        if here is None:
            remote.tend(step, updates)
            if remote.waits:
                self.here = self.start_here()
                follow(self.here, remote)
        elif remote.place is None:
            here.tend(step, updates)
            remote.look()
        else:
            here.look()
            if not here.busy:
                follow(remote, here)
                here.close()
                self.here = None

    def finish(self, stopping: Callable[[], bool] = never) -> None:
        (self.here or self.remote).finish(stopping)

    def close(self) -> None:
        if self.here is not None:
            self.here.close()
        self.remote.close()


def follow(later: EvaluatorHandle, before: EvaluatorHandle) -> None:
    """Evaluate only newer weights than `before` has, `eval.every` steps later."""
    later.last_evaluated_update = before.last_evaluated_update
    later.since = before.since


def evaluator_kind(cfg: Config) -> type[ClusterEvaluator] | type[LiveEvaluator]:
    """No other machine can join the Ray that Ludus starts by itself."""
    if cfg.ray.address or EVALUATOR_ROLE in ray.cluster_resources():
        return ClusterEvaluator
    return LiveEvaluator
