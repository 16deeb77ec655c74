"""The one loop: poll -> add -> while ready: sample, learn, feedback -> publish.

With `overlap` the updates of an iteration run while its rows are collected: iteration i acts with
the weights after the updates of i-1 and learns from the rows up to i-1, however long either takes.

Logging, checkpoints and the terminal are callbacks (`Hooks`) that run/recording/recorder.py sets.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from ludus.compute.compile import Compiled
from ludus.compute.cuda_graph import Streams
from ludus.compute.gpu_usage import GpuUsage
from ludus.contract import Values
from ludus.fleets.base import Fleet
from ludus.learn.eager import Updates
from ludus.learn.learner import Learner
from ludus.process.watchdog import Pulse
from ludus.replay.roles.store import ReplayRoles
from ludus.replay.store import SavedStore
from ludus.run.recording.statistics import ActorScores, Clock, Lapse, Scores
from ludus.types import EpisodeEnd


def _nothing(*_: Any) -> None:
    return None


@contextmanager
def frozen_garbage() -> Iterator[None]:
    """Keep Python's garbage collector off the objects that exist now: they live as long as the
    run, and there are some 100,000 of them."""
    if gc.get_freeze_count():  # the caller's own
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


@dataclass
class Hooks:
    """Callbacks that run between updates."""

    episode: Callable[[int, EpisodeEnd], None] = _nothing  # step, episode
    log: Callable[[], None] = _nothing
    checkpoint: Callable[[], None] = _nothing
    best: Callable[[], None] = _nothing
    evaluate: Callable[[], None] = _nothing
    changed: Callable[[str, str], None] = _nothing  # acting, updates or compile; its new mode
    tick: list[Callable[[], None]] = field(default_factory=list)  # every iteration; cheap


@dataclass
class Every:
    """True once each time a counter passes a multiple of `period`; None: never.

    It depends on the counter alone, so a resumed run acts at the same steps.
    """

    period: int | None
    seen: int = 0

    def due(self, step: int) -> bool:
        if self.period is None or step // self.period <= self.seen // self.period:
            return False
        self.seen = step
        return True

    def next(self) -> int | None:
        """The smallest counter at which it will be due."""
        return None if self.period is None else (self.seen // self.period + 1) * self.period


@dataclass
class Loop:
    fleet: Fleet
    store: SavedStore
    learner: Learner
    values: Values
    steps: int
    scores: Scores
    clock: Clock
    updates: Updates
    overlap: bool = False
    streams: Streams | None = None
    compiled: Compiled | None = None
    gpu: GpuUsage | None = None  # of the learner; None on a CPU
    roles: ReplayRoles | None = None  # the store, if it is in processes of its own
    actors: ActorScores = field(default_factory=lambda: ActorScores(1, 1))
    compute_info: dict[str, Any] = field(default_factory=dict)  # device, precision, ...
    sampled_hparams: dict[str, Any] = field(default_factory=dict)  # one list for each name
    hooks: Hooks = field(default_factory=Hooks)
    pulse: Pulse = field(default_factory=Pulse)  # of the calls into environments of this process
    step: int = 0  # agent steps of the run: rows with mask=True
    refill: int = 0  # rows that a resumed run collects again; they were counted before
    stop_reason: str | None = None
    leaving: bool = False
    log_every: Every = field(default_factory=lambda: Every(None))
    checkpoint_every: Every = field(default_factory=lambda: Every(None))
    checkpoint_time: Lapse = field(default_factory=lambda: Lapse(None))
    best_every: Every = field(default_factory=lambda: Every(None))
    eval_every: Every = field(default_factory=lambda: Every(None))

    @property
    def capture_seconds(self) -> float:
        """Seconds spent on building CUDA graphs; part of the training time."""
        return self.fleet.capture_seconds + self.updates.capture_seconds

    def actor_metrics(self) -> dict[str, float]:
        """Health of the actors, and the score of each."""
        return self.fleet.metrics() | self.actors.metrics()

    def gather(self) -> None:
        """Collect the metrics of other processes before a line of them is written."""

    def extra_tensors(self) -> dict[str, Tensor]:
        """More tensors for a checkpoint."""
        return {}

    def load_extra(self, tensors: dict[str, Tensor]) -> None:
        """Load what `extra_tensors` returned."""

    def close(self) -> None:
        try:
            self.fleet.close()
        finally:
            if self.roles is not None:
                self.roles.close()
            if self.streams is not None:
                self.streams.close()
            if self.gpu is not None:
                self.gpu.close()

    def _report_mode_changes(self) -> None:
        """Report a part that could not be captured or compiled and fell back while running."""
        modes = {"updates": self.updates.mode, "acting": self.fleet.acting}
        if self.compiled is not None:
            modes["compile"] = self.compiled.mode
        for part, mode in modes.items():
            if self.compute_info.get(part, mode) != mode:
                self.compute_info[part] = mode
                self.hooks.changed(part, mode)

    def stop(self, reason: str) -> None:
        """End the run after this iteration."""
        self.stop_reason = self.stop_reason or reason

    def leave(self, reason: str) -> None:
        """End the run sooner: also give up incomplete rows and evaluations."""
        self.leaving = True
        self.stop(reason)

    def is_leaving(self) -> bool:
        return self.leaving

    def run(self) -> None:
        """Iterate until `steps` agent steps are done or `stop` was called."""
        self.checkpoint_time.restart()
        with frozen_garbage():
            while self.step < self.steps and self.stop_reason is None:
                self.iterate()
                self.run_periodic()

    def iterate(self) -> None:
        values = self.values.at(self.step)
        self.fleet.publish(self.learner.net, self.learner.updates)
        if self.overlap:
            self._learn(self.updates.start, values)
        try:
            arrived = self.fleet.poll(values, self.is_leaving)
        except BaseException as error:
            self._stop_learning(error)
            raise
        if self.overlap:
            self._learn(self.updates.finish)
        for got in arrived:
            if self.store.full:  # its actor waits meanwhile
                self._learn(self.updates.start, values)
                self._learn(self.updates.finish)
            self.store.add(got.chunk)
            self.clock.add("env", got.env_seconds / self.fleet.capabilities.parallel)
            self.clock.add("act", got.act_seconds / self.fleet.capabilities.parallel)
        before = self.step
        self._count(sum(int(got.chunk.rows.mask.sum()) for got in arrived))
        for got in arrived:
            for episode in got.episodes:
                self.record(episode)
        if not self.overlap:
            self._learn(self.updates.start, values)
            self._learn(self.updates.finish)
        for got in arrived:
            self.learner.observe(got.chunk.rows, got.chunk.source)
        self.learner.count_steps(before, self.step)

    def _count(self, steps: int) -> None:
        """Add the steps of new rows; the rows of a refill are not new."""
        again = min(self.refill, steps)
        self.refill -= again
        self.step += steps - again

    def _stop_learning(self, failed: BaseException) -> None:
        """Finish the updates under way after `poll` failed: a checkpoint may follow, and weights,
        optimizer and counters must be of the same update. The first error stays the reason."""
        if not self.overlap:
            return
        try:
            self._learn(self.updates.finish)
        except Exception as error:
            failed.add_note(f"the updates under way failed, too: {error}")

    def flush(self) -> None:
        """Do the updates that are due on the rows so far, so that a checkpoint falls between
        updates: with `overlap` the newest rows still wait for theirs, and replay roles may not
        have inserted them yet."""
        if self.roles is not None:
            self.roles.drain()
        if self.overlap or self.roles is not None:
            values = self.values.at(self.step)
            self._learn(self.updates.start, values)
            self._learn(self.updates.finish)
        self.learner.flush()

    def _learn(self, part: Callable[..., None], *arguments: Any) -> None:
        start = time.perf_counter()
        part(*arguments)
        self.clock.add("learn", time.perf_counter() - start)

    def record(self, episode: EpisodeEnd) -> None:
        self.scores.add(episode)
        self.actors.add(episode)
        self.hooks.episode(self.step, episode)

    def barrier(self, number: int) -> None:
        """End all episodes and re-derive all generators: the state that a checkpoint describes.

        A second barrier after loading that checkpoint changes nothing but the environments.
        """
        for episode in self.fleet.barrier(number):
            self.record(episode)
        self.scores.barrier(number)
        self.store.break_streams()
        self.store.reseed(number)
        self.learner.break_streams()
        self.learner.reseed(number)

    def run_periodic(self) -> None:
        """Run the callbacks that are due: metrics, checkpoints, evaluations, the terminal."""
        late = self.checkpoint_time.due()
        if late:  # hogwild workers take some more steps until they pause
            self.checkpoint_time.count += 1
            self.flush()
        saving = self.checkpoint_every.due(self.step) or late
        if saving:  # first, so that this step's metrics include the updates saved with it
            self.flush()
        if self.log_every.due(self.step):
            self.hooks.log()
        if self.best_every.due(self.step):
            self.hooks.best()
        if self.eval_every.due(self.step):
            self.hooks.evaluate()
        if saving:
            self.hooks.checkpoint()
            self.checkpoint_time.restart()  # also if writing failed: do not retry at once
        self._report_mode_changes()
        for tick in self.hooks.tick:
            tick()
