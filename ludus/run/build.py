"""Build the parts of a run from its settings. Runs nothing."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import torch

from ludus.compute.cuda_graph import Streams
from ludus.compute.gpu_usage import watch_gpu
from ludus.compute.probe_act import extras_of, sample_hparams
from ludus.contract import Algorithm, Plan, Values
from ludus.envs.adapter import Envs
from ludus.envs.make import make_envs, probe_spec
from ludus.envs.render.screenshots import Camera
from ludus.errors import LudusError
from ludus.fleets.actor_fleet import ActorFleet
from ludus.fleets.base import Fleet
from ludus.fleets.hogwild.loop import HogwildLoop, build_fleet
from ludus.fleets.inline import InlineFleet
from ludus.fleets.processes.fleet import ProcessFleet
from ludus.fleets.ray import load_fleet
from ludus.learn.captured import build_updates
from ludus.learn.eager import EagerUpdates, Updates
from ludus.learn.learner import Learner
from ludus.learn.placement import Compute, Place, check_devices, decide, place_replay, tune
from ludus.learn.staged import build_staged
from ludus.process.watchdog import Pulse
from ludus.replay.roles.store import ReplayRoles
from ludus.replay.storage.memory import check_memory, estimate_bytes
from ludus.replay.store import SavedStore, build_store
from ludus.run.compatibility import fitted, rows_of
from ludus.run.learners.loop import GroupLoop
from ludus.run.learners.share import Share, check_learners
from ludus.run.loop import Every, Loop
from ludus.run.networks import normalizer_for
from ludus.run.recording.statistics import ActorScores, Clock, Lapse, Scores
from ludus.run.replay_roles import build_roles, check_roles
from ludus.settings.resolve import Config
from ludus.track.run_dir.rundir import RunDir
from ludus.types import EnvSpec

CPU = torch.device("cpu")


def exact(cfg: Config, device: torch.device = CPU) -> bool:
    """Whether checkpoints are barriers. The default is True if a resumed run can be identical: not
    on a GPU, and not with several actors that run or learn without a fixed order."""
    cfg = fitted(cfg)
    fleet = cfg.run.capabilities
    if fleet.sends_chunks and not cfg.lockstep:
        return False
    able = device.type == "cpu" and not (fleet.actors_learn and cfg.run.actors > 1)
    return cfg.run.exact == "on" or (cfg.run.exact == "auto" and able)


def checkpoint_interval(cfg: Config, spec: EnvSpec, num_envs: int, barriers: bool) -> int:
    """Return the steps between checkpoints. A barrier cuts every running episode, and cut episodes
    have no score, so the default interval has room for five of the longest episodes in each
    environment."""
    wanted = cfg.run.checkpoint_steps
    if cfg.run.checkpoint_every is not None or not barriers:
        return wanted
    room = 5 * num_envs * (spec.max_episode_steps or 1000)
    return max(wanted, min(room, cfg.run.horizon_steps))


def build_loop(
    cfg: Config,
    algorithm: Algorithm,
    run: RunDir,
    envs: Envs | None = None,
    before: Mapping[str, Any] | None = None,
    quiet: bool = True,
    pulse: Pulse | None = None,
    rank: int = 0,
) -> tuple[Loop, int]:
    """Build all parts of a run; also return the bytes of its replay. `envs`: use these and leave
    them open. `before`: `compute_info` of the resumed session. `rank`: of the learner to build."""
    cfg, pulse = fitted(cfg), pulse or Pulse()
    check_devices(cfg)
    if cfg.run.capabilities.actors_learn:
        if envs is not None:
            raise LudusError(
                "E104",
                f"run.fleet={cfg.run.fleet} makes its environments in its own processes",
                fix="run.fleet=inline run.actors=1",
            )
        spec = replace(probe_spec(cfg.env, pulse=pulse), num_envs=cfg.total_envs)
        check_learners(cfg, algorithm, spec)
        loop = _hogwild_loop(cfg, algorithm, run, spec, before)
        loop.pulse = pulse
        return loop, 0
    with ExitStack() as undo:
        share = Share(cfg, rank)
        here = _inline_envs(share, envs, quiet, run, pulse, undo)
        num_envs = cfg.total_envs
        spec = here[0].spec if here else probe_spec(cfg.env, pulse=pulse)
        spec = replace(spec, num_envs=num_envs)
        for part in here:
            part.spec = spec
        own = share.checked(algorithm, spec)
        compute = decide(own, algorithm, spec, before)
        streams = Streams(compute.device)
        plan, shared = share.plans(algorithm.plan)
        learner = _learner(cfg, algorithm, spec, num_envs, compute, run, share)
        store, place, needed = _store(own, shared, spec, share.num_envs, learner, compute, run)
        if isinstance(store, ReplayRoles):
            undo.callback(store.close)
        updates = _updates(store, learner, streams, compute)
        fleet = _fleet(own, shared, here, learner, compute, run, share, lent=envs is not None)
        undo.pop_all()  # the fleet closes them
    loop = _loop(cfg, plan, fleet, store, learner, updates, compute)
    loop.compute_info["replay"] = place.said
    loop.streams, loop.pulse = streams, pulse
    streams.open()  # last: a failure above leaves the caller's CUDA stream as it was
    return loop, needed * share.learners


def _stops_to_evaluate(cfg: Config) -> int | None:
    """Return the steps between evaluations that pause training; live ones do not pause it."""
    return cfg.eval.every if cfg.eval.episodes and not cfg.eval.live else None


def _inline_envs(
    share: Share, envs: Envs | None, quiet: bool, run: RunDir, pulse: Pulse, undo: ExitStack
) -> list[Envs]:
    """Make the environments of every actor of this process; `undo` closes them."""
    cfg = share.cfg
    if cfg.run.capabilities.own_processes:
        return []
    if envs is not None:
        return [envs]
    made: list[Envs] = []
    for i in range(share.first_actor, share.first_actor + share.actors):
        made.append(
            make_envs(
                cfg.env, seed=cfg.run.seed, first_env=i * cfg.env.num_envs, quiet=quiet,
                camera=None if i else _camera(cfg, run), pulse=pulse,
            )
        )  # fmt: skip
        undo.callback(made[-1].close)
    return made


def _camera(cfg: Config, run: RunDir) -> Camera | None:
    """Make the camera for final states of the first actor's episodes."""
    return Camera(run.screenshots, cfg.log.screenshots) if cfg.log.screenshots else None


