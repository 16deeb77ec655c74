"""Warn about conflicting settings: those without effect, those that are replaced, risky ones.

The warnings appear at the start of a run and with --dry-run, and the run goes on. Settings that
cannot run at all raise an error elsewhere.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from ludus.contract import Algorithm, Fifo, NStep, Plan, Sequence, Unroll, stored_state
from ludus.envs.action_check import unused_mask
from ludus.envs.atari.names import ale_id, old_game
from ludus.envs.spec import explain_rounding
from ludus.process.limits import available_cores
from ludus.settings.resolve import Config
from ludus.settings.sections import ActorConfig, RayConfig
from ludus.types import Ctx, EnvSpec, tree_leaves, tree_paths
from ludus.units import show_bytes, show_count

# No effect in lockstep, where every iteration waits for one chunk of each actor.
_FREE_ONLY = ("buffers", "overflow", "publish_every", "pull_every")

FEW_CUT = 0.05  # share of episodes that checkpoints may cut
ITERATIONS = 10  # minimum per run: a run may end one iteration late
SOON = 1000  # steps that any run may end late without a warning
MANY = 4  # actors per core without a warning

_HEALTH = {"hang_seconds", "restarts", "restart_minutes"}  # settings for processes of any kind


def conflicting_settings(cfg: Config, algorithm: Algorithm, spec: EnvSpec) -> list[str]:
    """Return one warning per conflict; each names the setting first."""
    return [
        *_old_atari(cfg, spec),
        *_observations(cfg, spec),
        *_without_effect(cfg),
        *_replaced(cfg, algorithm, spec),
        *_risky(cfg, algorithm),
        *_too_many(cfg),
        *too_short(cfg, algorithm),
        *_ends_late(cfg, algorithm),
    ]


def too_short(cfg: Config, algorithm: Algorithm) -> list[str]:
    """Warn of a run that ends before its first update."""
    warmup, steps = algorithm.plan.warmup, cfg.run.steps
    if warmup <= steps:
        return []
    text = f"algo.warmup={show_count(warmup)} is more than run.steps={show_count(steps)}"
    less, more = show_count(max(1, steps // 3)), show_count(3 * warmup)
    ways = f"set algo.warmup={less} or steps={more}"
    return [f"{text}: the run would end with 0 updates; {ways}"]


def no_lr_from(cfg: Config, plan: Plan) -> int | None:
    """Return the step from which every learning rate is zero, or None."""
    rates = [rate for name, rate in plan.schedules.items() if name.startswith("lr")]
    ends = [rate.zero_from(cfg.run.horizon_steps) for rate in rates]
    known = [end for end in ends if end is not None]
    return max(known) if known and len(known) == len(ends) else None


def learns_no_more(cfg: Config, plan: Plan, step: int, path: Path) -> str:
    """Warn of a run at `step` that continues after its learning rate has reached zero."""
    end = no_lr_from(cfg, plan)
    if end is None or max(end, step) >= cfg.run.steps:
        return ""
    since = "from here on" if step >= end else f"from step {show_count(end)} on"
    return (
        f"lr is 0 {since}: nothing will be learned; its schedule was planned for "
        f"{show_count(cfg.run.horizon_steps)} steps and a resumed run keeps it;  "
        f"{learn_on(cfg, path)}"
    )


def learn_on(cfg: Config, path: Path) -> str:
    """Return the command that continues learning after a schedule has ended."""
    train = f"ludus train {cfg.algo_name} {cfg.env.id}"
    return f"{train} --init-from {path}   learns on from its weights in a new run"


def cuts_episodes(cfg: Config, spec: EnvSpec, every: int, num_envs: int) -> str:
    """Warn of a chosen interval between barriers, each of which cuts one episode of every
    environment. `every`: steps of all environments together. For the default interval, and for
    those by time, a run reports what they have cut (Progress.cuts_many)."""
    longest = spec.max_episode_steps
    if cfg.run.checkpoint_every is None or longest is None or every >= cfg.run.steps:
        return ""
    share = min(1.0, longest * num_envs / every)
    if share <= FEW_CUT:
        return ""
    room = int(longest * num_envs / FEW_CUT)
    wider = f"checkpoint_every={show_count(room)} cuts up to {FEW_CUT:.0%}"
    if room >= cfg.run.steps:
        wider = "without it there is one at the end, and one every run.checkpoint_time"
    return (
        f"run.checkpoint_every={show_count(every)} cuts up to {share:.0%} of the episodes, which "
        f"count for no score: each environment plays {every // num_envs} steps between "
        f"checkpoints, an episode lasts up to {longest}; {wider}; run.exact=off cuts none"
    )


def shortened(cfg: Config, algorithm: Algorithm) -> tuple[Algorithm, str]:
    """Shorten long rollouts and chunks so that a run has ten iterations. A run ends after a whole
    iteration, and the rows of resets are no steps: as many steps as an iteration has rows take two.
    `horizon_steps`: a resumed run keeps its rollouts."""
    steps = cfg.run.horizon_steps
    num_envs, plan = cfg.run.actors * cfg.env.num_envs, algorithm.plan
    chunks = not isinstance(plan.sampler, Fifo) and not cfg.run.capabilities.sends_chunks
    rows = plan.for_envs(num_envs).chunk if chunks else _iteration_rows(cfg, algorithm)
    longest = max(steps // ITERATIONS, min(steps, SOON))
    if rows * num_envs <= longest or "plan" not in vars(algorithm):
        return algorithm, ""
    least = -(-plan.minibatches // num_envs)  # no minibatch is empty
    fewer = max(1, least, steps // (ITERATIONS * num_envs))
    if fewer >= rows:
        return algorithm, ""
    fitted = copy.copy(algorithm)
    view = plan.view if chunks else Unroll(fewer)
    shorter = replace(plan, view=view, chunk=fewer if chunks else min(plan.chunk, fewer))
    object.__setattr__(fitted, "plan", shorter)
    if chunks:
        return fitted, (
            f"{cfg.algo_name} asks for one update per {show_count(rows * num_envs)} steps, and "
            f"run.steps={show_count(steps)}: chunks of {fewer} rows instead of {rows}, so that the "
            "run ends near its last step; a higher replay_ratio= or a smaller batch= learns more"
        )
    return fitted, (
        f"run.steps={show_count(steps)} is less than {ITERATIONS} iterations of {cfg.algo_name} "
        f"({num_envs} environments x {rows} rows = {show_count(rows * num_envs)} steps) and could "
        f"end one late: rollouts of {fewer} rows instead; a higher steps= or a lower env.num= "
        "keeps them"
    )


def _iteration_rows(cfg: Config, algorithm: Algorithm) -> int:
    """Return the rows per environment between updates, for an algorithm that learns from one unroll
    of each environment; 0 for others."""
    plan = algorithm.plan
    rollouts = isinstance(plan.sampler, Fifo) and not plan.batch and len(plan.feeds) == 1
    if not rollouts or cfg.run.capabilities.actors_learn:
        return 0
    return plan.view.length if isinstance(plan.view, Unroll) else 0


def _ends_late(cfg: Config, algorithm: Algorithm) -> list[str]:
    steps = cfg.run.steps
    iteration = _iteration_rows(cfg, algorithm) * cfg.run.actors * cfg.env.num_envs
    if not iteration or iteration > steps:
        return []
    end = -(-steps // iteration) * iteration
    if end <= 1.1 * steps:
        return []
    return [
        f"run.steps={show_count(steps)}: {cfg.algo_name} learns every {show_count(iteration)} "
        f"steps, so the run may end near {show_count(end)}; a lower env.num= ends nearer"
    ]


def processes_bytes(cfg: Config) -> int:
    """Estimate the memory of actors in separate processes, without environments."""
    return cfg.run.actors * cfg.run.capabilities.actor_bytes


def fitted(cfg: Config) -> Config:
    """Replace settings that the fleet cannot run; `conflicting_settings` warns of them."""
    if not cfg.run.capabilities.actors_learn:
        return cfg
    run: dict[str, Any] = {"device": "cpu", "capture": "off", "overlap": "off", "compile": False}
    if cfg.run.actors > 1 and cfg.run.exact == "on":
        run["exact"] = "off"
    parts = {"run": cfg.run.model_copy(update=run), "env": cfg.env}
    if cfg.env.workers:
        parts["env"] = cfg.env.model_copy(update={"workers": 0})
    return cfg.model_copy(update=parts)


def rows_of(cfg: Config, plan: Plan, state: Any = ()) -> int:
    """Return the rows per chunk of an actor in its own process: actor.rows if set, else the plan's
    chunk. Free actors with a replay send at least 16 rows, since every chunk costs a message."""
    asked = cfg.actor.rows
    if asked and not _splits_state(plan, asked, state):
        return asked
    replayed = isinstance(plan.view, NStep | Sequence)
    return plan.chunk if cfg.lockstep or not replayed else max(plan.chunk, 16)


def _splits_state(plan: Plan, rows: int, state: Any) -> bool:
    """Whether unrolls would begin inside a chunk: an actor's state is known only at its start."""
    if not tree_leaves(state) or not isinstance(plan.view, Unroll):
        return False
    return plan.view.length % rows != 0


