"""A run from configuration to exit code: build the parts, restore a checkpoint, run the loop, fill
the run directory. Names no algorithm and no file format."""

from __future__ import annotations

import signal
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from ludus import errors
from ludus.compute.gpu_memory import explain_out_of_memory, is_out_of_memory, out_of_memory
from ludus.contract import Algorithm
from ludus.errors import LudusError
from ludus.process.signals import REASONS, HungError, SignalledError, Signals
from ludus.process.watchdog import Pulse, Watchdog
from ludus.run.build import build_loop, exact
from ludus.run.compatibility import conflicting_settings, cuts_episodes, learns_no_more, shortened
from ludus.run.learners.loop import GroupLoop
from ludus.run.learners.members import start_learners
from ludus.run.live_evaluation import LiveEvaluator
from ludus.run.loop import Loop
from ludus.run.recording import messages
from ludus.run.recording.live_report import LiveReport
from ludus.run.recording.recorder import Recorder
from ludus.run.stalls import Stalls, write_not_begun, write_refused
from ludus.run.state import check_env, load_weights, other_scaling
from ludus.settings.resolve import Config
from ludus.settings.resume import matching
from ludus.track.callbacks import Callback
from ludus.track.checkpoint.format import damaged, newest_resumable
from ludus.track.checkpoint.reader import Loaded, load, load_newest_good
from ludus.track.run_dir.archive import set_aside, sweep
from ludus.track.run_dir.lock import RunLock
from ludus.track.run_dir.manifest import check_origin
from ludus.track.run_dir.rundir import RunDir
from ludus.track.terminal import Silent

if TYPE_CHECKING:
    from ludus.run.ray_evaluation import ClusterEvaluator

CUT_SHORT = (*REASONS, "time limit")
# Failures of environments, of actors, of other learners, and of updates in a row: they occur
# between two updates, so that the weights are worth a checkpoint.
SAVED_AFTER = ("E202", "E203", "E205", "E206", "E401", "E403")


@dataclass(frozen=True)
class RunResult:
    path: Path
    step: int
    updates: int
    score: float | None  # mean raw score of the last training episodes
    reason: str  # finished | interrupted | terminated ... | time limit | a callback's reason
    exit_code: int
    saved: int | None = None  # step of the newest checkpoint to resume from


def train_run(
    cfg: Config,
    algorithm: Algorithm,
    *,
    path: Path,
    callbacks: Sequence[Callback] = (),
    resume: bool = False,
    at: str | int | None = None,
    init_from: Path | None = None,
    quiet: bool = False,
    command: Sequence[str] = (),
    preset: str | None = None,
    notes: Sequence[str] = (),
    csv_typed: bool = True,
) -> RunResult:
    """Train in the run directory `path` (made by RunDir.create) until the end or a signal. `at`:
    the step of the checkpoint to resume from, if not the newest."""
    run = RunDir(path)
    torch.set_num_threads(cfg.run.thread_count)
    pulse = Pulse()
    with RunLock(run.path), Signals() as signals:
        sweep(run)
        loaded = load_newest_good(run.path, refill=True, at=at) if resume else None
        cfg, doubts = matched(cfg, run, loaded) if loaded is not None else (cfg, [])
        algorithm, shorter = shortened(cfg, algorithm)
        moved = "" if resume else set_aside(run)
        stalls = Stalls(cfg, run, signals, fresh=loaded is None)
        with Watchdog(pulse, signals, stalls, grace=cfg.run.grace):
            loop, replay_bytes = _build(cfg, algorithm, run, loaded, quiet, pulse)
            try:
                recorder = Recorder(
                    cfg, run, loop, callbacks, quiet=quiet, command=list(command),
                    exact=exact(cfg, loop.learner.device), replay_bytes=replay_bytes,
                )  # fmt: skip
                recorder.saver.goes_back = at is not None
                recorder.lineage = {"preset": preset} if preset else {}
                recorder.warnings += [*notes, *doubts, *filter(None, (moved, shorter))]
                recorder.csv_typed = csv_typed
                return _drive(cfg, loop, recorder, loaded, init_from, signals, stalls)
            finally:
                with suppress(HungError):  # an environment may also hang in close()
                    loop.close()


