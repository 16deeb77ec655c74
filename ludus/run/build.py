"""The parts of a run, put together from its settings. Runs nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeVar

import torch

from ludus.compute.cuda_graph import Streams
from ludus.compute.probe_act import extras_of, sampled_hparams
from ludus.contract import Algorithm, Plan
from ludus.envs.adapter import Envs
from ludus.envs.make import make_envs, probe_spec
from ludus.envs.render.screenshots import Camera
from ludus.errors import LudusError
from ludus.fleets.hogwild.loop import build_hogwild
from ludus.fleets.inline import Fleet, InlineFleet
from ludus.fleets.processes.fleet import ProcessFleet
from ludus.learn.captured import build_updates
from ludus.learn.eager import Updates
from ludus.learn.learner import Learner
from ludus.learn.placement import Compute, Place, check_devices, decide, place_replay, tune
from ludus.process.watchdog import Pulse
from ludus.replay.storage.memory import estimate_bytes
from ludus.replay.store import SavedStore, build_store
from ludus.run.compatibility import fitted, rows_of
from ludus.run.loop import Every, Loop
from ludus.run.networks import normalizer_for
from ludus.run.recording.actor_stats import ActorScores
from ludus.run.recording.episode_stats import Scores
from ludus.run.recording.timing import Clock, Lapse
from ludus.run.schedule_values import Values
from ludus.settings.resolve import Config
from ludus.track.run_dir.rundir import RunDir
from ludus.types import EnvSpec

CPU = torch.device("cpu")


def exact(cfg: Config, device: torch.device = CPU) -> bool:
    """Whether checkpoints are barriers; by default where equality can be kept: not on a GPU, and
    not where several actors run or write as they please."""
    cfg = fitted(cfg)
    if cfg.run.fleet == "processes" and not cfg.lockstep:
        return False
    able = device.type == "cpu" and not (cfg.run.fleet == "hogwild" and cfg.run.actors > 1)
    return cfg.run.exact == "on" or (cfg.run.exact == "auto" and able)


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
    quiet: bool = True,
    pulse: Pulse | None = None,
) -> tuple[Loop, int]:
    """All parts of a run, and the bytes of its replay. `envs`: use these, and leave them open.
    `before`: the `compute` facts of the session that is resumed. `pulse`: see the watchdog."""
    cfg, pulse = fitted(cfg), pulse or Pulse()
    check_devices(cfg)
    if cfg.run.fleet == "hogwild":
        if envs is not None:
            raise LudusError(
                "E104",
                "run.fleet=hogwild makes its environments in its own processes",
                fix="run.fleet=inline run.actors=1",
            )
        spec = probe_spec(cfg.env, pulse=pulse)
        hogwild = build_hogwild(cfg, algorithm, run, spec, before)
        hogwild.pulse = pulse
        return finished(cfg, hogwild, exact(cfg)), 0
    here = _inline_envs(cfg, envs, quiet, run, pulse)
    try:
        spec = here[0].spec if here else probe_spec(cfg.env, pulse=pulse)
        columns = cfg.run.actors * cfg.env.slots
        compute = decide(cfg, algorithm, spec, before)
        streams = Streams(compute.device)
        plan = algorithm.plan.for_columns(columns)
        learner = _learner(cfg, algorithm, spec, columns, compute, run)
        store, place, needed = _store(cfg, _arriving(cfg, plan), spec, columns, learner, compute)
        updates = build_updates(
            store, learner, streams, capture=compute.capture, overlap=compute.overlap
        )
        fleet = _fleet(cfg, plan, here, learner, compute, run, lent=envs is not None)
    except BaseException:
        for part in here if envs is None else []:
            part.close()
        raise
    loop = _loop(cfg, plan, fleet, store, learner, updates, compute)
    loop.facts["replay"] = place.said
    loop.streams, loop.pulse = streams, pulse
    streams.open()  # last: who fails above leaves the caller's stream alone
    return loop, needed


def _stops_to_evaluate(cfg: Config) -> int | None:
    """Steps between evaluations that training waits for; a live evaluator makes none wait."""
    return cfg.eval.every if cfg.eval.episodes and not cfg.eval.live else None


def _inline_envs(
    cfg: Config, envs: Envs | None, quiet: bool, run: RunDir, pulse: Pulse
) -> list[Envs]:
    """Those of every actor of this process."""
    if cfg.run.fleet != "inline":
        return []
    if envs is not None:
        return [envs]
    made: list[Envs] = []
    try:
        for i in range(cfg.run.actors):
            first = i * cfg.env.slots
            made.append(
                make_envs(
                    cfg.env, seed=cfg.run.seed, first_slot=first, quiet=quiet,
                    camera=None if i else _camera(cfg, run), pulse=pulse,
                )
            )  # fmt: skip
    except BaseException:
        for part in made:
            part.close()
        raise
    return made


def _camera(cfg: Config, run: RunDir) -> Camera | None:
    """Takes pictures of how episodes of the first actor end."""
    return Camera(run.screenshots, cfg.log.screenshots) if cfg.log.screenshots else None


def _fleet(
    cfg: Config,
    plan: Plan,
    here: list[Envs],
    learner: Learner,
    compute: Compute,
    run: RunDir,
    lent: bool,
) -> Fleet:
    algorithm, spec = learner.algorithm, learner.ctx.spec
    if cfg.run.fleet == "processes":
        # On a CPU of their own actors round as a CPU learner was found to pay; else not at all.
        same = compute.device.type == "cpu" or cfg.actor.device == "cuda"
        precision = compute.precision if same else "fp32"
        capture = compute.capture if same else "off"
        return ProcessFleet(
            algorithm, spec, plan, learner.net, cfg, precision=precision, capture=capture,
            order=compute.order if compute.device.type == "cpu" else "",
            overlap=compute.overlap, crash=run.crash, camera=_camera(cfg, run),
        )  # fmt: skip
    return InlineFleet(
        algorithm,
        here,
        plan,
        seed=cfg.run.seed,
        device=compute.device,
        overlap=compute.overlap,
        captured=compute.captured,
        must_capture=compute.capture == "on",
        precision=compute.precision,
        lent=lent,
        tuned=lambda net: tune(net, compute),
    )


def _learner(
    cfg: Config, algorithm: Algorithm, spec: EnvSpec, columns: int, compute: Compute, run: RunDir
) -> Learner:
    learner = Learner(
        algorithm,
        spec,
        seed=cfg.run.seed,
        device=compute.device,
        normalizer=normalizer_for(cfg.env, spec, columns),
        precision=compute.precision,
        nan_limit=cfg.run.nan_limit,
        crash_dir=run.crash,
    )
    tune(learner.net, compute)
    return learner


def _arriving(cfg: Config, plan: Plan) -> Plan:
    """With chunks as long as actors in processes of their own send them."""
    if cfg.run.fleet != "processes":
        return plan
    return replace(plan, chunk=max(plan.chunk, rows_of(cfg, plan)))


def _store(
    cfg: Config, plan: Plan, spec: EnvSpec, columns: int, learner: Learner, compute: Compute
) -> tuple[SavedStore, Place, int]:
    """The store, where it lies and its bytes when full; refused before it is made if they fit
    nowhere."""
    device = compute.device
    extras = extras_of(learner.algorithm, learner.net, spec)
    on_device = compute.captured or device.type != "cpu"
    needed = estimate_bytes(plan, spec, columns, extras, on_device)
    place = place_replay(cfg, plan, needed, device)
    store = build_store(
        plan,
        spec,
        columns,
        seed=cfg.run.seed,
        horizon=cfg.run.horizon_steps,
        device=device,
        extras_spec=extras,
        pinned=place.pinned,
        on_device=on_device,
    )
    return store, place, needed


def _loop(
    cfg: Config,
    plan: Plan,
    fleet: Fleet,
    store: SavedStore,
    learner: Learner,
    updates: Updates,
    compute: Compute,
) -> Loop:
    device = compute.device
    loop = Loop(
        fleet,
        store,
        learner,
        Values(plan, cfg.run.horizon_steps, device),
        cfg.run.steps,
        Scores(cfg.eval.best_window),
        Clock(),
        updates,
        overlap=compute.overlap,
    )
    loop.facts = {
        "device": device.type,
        "precision": compute.precision,
        "order": compute.order,
        "why_precision": compute.why_precision,
        "updates": updates.mode,
        "acting": fleet.acting,
        "overlap": compute.overlap,
        "compile": compute.compiled.mode if compute.compiled is not None else "",
    }
    loop.compiled = compute.compiled
    return finished(cfg, loop, exact(cfg, device))


AnyLoop = TypeVar("AnyLoop", bound=Loop)


def finished(cfg: Config, loop: AnyLoop, barriers: bool) -> AnyLoop:
    """With its intervals, and what its actors have drawn."""
    spec, columns, horizon = loop.fleet.spec, loop.fleet.columns, cfg.run.horizon_steps
    loop.log_every = Every(cfg.log.every)
    loop.checkpoint_every = Every(checkpoint_interval(cfg, spec, columns, barriers))
    loop.checkpoint_time = Lapse(cfg.run.checkpoint_seconds)
    loop.best_every = Every(max(1, min(cfg.run.checkpoint_steps, horizon // 50)))
    loop.eval_every = Every(_stops_to_evaluate(cfg))
    loop.actors = ActorScores(cfg.run.actors, cfg.env.slots)
    actors = cfg.run.actors
    loop.drawn = sampled_hparams(
        loop.learner.algorithm, spec, columns // actors, actors=actors, seed=cfg.run.seed
    )
    return loop
