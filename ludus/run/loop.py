"""The one loop: poll -> add -> while ready: sample, learn, feedback -> publish.

With `overlap` the updates of an iteration run while its rows are collected: iteration i acts with
the weights after the updates of i-1 and learns from the rows up to i-1, however long either takes.

Logging, checkpoints and the terminal hang on it through small methods of `Session`; what they
write is decided in run/session.py and ludus/track.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ludus.compute.compile import Compiled
from ludus.compute.cuda_graph import Lanes
from ludus.fleets.inline import Fleet
from ludus.learn.learner import Learner
from ludus.learn.updates import Updates
from ludus.process.watchdog import Pulse
from ludus.replay.replay_store import Store
from ludus.run.recording.actor_stats import ActorScores
from ludus.run.recording.episode_stats import Scores
from ludus.run.recording.timing import Clock, Lapse
from ludus.run.schedule_values import Values
from ludus.types import EpisodeEnd


def _nothing(*_: Any) -> None:
    return None


@dataclass
class Hooks:
    """What happens beside the loop. Each is called between updates, never inside one."""

    episode: Callable[[int, EpisodeEnd], None] = _nothing  # step, episode
    log: Callable[[], None] = _nothing
    checkpoint: Callable[[], None] = _nothing
    best: Callable[[], None] = _nothing
    evaluate: Callable[[], None] = _nothing
    changed: Callable[[str, str], None] = _nothing  # acting or updates; what it is now
    tick: Callable[[], None] = _nothing  # every iteration; cheap


@dataclass
class Every:
    """True once each time a counter passes a multiple of `period`; None: never.

    Depends on the counter alone, so a resumed run acts at the same steps.
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
    store: Store
    learner: Learner
    values: Values
    steps: int
    scores: Scores
    clock: Clock
    updates: Updates
    overlap: bool = False
    lanes: Lanes | None = None
    compiled: Compiled | None = None
    actors: ActorScores = field(default_factory=lambda: ActorScores(1, 1))
    facts: dict[str, Any] = field(default_factory=dict)  # how it computes, for the status
    drawn: dict[str, Any] = field(default_factory=dict)  # by the actors, once; for the record
    hooks: Hooks = field(default_factory=Hooks)
    pulse: Pulse = field(default_factory=Pulse)  # of the calls into environments of this process
    step: int = 0
    stop_reason: str | None = None
    leaving: bool = False
    log_every: Every = field(default_factory=lambda: Every(None))
    checkpoint_every: Every = field(default_factory=lambda: Every(None))
    checkpoint_time: Lapse = field(default_factory=lambda: Lapse(None))
    best_every: Every = field(default_factory=lambda: Every(None))
    eval_every: Every = field(default_factory=lambda: Every(None))

    @property
    def capture_seconds(self) -> float:
        """Spent on building graphs so far; part of the time of training."""
        return self.fleet.capture_seconds + self.updates.capture_seconds

    def actor_metrics(self) -> dict[str, float]:
        """How actors fare, and how each plays."""
        return self.fleet.metrics() | self.actors.metrics()

    def close(self) -> None:
        try:
            self.fleet.close()
        finally:
            if self.lanes is not None:
                self.lanes.close()

    def _notice(self) -> None:
        """What could not be captured or compiled is replaced while running: say so."""
        modes = {"updates": self.updates.mode, "acting": self.fleet.acting}
        if self.compiled is not None:
            modes["compile"] = self.compiled.mode
        for part, mode in modes.items():
            if self.facts.get(part, mode) != mode:
                self.facts[part] = mode
                self.hooks.changed(part, mode)

    def stop(self, reason: str) -> None:
        """After this iteration."""
        self.stop_reason = self.stop_reason or reason

    def leave(self, reason: str) -> None:
        """Sooner: also give up rows and evaluations that are not complete."""
        self.leaving = True
        self.stop(reason)

    def is_leaving(self) -> bool:
        return self.leaving

    def run(self) -> None:
        """Until `steps` agent steps are done or somebody called `stop`."""
        self.checkpoint_time.restart()
        while self.step < self.steps and self.stop_reason is None:
            self.iterate()
            self.beside()

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
            self.store.add(got.chunk)
            self.clock.add("env", got.env_seconds / self.fleet.beside)
            self.clock.add("act", got.act_seconds / self.fleet.beside)
        before, self.step = self.step, self.store.steps_inserted
        for got in arrived:
            for episode in got.episodes:
                self.record(episode)
        if not self.overlap:
            self._learn(self.updates.start, values)
            self._learn(self.updates.finish)
        for got in arrived:
            self.learner.observe(got.chunk.rows, got.chunk.source)
        self.learner.count_steps(before, self.step)

    def _stop_learning(self, failed: BaseException) -> None:
        """Rows did not come, and a checkpoint may be next: weights, optimizer and counters must not
        be those of different updates. What went wrong first stays the reason."""
        if not self.overlap:
            return
        try:
            self._learn(self.updates.finish)
        except Exception as error:
            failed.add_note(f"the updates beside it failed, too: {error}")

    def settle(self) -> None:
        """Do what is due on the rows so far, so that a checkpoint falls between updates whether
        or not the next iteration was begun: with `overlap` the newest rows still wait."""
        if self.overlap:
            values = self.values.at(self.step)
            self._learn(self.updates.start, values)
            self._learn(self.updates.finish)
        self.learner.settle()

    def _learn(self, part: Callable[..., None], *arguments: Any) -> None:
        start = time.perf_counter()
        part(*arguments)
        self.clock.add("learn", time.perf_counter() - start)

    def record(self, episode: EpisodeEnd) -> None:
        self.scores.add(episode)
        self.actors.add(episode)
        self.hooks.episode(self.step, episode)

    def barrier(self, number: int) -> None:
        """All episodes end, all generators are re-derived: the state a checkpoint describes.

        Done once more after loading that checkpoint, it changes nothing but the environments.
        """
        for episode in self.fleet.barrier(number):
            self.record(episode)
        self.scores.barrier(number)
        self.store.break_streams()
        self.store.reseed(number)
        self.learner.break_streams()
        self.learner.reseed(number)

    def beside(self) -> None:
        """What is due between iterations: lines, checkpoints, evaluations, the terminal."""
        late = self.checkpoint_time.due()
        if late:  # where processes have to come to rest, they do some more steps
            self.checkpoint_time.count += 1
            self.settle()
        saving = self.checkpoint_every.due(self.step) or late
        if saving:  # first, so that the line of this step has the updates that are saved with it
            self.settle()
        if self.log_every.due(self.step):
            self.hooks.log()
        if self.best_every.due(self.step):
            self.hooks.best()
        if self.eval_every.due(self.step):
            self.hooks.evaluate()
        if saving:
            self.hooks.checkpoint()
            self.checkpoint_time.restart()  # also where the disk refused: not again at once
        self._notice()
        self.hooks.tick()
