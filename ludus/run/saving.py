"""Saver: decides when checkpoints are written, marked as a rescue, or retried.
track/checkpoint/writer.py knows their format."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ludus.errors import RUN_FAILED, LudusError
from ludus.run.recording.messages import resume_command
from ludus.run.state import pack, spec_json, weights_health
from ludus.secret_masking import masked
from ludus.track.checkpoint.format import newest_resumable
from ludus.track.checkpoint.reader import Loaded
from ludus.track.checkpoint.writer import CheckpointWriter
from ludus.track.run_dir.archive import abandon
from ludus.track.run_dir.manifest import origin

if TYPE_CHECKING:
    from ludus.run.recording.recorder import Recorder

MISSES = 3  # failed attempts in a row that end the run
APART = 60.0  # seconds between the first two attempts, doubled after each


class Attempts:
    """Spaces retries after disk errors, so that a short outage does not end the run."""

    def __init__(self, clock: Callable[[], float] | None = None) -> None:
        self.clock, self.misses, self._next = clock or time.monotonic, 0, -math.inf

    def due(self) -> bool:
        return self.clock() >= self._next

    def missed(self) -> None:
        self._next = self.clock() + APART * 2**self.misses
        self.misses += 1

    def succeeded(self) -> None:
        self.misses, self._next = 0, -math.inf


class Saver:
    def __init__(self, recorder: Recorder) -> None:
        cfg, self.run, self.loop = recorder.cfg, recorder.run, recorder.loop
        self.recorder = recorder
        self.checkpoints = CheckpointWriter(self.run.checkpoints, cfg.run.keep)
        self.attempts = Attempts()
        self.barriers = 0
        self.goes_back = False  # the user named the checkpoint to resume from
        self.facts: dict[str, Any] = {}  # for the event of a resume
        self._saved_at: int | None = None
        self._saved_time: float | None = None
        self._barrier_at: int | None = None
        self._refused: LudusError | None = None  # why the newest checkpoint is not on disk
        self._skipped = 0  # checkpoints skipped shortly after a disk error
        self._best_refused = False

    # Begin and end.
    def restore(self, loaded: Loaded) -> None:
        self.barriers = loaded.state["barriers"]
        self._saved_at = self._barrier_at = self.loop.step

    def open(self, loaded: Loaded | None) -> list[str]:
        """Move newer checkpoints to aside-*. Return messages about it."""
        if loaded is None:
            return []
        place = abandon(self.run, loaded.step) if self.goes_back else None
        if place is None:
            self.checkpoints.resume_from(loaded.path)
            return []
        self.checkpoints.resume_from(loaded.path, place.path / "checkpoints")
        self.facts = {"back_from": place.step, "abandoned": place.path.name}
        return [
            f"the run goes back from step {place.step} to {loaded.step}: later checkpoints, and "
            f"its files as they were, are kept in {place.path}"
        ]

    def finish(self) -> None:
        self.checkpoint(final=True)
        if self._refused is not None:
            raise self._unsaved("the last steps are not saved")

    def seconds_since(self) -> float | None:
        return None if self._saved_time is None else time.monotonic() - self._saved_time

    # During the run.
    def checkpoint(
        self, *, flush: bool = True, barrier: bool = True, final: bool = False, rescue: bool = False
    ) -> None:
        """Make a barrier if the run is exact, then write everything to disk. Without `flush`, skip
        the updates that are due: they have just failed. A resumed run begins with a barrier.

        A disk error does not end the run at once: earlier checkpoints stay, and a later one
        retries; `final` always tries. `MISSES` failures in a row end the run.
        """
        loop = self.loop
        if self._saved_at == loop.step:
            return
        if flush:
            loop.flush()
        self.recorder.log_line()
        if self._barrier_at != loop.step:
            self.barriers += 1
            if self.recorder.exact and barrier:
                loop.barrier(self.barriers)
                self._report_cuts()
            self._barrier_at = loop.step
        if not final and not self.attempts.due():
            self._skipped += 1
            return
        try:
            path, rescue = self._save(rescue)
        except LudusError as error:
            if error.code != "E301":
                raise
            self._missed(error)
            return
        self._saved(path, rescue)

    def _report_cuts(self) -> None:
        recorder, progress = self.recorder, self.recorder.progress
        (recorder.note if progress.interval_is_default else recorder.warn)(progress.cuts_many())

    def _save(self, rescue: bool) -> tuple[Path, bool]:
        recorder = self.recorder
        tensors, state = pack(self.loop)
        health = weights_health(self.loop.learner)
        if not health["sound"] and not rescue:
            recorder.say(f"warning: weights exploded, the largest is {health['largest']:.3g}")
        rescue = rescue or not health["sound"]
        segments, replay_state = recorder.replay.pack(self.checkpoints.linkable)
        state |= self._identity() | {
            "health": health,
            "replay": replay_state,
            "barriers": self.barriers,
            "offsets": recorder.writer.offsets(),
            "callbacks": recorder.callbacks.state(),
        }
        save = self.checkpoints.save
        return save(self.loop.step, tensors, state, replay=segments, rescue=rescue), rescue

    def _saved(self, path: Path, rescue: bool) -> None:
        step, recorder = self.loop.step, self.recorder
        self._saved_at, self._saved_time = step, time.monotonic()
        if self.attempts.misses:
            tried, passed = self.attempts.misses, self._skipped
            recorder.say(f"checkpoints are written again: {tried} misses, {passed} not tried")
        self._refused, self._skipped = None, 0
        self.attempts.succeeded()
        if rescue:
            good = newest_resumable(self.run.checkpoints)
            before = "begins anew" if good is None else f"goes on from step {good}"
            recorder.say(
                f"warning: checkpoint {path.name} is a rescue: ludus resume {before}; "
                f"{resume_command(recorder.cfg, self.run)} --at {step} goes on from it"
            )
        recorder.writer.event("rescue" if rescue else "checkpoint", step, path=path.name)
        recorder.callbacks.on_checkpoint(recorder, path)

    def _missed(self, error: LudusError) -> None:
        self._refused = error
        self.attempts.missed()
        misses = self.attempts.misses
        self.recorder.writer.event("checkpoint missed", self.loop.step, error=error.what)
        self.recorder.say(f"warning: {error.what} ({misses} of {MISSES} misses that end the run)")
        if misses >= MISSES:
            raise self._unsaved(f"{MISSES} checkpoints in a row could not be written")

    def _unsaved(self, what: str) -> LudusError:
        """Return the error that ends a run with a full disk: loss, newest checkpoint, fix."""
        assert self._refused is not None
        newest = newest_resumable(self.run.checkpoints)
        saved = f"step {newest}" if newest is not None else "none"
        return LudusError(
            "E301",
            f"{what}: {self._refused.what}",
            where=f"{self.run.checkpoints} (newest checkpoint: {saved}, now {self.loop.step})",
            why=self._refused.why,
            fix=f"free some space, then  {resume_command(self.recorder.cfg, self.run)}",
            exit_code=RUN_FAILED,
        )

    def best(self) -> None:
        """Save the weights if the mean of the last whole episodes is the best so far."""
        scores, before = self.loop.scores, self.loop.scores.best
        if not scores.improved():
            return
        if not weights_health(self.loop.learner)["sound"]:
            scores.best = before
            return
        state = {"step": self.loop.step, "score": scores.best, **self._identity()}
        model = {"model": self.loop.learner.net.state_dict()}
        try:
            self.checkpoints.save(self.loop.step, model, state, tags=("best",), resumable=False)
        except LudusError as error:
            if error.code != "E301":
                raise
            scores.best = before  # not saved: the next window must beat the old best
            if not self._best_refused:
                self.recorder.say(f"warning: best: {error.what}")
            self._best_refused = True
            return
        self._best_refused = False
        self.recorder.writer.event("best", self.loop.step, score=scores.best)

    def _identity(self) -> dict[str, Any]:
        """Return the facts that identify a checkpoint and decide whether a run can resume from it:
        settings, the environment's spaces, the run's id and package versions."""
        cfg, spec = self.recorder.cfg, self.loop.fleet.spec
        shape = spec_json(spec) | {"num_envs": spec.num_envs}
        return {"config": masked(cfg.tree()), "spec": shape, "origin": self._origin}

    @cached_property
    def _origin(self) -> dict[str, Any]:
        return origin(self.run)
