"""A run from configuration to exit code: builds the parts, restores a checkpoint, runs the loop,
fills the run directory. Knows no algorithm and no file format by itself."""

from __future__ import annotations

import signal
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, ClassVar

import torch

from ludus import errors
from ludus.config import Config
from ludus.contract import Algorithm
from ludus.envs.adapter import Envs
from ludus.envs.make import make_envs
from ludus.errors import LudusError
from ludus.nets.normalize import Normalizer
from ludus.replay.memory import estimate_bytes
from ludus.replay.store import Store, build_store
from ludus.run.clock import Clock
from ludus.run.compute import Compute, decide, out_of_memory, place_replay, tune
from ludus.run.extras import extras_of
from ludus.run.fleet import InlineFleet
from ludus.run.graphs import Lanes
from ludus.run.learner import Learner
from ludus.run.loop import Every, Loop
from ludus.run.recorder import Recorder
from ludus.run.scores import Scores
from ludus.run.state import load_weights
from ludus.run.updates import Updates, build_updates
from ludus.run.values import Values
from ludus.track.callbacks import Callback
from ludus.track.lock import RunLock
from ludus.track.restore import Loaded, load, load_newest_good
from ludus.track.rundir import RunDir
from ludus.types import EnvSpec


@dataclass(frozen=True)
class RunResult:
    path: Path
    step: int
    updates: int
    score: float | None  # mean raw score of the last training episodes
    reason: str  # finished | interrupted | terminated | time limit | a callback's reason
    exit_code: int


class Signals:
    """First SIGINT or SIGTERM: give up what is incomplete, checkpoint, leave. Second: now."""

    CODES: ClassVar = {signal.SIGINT: errors.SIGINT_EXIT, signal.SIGTERM: errors.SIGTERM_EXIT}

    def __init__(self, stop: Callable[[str], None]) -> None:
        self.stop, self.code = stop, 0
        self.old: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Signals:
        if threading.current_thread() is threading.main_thread():
            self.old = {s: signal.signal(s, self._heard) for s in self.CODES}
        return self

    def _heard(self, number: int, frame: FrameType | None) -> None:
        if self.code:
            raise KeyboardInterrupt
        self.code = self.CODES[signal.Signals(number)]
        self.stop("interrupted" if number == signal.SIGINT else "terminated")

    def __exit__(self, *_: object) -> None:
        for number, handler in self.old.items():
            signal.signal(number, handler)


def train_run(
    cfg: Config,
    algorithm: Algorithm,
    *,
    path: Path,
    callbacks: Sequence[Callback] = (),
    resume: bool = False,
    init_from: Path | None = None,
    quiet: bool = False,
    command: Sequence[str] = (),
    preset: str | None = None,
) -> RunResult:
    """Train in the run directory `path` (made by RunDir.create) until the end or a signal."""
    run = RunDir(path)
    torch.set_num_threads(cfg.run.thread_count)
    with RunLock(run.path):
        loaded = load_newest_good(run.path, refill=True) if resume else None
        before = loaded.state.get("compute", {}) if loaded is not None else {}
        try:
            loop, replay_bytes = build_loop(cfg, algorithm, run, before=before)
        except torch.OutOfMemoryError as error:
            raise out_of_memory(cfg, error) from None
        try:
            recorder = Recorder(
                cfg,
                run,
                loop,
                callbacks,
                quiet=quiet,
                command=list(command),
                exact=exact(cfg, loop.learner.device),
                replay_bytes=replay_bytes,
            )
            recorder.lineage = {"preset": preset} if preset else {}
            return _drive(cfg, loop, recorder, loaded, init_from)
        finally:
            loop.fleet.close()


def exact(cfg: Config, device: torch.device) -> bool:
    """Whether checkpoints are barriers; by default where equality can be kept."""
    return cfg.run.exact == "on" or (cfg.run.exact == "auto" and device.type == "cpu")


def checkpoint_interval(cfg: Config, spec: EnvSpec, slots: int, barriers: bool) -> int:
    """Steps between checkpoints. A barrier cuts every running episode, and what is cut counts for
    no score: unless told otherwise, leave room for five of the longest episodes in each slot."""
    wanted = cfg.run.checkpoint_steps
    if cfg.run.checkpoint_every is not None or not barriers:
        return wanted
    room = 5 * slots * (spec.max_episode_steps or 1000)
    return max(wanted, min(room, cfg.run.horizon_steps))