def _without_effect(cfg: Config) -> list[str]:
    run, usual, fleet = cfg.run, ActorConfig(), cfg.run.capabilities
    changed = [k for k in ActorConfig.model_fields if getattr(cfg.actor, k) != getattr(usual, k)]
    where = f"run.fleet={run.fleet}"
    if fleet.sends_chunks:
        used = {"buffers"} if run.replays else set()
        idle = [k for k in changed if k in _FREE_ONLY and cfg.lockstep and k not in used]
        if idle:
            where = "lockstep, where learner and actors wait for each other"
        elif fleet.waits:
            idle = [k for k in changed if k == "overflow"]
    else:
        used = {"hang_seconds"} if cfg.eval.live else set()
        used |= _HEALTH if fleet.own_processes or run.replays else set()
        used |= {"buffers"} if run.replays else set()
        if cfg.lockstep and cfg.actor.lockstep == "on":
            used.add("lockstep")  # a single process always is
        idle = [k for k in changed if k not in used]
    found = [f"actor.{k}={getattr(cfg.actor, k)} has no effect with {where}" for k in idle]
    if cfg.env.timeout != type(cfg.env).model_fields["timeout"].default:
        if fleet.own_processes and not cfg.env.workers:
            found.append(
                f"env.timeout={cfg.env.timeout:g} has no effect on actors with run.fleet="
                f"{run.fleet}: actor.hang_seconds has"
            )
    if run.compress != "off" and run.learners == 1:
        found.append(f"run.compress={run.compress} has no effect with run.learners=1")
    if not fleet.on_cluster:
        given = {k: v for k, v in cfg.ray if v != RayConfig.model_fields[k].default}
        found += [f"ray.{k}={v} has no effect with run.fleet={run.fleet}" for k, v in given.items()]
    if not run.shared_statistics and not fleet.actors_learn:
        found.append(f"run.shared_statistics=false has no effect with run.fleet={run.fleet}")
    if fleet.on_cluster and cfg.ray.replay_resource != "auto" and not run.replays:
        where = cfg.ray.replay_resource
        found.append(f"ray.replay_resource={where} has no effect with run.replays=0")
    if run.prefetch != "auto" and not run.replays:
        found.append(f"run.prefetch={run.prefetch} has no effect with run.replays=0")
    if cfg.eval.device != "auto" and not cfg.eval.live:
        found.append(f"eval.device={cfg.eval.device} has no effect without eval.live=true")
    return found