def _fleet(
    cfg: Config,
    plan: Plan,
    here: list[Envs],
    learner: Learner,
    compute: Compute,
    run: RunDir,
    share: Share,
    lent: bool,
) -> Fleet:
    algorithm, spec = learner.algorithm, learner.ctx.spec
    before, together = share.first_actor, share.cfg.run.actors
    if cfg.run.capabilities.sends_chunks:
        # Actors on a CPU use the precision of a CPU learner, not that of a GPU.
        same = compute.device.type == "cpu" or cfg.actor.device.startswith("cuda")
        precision = compute.precision if same else "fp32"
        capture = compute.capture if same else "off"
        return _outside(cfg)(
            algorithm, spec, plan, learner.net, cfg, precision=precision, capture=capture,
            order=compute.order if compute.device.type == "cpu" else "",
            overlap=compute.overlap, crash=run.crash, camera=_camera(cfg, run),
            first=before, all_actors=together,
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
        prepare_net=lambda net: tune(net, compute),
        first=before,
        all_actors=together,
    )


def _outside(cfg: Config) -> type[ActorFleet[Any]]:
    """The fleet whose actors send chunks from other processes."""
    return load_fleet() if cfg.run.capabilities.on_cluster else ProcessFleet


def _learner(
    cfg: Config,
    algorithm: Algorithm,
    spec: EnvSpec,
    num_envs: int,
    compute: Compute,
    run: RunDir,
    share: Share | None = None,
) -> Learner:
    learner = Learner(
        algorithm,
        spec,
        seed=cfg.run.seed,
        device=compute.device,
        normalizer=normalizer_for(cfg.env, spec, num_envs),
        precision=compute.precision,
        nan_limit=cfg.run.nan_limit,
        crash_dir=run.crash,
        rank=share.rank if share is not None else 0,
        first_env=share.first_env if share is not None else 0,
    )
    tune(learner.net, compute)
    return learner