def build_loop(
    cfg: Config,
    algorithm: Algorithm,
    run: RunDir,
    envs: Envs | None = None,
    before: Mapping[str, Any] | None = None,
) -> tuple[Loop, int]:
    """All parts of a run, and the bytes of its replay. `envs`: use these, already made.
    `before`: the `compute` facts of the session that is resumed."""
    envs = envs or make_envs(cfg.env, seed=cfg.run.seed)
    try:
        compute = decide(cfg, algorithm, envs.spec, before)
        device = compute.device
        lanes = Lanes(device)
        lanes.open()
        plan = algorithm.plan.for_columns(envs.num)
        learner = _learner(cfg, algorithm, envs, compute, run)
        extras = extras_of(algorithm, learner.net, envs.spec)
        hostless = compute.captured or device.type != "cpu"
        needed = estimate_bytes(plan, envs.spec, envs.num, extras, hostless)
        store = build_store(
            plan,
            envs.spec,
            envs.num,
            seed=cfg.run.seed,
            horizon=cfg.run.horizon_steps,
            device=device,
            extras_spec=extras,
            pinned=place_replay(cfg, plan, needed, device),
            hostless=hostless,
        )
        updates = build_updates(
            store, learner, lanes, capture=compute.capture, overlap=compute.overlap
        )
        fleet = InlineFleet(
            algorithm,
            envs,
            plan,
            seed=cfg.run.seed,
            device=device,
            overlap=compute.overlap,
            captured=compute.captured,
            precision=compute.precision,
            tuned=lambda net: tune(net, device, cfg.run.compile),
        )
    except BaseException:
        envs.close()
        raise
    return _loop(cfg, fleet, store, learner, updates, compute), needed


def _learner(
    cfg: Config, algorithm: Algorithm, envs: Envs, compute: Compute, run: RunDir
) -> Learner:
    learner = Learner(
        algorithm,
        envs.spec,
        seed=cfg.run.seed,
        device=compute.device,
        normalizer=_normalizer(cfg, envs.spec, envs.num),
        precision=compute.precision,
        nan_limit=cfg.run.nan_limit,
        crash_dir=run.crash,
    )
    tune(learner.net, compute.device, cfg.run.compile)
    return learner


def _loop(
    cfg: Config,
    fleet: InlineFleet,
    store: Store,
    learner: Learner,
    updates: Updates,
    compute: Compute,
) -> Loop:
    device, horizon = compute.device, cfg.run.horizon_steps
    between = checkpoint_interval(cfg, fleet.spec, fleet.columns, exact(cfg, device))
    facts = {
        "device": device.type,
        "precision": compute.precision,
        "why_precision": compute.why_precision,
        "updates": updates.mode,
        "acting": "captured" if compute.captured else "eager",
        "overlap": compute.overlap,
    }
    return Loop(
        fleet,
        store,
        learner,
        Values(learner.plan.for_columns(fleet.columns), horizon, device),
        cfg.run.steps,
        Scores(cfg.eval.best_window),
        Clock(),
        updates,
        overlap=compute.overlap,
        facts=facts,
        log_every=Every(cfg.log.every),
        checkpoint_every=Every(between),
        best_every=Every(max(1, min(cfg.run.checkpoint_steps, horizon // 50))),
        eval_every=Every(cfg.eval.every if cfg.eval.episodes else None),
    )


def _normalizer(cfg: Config, spec: EnvSpec, columns: int) -> Normalizer | None:
    norm = cfg.env.normalize
    if not (norm.obs or norm.reward):
        return None
    return Normalizer(
        spec, columns, obs=norm.obs, reward=norm.reward, clip=norm.clip, gamma=norm.gamma
    )


def _drive(
    cfg: Config, loop: Loop, recorder: Recorder, loaded: Loaded | None, init_from: Path | None
) -> RunResult:
    """Restore or begin, loop, and leave everything on disk whatever ended the run."""
    with Signals(loop.leave) as signals:
        if loaded is not None:
            recorder.restore(loaded)
        elif init_from is not None:
            start = load(init_from, replay=False)
            load_weights(loop.learner.net, start.tensors["model"])
            recorder.lineage |= {"from": str(start.path), "step": start.step}
        loop.barrier(recorder.barriers)
        recorder.open(loaded)
        try:
            recorder.started(loaded)
            _limit(loop, cfg.run.time)
            loop.run()
            recorder.finish(loop.stop_reason or "finished")
        except KeyboardInterrupt:
            loop.stop("quit")
            recorder.failed("quit by a second signal; no checkpoint was written")
            return _result(loop, recorder, signals.code or errors.SIGINT_EXIT)
        except torch.OutOfMemoryError as error:
            refused = out_of_memory(cfg, error)
            recorder.failed(refused.render(), traceback.format_exc())
            raise refused from None
        except Exception as error:
            trace = traceback.format_exc()
            if not isinstance(error, LudusError):
                recorder.failed(f"{type(error).__name__}: {error}", trace)
                raise
            if error.code == "E401":
                _keep(recorder)
            recorder.failed(error.render(), trace)
            raise
        return _result(loop, recorder, signals.code)


def _limit(loop: Loop, seconds: float | None) -> None:
    """run.time: stop between iterations once it has passed."""
    if seconds is None:
        return
    tick, deadline = loop.hooks.tick, time.monotonic() + seconds

    def limited() -> None:
        tick()
        if time.monotonic() >= deadline:
            loop.stop("time limit")

    loop.hooks.tick = limited


def _keep(recorder: Recorder) -> None:
    """The weights are good up to the refused updates: nothing learned is lost."""
    try:
        recorder.checkpoint(settle=False)
    except LudusError as error:  # the reason the run ends matters more than this
        recorder.say(f"warning: {error.what}")


def _result(loop: Loop, recorder: Recorder, code: int) -> RunResult:
    return RunResult(
        recorder.run.path,
        loop.step,
        loop.learner.updates,
        loop.scores.mean,
        loop.stop_reason or "finished",
        code,
    )