def _replaced(cfg: Config, algorithm: Algorithm, spec: EnvSpec) -> list[str]:
    run, found, fleet = cfg.run, [], cfg.run.capabilities
    if fleet.actors_learn:
        eager = "on is ignored: every hogwild worker updates eagerly"
        on_cpu = "is ignored: hogwild workers compute on the CPU"
        workers = f"env.workers={cfg.env.workers} becomes 0: every actor is already a process"
        exact = "run.exact=on is ignored: several workers have no fixed order"
        conflicts = {
            f"run.capture={eager}": run.capture == "on",
            f"run.overlap={eager}": run.overlap == "on",
            f"run.compile=true {on_cpu}": run.compile,
            f"run.device={run.device} {on_cpu}": run.device.startswith("cuda"),
            exact: run.exact == "on" and run.actors > 1,
            workers: cfg.env.workers > 0,
        }
        found = [text for text, holds in conflicts.items() if holds]
    elif fleet.sends_chunks:
        if run.exact == "on" and not cfg.lockstep:
            found.append("run.exact=on is ignored: free actors (actor.lockstep=off) have no order")
        plan = algorithm.plan.for_envs(run.actors * cfg.env.num_envs)
        state = stored_state(algorithm.begin(1, Ctx(torch.Generator(), spec)))
        if cfg.actor.rows and _splits_state(plan, cfg.actor.rows, state):
            found.append(
                f"actor.rows={cfg.actor.rows} becomes {plan.chunk}: the recurrent state is known "
                "only at the start of a chunk, so unrolls must start there"
            )
    return found