def _store(
    cfg: Config,
    plan: Plan,
    spec: EnvSpec,
    num_envs: int,
    learner: Learner,
    compute: Compute,
    run: RunDir,
) -> tuple[SavedStore, Place, int]:
    """Make the store; also return its device and its bytes when full. Raise before allocation if
    it does not fit."""
    if cfg.run.capabilities.sends_chunks:  # chunks may be longer than the plan's
        plan = replace(plan, chunk=max(plan.chunk, rows_of(cfg, plan)))
    device = compute.device
    extras = extras_of(learner.algorithm, learner.net, spec)
    if cfg.run.replays:
        check_roles(cfg, plan)
        needed = estimate_bytes(plan, spec, num_envs, extras)
        if not (cfg.run.capabilities.on_cluster and cfg.ray.address):  # else it may be elsewhere
            check_memory(needed)
        algorithm, net = learner.algorithm, learner.net
        roles = build_roles(cfg, algorithm, net, plan, spec, extras, device, run.crash)
        return roles, Place(False, roles.said), needed
    on_device = compute.captured or device.type != "cpu"
    needed = estimate_bytes(plan, spec, num_envs, extras, on_device)
    place = place_replay(cfg, plan, needed, device)
    store = build_store(
        plan,
        spec,
        num_envs,
        seed=cfg.run.seed,
        horizon=cfg.run.horizon_steps,
        device=device,
        extras_spec=extras,
        pinned=place.pinned,
        on_device=on_device,
    )
    return store, place, needed


def _updates(store: SavedStore, learner: Learner, streams: Streams, compute: Compute) -> Updates:
    build = build_staged if isinstance(store, ReplayRoles) else build_updates
    return build(store, learner, streams, capture=compute.capture, overlap=compute.overlap)


def _hogwild_loop(
    cfg: Config, algorithm: Algorithm, run: RunDir, spec: EnvSpec, before: Mapping[str, Any] | None
) -> Loop:
    num_envs = cfg.env.num_envs  # every worker learns from its own
    compute, plan = decide(cfg, algorithm, spec, before), algorithm.plan.for_envs(num_envs)
    learner = _learner(cfg, algorithm, spec, num_envs, compute, run)
    fleet = build_fleet(cfg, learner, compute, run)
    store = build_store(plan, spec, num_envs, seed=cfg.run.seed, horizon=1)
    return _loop(cfg, plan, fleet, store, learner, EagerUpdates(store, learner), compute)


def _loop(
    cfg: Config,
    plan: Plan,
    fleet: Fleet,
    store: SavedStore,
    learner: Learner,
    updates: Updates,
    compute: Compute,
) -> Loop:
    device, elsewhere = compute.device, fleet.capabilities.actors_learn
    kind: type[Loop] = GroupLoop if cfg.run.learners > 1 else Loop
    kind = HogwildLoop if elsewhere else kind
    loop = kind(
        fleet,
        store,
        learner,
        Values(plan, cfg.run.horizon_steps, device),
        cfg.run.steps,
        Scores(cfg.eval.best_window),
        Clock(elsewhere=elsewhere),
        updates,
        overlap=compute.overlap,
    )
    loop.compute_info = {
        "device": device.type,
        "precision": compute.precision,
        "order": compute.order,
        "why_precision": compute.why_precision,
        "updates": updates.mode,
        "acting": fleet.acting,
        "overlap": compute.overlap,
    }
    if cfg.run.learners > 1:
        compress = "" if cfg.run.compress == "off" else cfg.run.compress
        loop.compute_info |= {"learners": cfg.run.learners, "compress": compress}
    if not elsewhere:
        loop.compute_info["compile"] = compute.compiled.mode if compute.compiled else ""
    loop.compiled, loop.gpu = compute.compiled, watch_gpu(device)
    loop.roles = store if isinstance(store, ReplayRoles) else None
    _set_intervals(cfg, loop, exact(cfg, device))
    return loop


def _set_intervals(cfg: Config, loop: Loop, barriers: bool) -> None:
    """Set the intervals of a loop's callbacks and the record of its actors."""
    spec, horizon = loop.fleet.spec, cfg.run.horizon_steps
    num_envs = loop.fleet.num_envs * cfg.run.learners
    loop.log_every = Every(cfg.log.every)
    loop.checkpoint_every = Every(checkpoint_interval(cfg, spec, num_envs, barriers))
    loop.checkpoint_time = Lapse(cfg.run.checkpoint_seconds)
    loop.best_every = Every(max(1, min(cfg.run.checkpoint_steps, horizon // 50)))
    loop.eval_every = Every(_stops_to_evaluate(cfg))
    loop.actors = ActorScores(cfg.run.actors, cfg.env.num_envs)
    actors = cfg.run.actors
    loop.sampled_hparams = sample_hparams(
        loop.learner.algorithm, spec, num_envs // actors, actors=actors, seed=cfg.run.seed
    )