def _build(
    cfg: Config, algorithm: Algorithm, run: RunDir, loaded: Loaded | None, quiet: bool, pulse: Pulse
) -> tuple[Loop, int]:
    before = loaded.state.get("compute", {}) if loaded is not None else {}
    silent = quiet or cfg.log.terminal == "off"
    with explain_out_of_memory(cfg), _report_interrupt(cfg, run, loaded):
        _announce(cfg, run, loaded, quiet)
        loop, size = build_loop(cfg, algorithm, run, before=before, quiet=silent, pulse=pulse)
        if isinstance(loop, GroupLoop):
            try:
                start_learners(cfg, algorithm, run, loop)
            except BaseException:
                loop.close()
                raise
        return loop, size


def matched(cfg: Config, run: RunDir, loaded: Loaded) -> tuple[Config, list[str]]:
    """Return the settings to resume a checkpoint with, and warnings about other changes. Raise E306
    or E307 if the checkpoint is of another run or of other settings."""
    doubts = check_origin(run, loaded.path, loaded.state)
    return matching(loaded.state.get("config"), cfg, loaded.path.name), doubts


def _announce(cfg: Config, run: RunDir, loaded: Loaded | None, quiet: bool) -> None:
    """Report the start of a run on the terminal and in its status: actors may take a while. A
    resumed run keeps its earlier status until it has begun."""
    if loaded is None:
        messages.status_writer(cfg, run).beat("starting", 0, 0)
    if cfg.run.capabilities.own_processes and not quiet:
        actors = messages.starting_actors(cfg)
        Silent().message(f"{cfg.algo_name} on {cfg.env.id}, run {run.name}: starting {actors}")


@contextmanager
def _report_interrupt(cfg: Config, run: RunDir, loaded: Loaded | None) -> Iterator[None]:
    """Report a signal that ends the run before there is anything to save."""
    try:
        yield
    except KeyboardInterrupt as error:
        number = error.number if isinstance(error, SignalledError) else signal.SIGINT
        if loaded is None:  # else the status of the earlier session stays
            write_not_begun(cfg, run, number)
        raise SignalledError(number, f"before the first step of {run.name}") from None
    except Exception as error:
        if loaded is None:
            with suppress(OSError, LudusError):  # the cause matters more
                write_refused(cfg, run, error)
        raise


def _drive(
    cfg: Config,
    loop: Loop,
    recorder: Recorder,
    loaded: Loaded | None,
    init_from: Path | None,
    signals: Signals,
    stalls: Stalls,
) -> RunResult:
    """Restore or begin, run the loop, and write everything to disk, however the run ends."""
    with LiveReport(cfg, loop, recorder):
        with explain_out_of_memory(cfg), _report_interrupt(cfg, recorder.run, loaded):
            # No file of the run has changed yet.
            _begin(loop, recorder, loaded, init_from)
            recorder.open(loaded)
        stalls.recorder, signals.stop = recorder, loop.leave
        stalls.save = lambda: _save_weights(recorder, barrier=False, rescue=False)
        try:
            recorder.started(loaded)
            _warn(cfg, loop, recorder)
            _limit_time(loop, cfg.run.time)
            _train(cfg, loop, recorder)
        except KeyboardInterrupt:
            loop.stop_reason = "quit"
            done = _result(loop, recorder, signals.code or 128 + signal.SIGINT)
            lost = messages.unsaved_steps(done.step, done.saved) or "everything was saved"
            recorder.failed(f"quit by a second signal; {lost}")
            return done
        except Exception as error:
            trace = traceback.format_exc()
            if is_out_of_memory(error):
                refused = out_of_memory(cfg, error)
                recorder.failed(refused.render(), trace)
                raise refused from None
            if not isinstance(error, LudusError):
                recorder.failed(f"{type(error).__name__}: {error}", trace)
                raise
            if error.code in SAVED_AFTER and loop.step:
                # An environment that failed cannot be asked for a barrier.
                barrier = error.code in ("E401", "E206")
                _save_weights(recorder, barrier=barrier, rescue=error.code == "E401")
            explained = messages.env_failed(error, cfg, recorder.run, loop.step)
            recorder.failed(explained.render(), trace)
            raise explained from error.__cause__
        return _result(loop, recorder, signals.code)


