"""Report environments that do not return, and save what was learned if they never do."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import torch

from ludus.errors import LudusError
from ludus.process.signals import SignalledError, Signals, reason_of
from ludus.process.watchdog import Pulse, Watchdog
from ludus.run.recording.messages import status_writer
from ludus.secret_masking import hide
from ludus.settings.resolve import Config
from ludus.track.metrics.writer import MetricWriter
from ludus.track.run_dir.rundir import RunDir
from ludus.track.terminal import Silent

if TYPE_CHECKING:
    from ludus.run.recording.recorder import Recorder

NOT_BEGUN = "before the run began"


def write_not_begun(cfg: Config, run: RunDir, number: int) -> None:
    """Write the status of a new run that a signal ended before its first step."""
    reason = f"{reason_of(number)} before the first step"
    status_writer(cfg, run).beat("stopped", 0, 0, reason=reason)


def write_refused(cfg: Config, run: RunDir, error: Exception) -> None:
    """Write the status and log of a new run that failed before its first step."""
    text = error.render() if isinstance(error, LudusError) else f"{type(error).__name__}: {error}"
    writer = MetricWriter(run)
    writer.log(text, "error")
    writer.close()
    reason = hide(text).splitlines()[0]
    status_writer(cfg, run).beat("failed", 0, 0, reason=reason)


class EarlyStalls:
    """The watchdog's callbacks while there is no run directory. They write to standard error:
    standard output may be for a result."""

    def __init__(self, signals: Signals) -> None:
        self.signals, self._say = signals, Silent(sys.stderr).message

    def stalled(self, what: str, seconds: float, line: str, stack: str) -> None:
        text = _message(what, seconds, line)
        self._say(f"warning: {text}; Ctrl-C leaves, env.timeout=SECONDS waits longer")

    def resumed(self, what: str, seconds: float) -> None:
        if not self.signals.number:
            self._say(f"{what} returned after {seconds:.0f} s")

    def rescue(self) -> None:
        self._say(f"{self.signals.reason} {NOT_BEGUN}")


@contextmanager
def watched_early(grace: float) -> Iterator[Pulse]:
    """A watchdog for code that runs before there is a run directory."""
    pulse = Pulse()
    try:
        with Signals() as signals, Watchdog(pulse, signals, EarlyStalls(signals), grace=grace):
            yield pulse
    except SignalledError as error:
        raise SignalledError(error.number, NOT_BEGUN) from None


def _message(what: str, seconds: float, line: str) -> str:
    where = f", at {line}" if line else ""
    return f"{what} has not returned for {seconds:.0f} s{where}"


class Stalls:
    """The watchdog's callbacks, called from its own thread. `recorder` is None until the run's
    files are open; `fresh`: not a resumed run, which keeps its old status until it has begun."""

    def __init__(self, cfg: Config, run: RunDir, signals: Signals, *, fresh: bool) -> None:
        self.cfg, self.run, self.signals, self.fresh = cfg, run, signals, fresh
        self.recorder: Recorder | None = None
        self.save: Callable[[], None] = lambda: None

    def stalled(self, what: str, seconds: float, line: str, stack: str) -> None:
        text = _message(what, seconds, line)
        if self.recorder is not None:
            self.recorder.show_stalled(True)
        self._status("stalled", reason=text)
        if self.recorder is not None:
            self.recorder.writer.log(stack)
            self.recorder.writer.event("stalled", self.recorder.step, what=text)
        self._say(f"warning: {text}; Ctrl-C saves and leaves, env.timeout=SECONDS waits longer")

    def resumed(self, what: str, seconds: float) -> None:
        if self.signals.number:
            return  # the run is ending and reports that itself
        text = f"{what} returned after {seconds:.0f} s"
        self._status("starting" if self.recorder is None else "running")
        if self.recorder is not None:
            self.recorder.writer.event("returned", self.recorder.step, what=text)
            self.recorder.show_stalled(False)
        self._say(text)

    def rescue(self) -> None:
        """Save while the main thread is stuck in native code of an environment, between updates.
        Updates in the background are finished first."""
        if self.recorder is None:
            if self.fresh:
                write_not_begun(self.cfg, self.run, self.signals.number)
            return
        recorder, loop = self.recorder, self.recorder.loop
        if loop.learner.device.type == "cuda":
            torch.cuda.synchronize(loop.learner.device)
        with suppress(Exception):  # a failed update must not prevent the checkpoint
            loop.updates.finish()
        self.save()
        recorder.writer.event("end", recorder.step, reason=self.signals.reason)
        self._status("stopped", reason=self.signals.reason)
        recorder.writer.log(f"{self.signals.reason}, with an environment that never returned")
        recorder.writer.close()

    def _say(self, text: str) -> None:
        """Write to disk at once, with all earlier lines: the main thread may hang for good."""
        if self.recorder is None:
            Silent().message(text)
        else:
            self.recorder.say(text)
            self.recorder.writer.flush()

    def _status(self, state: str, **more: Any) -> None:
        if self.recorder is not None:
            loop = self.recorder.loop
            updates, score = loop.learner.updates, loop.scores.mean
            self.recorder.status.beat(state, loop.step, updates, score=score, **more)
        elif self.fresh:
            status_writer(self.cfg, self.run).beat(state, 0, 0, **more)