def _risky(cfg: Config, algorithm: Algorithm) -> list[str]:
    plan, fleet = algorithm.plan, cfg.run.capabilities
    if fleet.actors_learn and not plan.hogwild:
        return [
            f"{cfg.algo_name} with run.fleet=hogwild: only a3c and async-* are made for weights "
            "that others change meanwhile; run.fleet=processes has one learner"
        ]
    if not fleet.sends_chunks:
        return []
    if cfg.lockstep:
        rows, usual = cfg.actor.rows, plan.for_envs(cfg.run.actors * cfg.env.num_envs)
        if rows and rows != usual.chunk:
            return [
                f"actor.rows={rows}: one process has chunks of {usual.chunk}, and other results"
            ]
        return []
    if isinstance(plan.sampler, Fifo) and not plan.corrects_lag:
        return [
            f"{cfg.algo_name} learns from rows up to {cfg.actor.buffers + 1} chunks old as if they "
            "were fresh; actor.lockstep=on keeps them fresh"
        ]
    return []


def _old_atari(cfg: Config, spec: EnvSpec) -> list[str]:
    """Warn of an old Atari id, which is not the game as papers play it."""
    game = old_game(cfg.env.id)
    if game is None:
        return []
    shapes = ", ".join(str(tuple(leaf.shape)) for leaf in tree_leaves(spec.obs))
    return [
        f"env.id={cfg.env.id} is gymnasium's own: its observation is the raw {shapes}, without "
        f"small grey frames, preset or protocol; env.id={ale_id(game)} has them"
    ]


def _observations(cfg: Config, spec: EnvSpec) -> list[str]:
    """Warn of an action mask that is only observed, of integers that are rounded and of bytes that
    are not normalised."""
    unused, found = unused_mask(spec), []
    if unused is not None:
        found.append("; ".join(unused))
    paths = zip(tree_paths(spec.obs), tree_leaves(spec.obs), strict=True)
    found += ["; ".join(explain_rounding(path)) for path, leaf in paths if leaf.rounded]
    bytes_ = [leaf for leaf in tree_leaves(spec.obs) if leaf.dtype == "uint8"]
    if bytes_ and cfg.env.normalize.obs and cfg.env.integer_scale == "bytes":
        found.append(
            "env.normalize.obs=true leaves bytes alone with env.integer_scale=bytes; "
            "env.integer_scale=bounds normalises them"
        )
    return found


def _too_many(cfg: Config) -> list[str]:
    actors, learners, cores = cfg.run.actors, cfg.run.learners, available_cores()
    here = cfg.run.capabilities.own_processes and not cfg.ray.address
    shared = f"{cores} core" if cores == 1 else f"{cores} cores"
    found = []
    if learners > cores:
        found.append(f"run.learners={learners}: as many learners share {shared}, and wait")
    if not here or actors <= MANY * cores:
        return found
    memory = show_bytes(processes_bytes(cfg))
    found.append(f"run.actors={actors}: as many processes share {shared} and take about {memory}")
    return found