def _train(cfg: Config, loop: Loop, recorder: Recorder) -> None:
    try:
        with _live_evaluation(cfg, loop, recorder):
            loop.run()
        if loop.step >= loop.steps and loop.stop_reason in CUT_SHORT:
            loop.stop_reason = None  # the run was complete already
        recorder.warn(messages.learned_nothing(cfg, loop))
        recorder.finish(loop.stop_reason or "finished")
    except HungError as hung:  # an environment that hangs cannot be asked for a barrier
        loop.stop_reason = hung.reason
        _save_weights(recorder, barrier=False, rescue=False)
        recorder.finish(hung.reason)


def _warn(cfg: Config, loop: Loop, recorder: Recorder) -> None:
    """Warn about conflicting settings."""
    spec, every = loop.fleet.spec, loop.checkpoint_every.period
    for text in conflicting_settings(cfg, loop.learner.algorithm, spec):
        recorder.warn(text)
    recorder.warn(learns_no_more(cfg, loop.learner.plan, loop.step, recorder.path))
    if recorder.exact and every is not None:
        recorder.warn(cuts_episodes(cfg, spec, every, loop.fleet.num_envs))


def _begin(loop: Loop, recorder: Recorder, loaded: Loaded | None, init_from: Path | None) -> None:
    """Restore all state or begin anew, and reset the environments."""
    if loaded is not None:
        restore(recorder, loaded)
    elif init_from is not None:
        start = load(init_from, replay=False)
        load_weights(loop.learner.net, start.tensors["model"])
        recorder.warnings += other_scaling(start.state, recorder.cfg.env, loop.fleet.spec)
        recorder.lineage |= {"from": str(start.path), "step": start.step}
    loop.barrier(recorder.saver.barriers)


def restore(recorder: Recorder, loaded: Loaded) -> None:
    """Restore the state of a checkpoint. Raise E305 if it does not fit this version of Ludus, E306
    if the environment is another one."""
    check_env(loaded.state, recorder.loop.fleet.spec)
    try:
        recorder.restore(loaded)
    except LudusError:
        raise
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as e:
        if is_out_of_memory(e):
            raise
        why = f"it cannot be put back: {type(e).__name__}: {e}"
        raise damaged(loaded.path, "state.json", why) from e


@contextmanager
def _live_evaluation(cfg: Config, loop: Loop, recorder: Recorder) -> Iterator[None]:
    """Run the live evaluator (eval.live) in a separate process during training, perhaps on another
    machine."""
    if not cfg.eval.live:
        yield
        return
    learner = loop.learner
    evaluator = _evaluator_kind(cfg)(cfg, learner.algorithm, learner.net, recorder)

    def tick() -> None:
        evaluator.tend(loop.step, learner.updates)

    loop.hooks.tick.append(tick)
    try:
        yield
        evaluator.finish(loop.is_leaving)
    finally:
        loop.hooks.tick.remove(tick)
        evaluator.close()


def _evaluator_kind(cfg: Config) -> type[LiveEvaluator] | type[ClusterEvaluator]:
    if not cfg.run.capabilities.on_cluster:
        return LiveEvaluator
    from ludus.run.ray_evaluation import evaluator_kind  # Ray is an optional package

    return evaluator_kind(cfg)


def _limit_time(loop: Loop, seconds: float | None) -> None:
    """Stop between iterations once run.time has passed."""
    if seconds is None:
        return
    deadline = time.monotonic() + seconds

    def tick() -> None:
        if time.monotonic() >= deadline:
            loop.stop("time limit")

    loop.hooks.tick.append(tick)


def _save_weights(recorder: Recorder, *, barrier: bool, rescue: bool) -> None:
    """Save a checkpoint after a failure: the weights are those of the last good update. `rescue`:
    updates failed, and the weights may be the cause."""
    try:
        recorder.saver.checkpoint(flush=False, barrier=barrier, final=True, rescue=rescue)
    except Exception as error:  # the reason why the run ends matters more
        what = error.what if isinstance(error, LudusError) else f"{type(error).__name__}: {error}"
        recorder.say(f"warning: while saving: {what}")
        if barrier:
            _save_weights(recorder, barrier=False, rescue=rescue)


def _result(loop: Loop, recorder: Recorder, code: int) -> RunResult:
    code = code or (0 if loop.learner.updates else errors.RUN_FAILED)
    return RunResult(
        recorder.run.path,
        loop.step,
        loop.learner.updates,
        loop.scores.mean,
        loop.stop_reason or "finished",
        code,
        newest_resumable(recorder.run.checkpoints),
    )
