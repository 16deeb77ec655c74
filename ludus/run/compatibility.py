"""Settings that do not go together: what has no effect, what is put in its place, what is risky.

They are said at the start of a run and by --dry-run, and the run goes on. What cannot run at all is
refused where that is found out, not here.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from ludus.contract import Algorithm, Fifo, NStep, Plan, Sequence, Unroll
from ludus.envs.action_masks import unused_mask
from ludus.envs.atari.names import ale_id, old_game
from ludus.envs.integers import told_rounded
from ludus.process.limits import available_cores
from ludus.settings.resolve import Config
from ludus.settings.sections import ActorConfig
from ludus.types import Ctx, EnvSpec, tree_leaves, tree_paths
from ludus.units import show_bytes, show_count

# Of no use where every iteration waits for one chunk of each, acted with the newest weights.
_FREE_ONLY = ("buffers", "overflow", "publish_every", "pull_every")

# Whose papers train that way. By name: what runs an algorithm imports none.
_HOGWILD = ("ludus.algos.a3c", "ludus.algos.async_q")

FEW_CUT = 0.05  # share of episodes that checkpoints may cut
ITERATIONS = 10  # of a run, at least: it ends at most one of them late
SOON = 1000  # steps that a run may end late, whatever its length
MANY = 4  # actors for each core that are not worth a word
PROCESS_BYTES = 160_000_000  # of an actor with a small network; measured
WORKER_BYTES = 30_000_000  # of a hogwild worker, likewise; what it imports, all workers share

_HEALTH = {"hang_seconds", "restarts", "restart_minutes"}  # of processes, whatever they do


def odd_settings(cfg: Config, algorithm: Algorithm, spec: EnvSpec) -> list[str]:
    """One line each, the setting first."""
    told = [*_without_effect(cfg), *_replaced(cfg, algorithm, spec), *_risky(cfg, algorithm)]
    told = [*_observations(cfg, spec), *told]
    ends = [*too_short(cfg, algorithm), *_ends_late(cfg, algorithm)]
    return [*_old_atari(cfg, spec), *told, *_too_many(cfg), *ends]


def too_short(cfg: Config, algorithm: Algorithm) -> list[str]:
    """A run that ends before its first update."""
    warmup, steps = algorithm.plan.warmup, cfg.run.steps
    if warmup <= steps:
        return []
    said = f"algo.warmup={show_count(warmup)} is more than run.steps={show_count(steps)}"
    less, more = show_count(max(1, steps // 3)), show_count(3 * warmup)
    ways = f"set algo.warmup={less} or steps={more}"
    return [f"{said}: the run would end with 0 updates; {ways}"]


def no_lr_from(cfg: Config, plan: Plan) -> int | None:
    """The step from which every learning rate is zero; None where one is not."""
    rates = [rate for name, rate in plan.schedules.items() if name.startswith("lr")]
    ends = [rate.zero_from(cfg.run.horizon_steps) for rate in rates]
    known = [end for end in ends if end is not None]
    return max(known) if known and len(known) == len(ends) else None


def learns_no_more(cfg: Config, plan: Plan, step: int, path: Path) -> str:
    """Of a run at `step` that goes on after its learning rate has come to zero."""
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
    """What to type for more than a schedule that has ended allows."""
    train = f"ludus train {cfg.algo_name} {cfg.env.id}"
    return f"{train} --init-from {path}   learns on from its weights in a new run"


def cuts_episodes(cfg: Config, spec: EnvSpec, every: int, columns: int) -> str:
    """A chosen interval between barriers, each of which cuts one episode of every environment.
    `every`: steps of all of them together. Of the default interval, and of those by time, a run
    says what they have cut (Progress.cuts_many)."""
    longest = spec.max_episode_steps
    if cfg.run.checkpoint_every is None or longest is None or every >= cfg.run.steps:
        return ""
    share = min(1.0, longest * columns / every)
    if share <= FEW_CUT:
        return ""
    room = int(longest * columns / FEW_CUT)
    wider = f"checkpoint_every={show_count(room)} cuts up to {FEW_CUT:.0%}"
    if room >= cfg.run.steps:
        wider = "without it there is one at the end, and one every run.checkpoint_time"
    return (
        f"run.checkpoint_every={show_count(every)} cuts up to {share:.0%} of the episodes, which "
        f"count for no score: each environment plays {every // columns} steps between checkpoints, "
        f"an episode lasts up to {longest}; {wider}; run.exact=off cuts none"
    )


def shortened(cfg: Config, algorithm: Algorithm) -> tuple[Algorithm, str]:
    """With rollouts so short that a run has ten iterations, if its own are long. It ends after a
    whole one, and the rows of resets are no steps: as many steps as an iteration has rows take two.
    `horizon_steps`: a run that goes on keeps its rollouts."""
    rows, steps = _iteration_rows(cfg, algorithm), cfg.run.horizon_steps
    columns, plan = cfg.run.actors * cfg.env.slots, algorithm.plan
    longest = max(steps // ITERATIONS, min(steps, SOON))
    if rows * columns <= longest or "plan" not in vars(algorithm):
        return algorithm, ""
    least = -(-plan.minibatches // columns)  # none of them is empty
    fewer = max(1, least, steps // (ITERATIONS * columns))
    if fewer >= rows:
        return algorithm, ""
    fitted = copy.copy(algorithm)
    shorter = replace(plan, view=Unroll(fewer), chunk=min(plan.chunk, fewer))
    object.__setattr__(fitted, "plan", shorter)
    return fitted, (
        f"run.steps={show_count(steps)} is less than {ITERATIONS} iterations of {cfg.algo_name} "
        f"({columns} environments x {rows} rows = {show_count(rows * columns)} steps) and could "
        f"end one late: rollouts of {fewer} rows instead; a higher steps= or a lower env.num= "
        "keeps them"
    )


def _iteration_rows(cfg: Config, algorithm: Algorithm) -> int:
    """Of each environment, between the updates of an algorithm that learns from one unroll of
    each; 0 for others."""
    plan = algorithm.plan
    rollouts = isinstance(plan.sampler, Fifo) and not plan.batch and cfg.run.fleet != "hogwild"
    return plan.view.length if rollouts and isinstance(plan.view, Unroll) else 0


def _ends_late(cfg: Config, algorithm: Algorithm) -> list[str]:
    columns, steps = cfg.run.actors * cfg.env.slots, cfg.run.steps
    iteration = _iteration_rows(cfg, algorithm) * columns
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
    """What actors in processes of their own need, about, without their environments."""
    each = {"inline": 0, "hogwild": WORKER_BYTES}.get(cfg.run.fleet, PROCESS_BYTES)
    return cfg.run.actors * each


def fitted(cfg: Config) -> Config:
    """The settings that run, where others cannot; `odd_settings` says so."""
    if cfg.run.fleet != "hogwild":
        return cfg
    run: dict[str, Any] = {"device": "cpu", "capture": "off", "overlap": "off", "compile": False}
    if cfg.run.actors > 1 and cfg.run.exact == "on":
        run["exact"] = "off"
    parts = {"run": cfg.run.model_copy(update=run), "env": cfg.env}
    if cfg.env.workers:
        parts["env"] = cfg.env.model_copy(update={"workers": 0})
    return cfg.model_copy(update=parts)


def rows_of(cfg: Config, plan: Plan, state: Any = ()) -> int:
    """Rows of a chunk of an actor in its own process: what was asked for, else what the plan says;
    free actors with a replay send some more at once, since every chunk costs a message."""
    asked = cfg.actor.rows
    if asked and not _splits_state(plan, asked, state):
        return asked
    replayed = isinstance(plan.view, NStep | Sequence)
    return plan.chunk if cfg.lockstep or not replayed else max(plan.chunk, 16)


def _splits_state(plan: Plan, rows: int, state: Any) -> bool:
    """An actor's state is known where a chunk begins, so an unroll has to begin there too."""
    if not tree_leaves(state) or not isinstance(plan.view, Unroll):
        return False
    return plan.view.length % rows != 0


def _without_effect(cfg: Config) -> list[str]:
    run, usual = cfg.run, ActorConfig()
    changed = [k for k in ActorConfig.model_fields if getattr(cfg.actor, k) != getattr(usual, k)]
    where = f"run.fleet={run.fleet}"
    if run.fleet == "processes":
        idle = [k for k in changed if k in _FREE_ONLY and cfg.lockstep]
        where = "lockstep, where everybody waits for everybody"
    else:
        heeded = {"hang_seconds"} if cfg.eval.live else set()
        heeded |= _HEALTH if run.fleet == "hogwild" else set()
        if cfg.lockstep and cfg.actor.lockstep == "on":
            heeded.add("lockstep")  # one process is
        idle = [k for k in changed if k not in heeded]
    said = [f"actor.{k}={getattr(cfg.actor, k)} has no effect with {where}" for k in idle]
    if cfg.env.timeout != type(cfg.env).model_fields["timeout"].default:
        if run.fleet != "inline" and not cfg.env.workers:
            said.append(
                f"env.timeout={cfg.env.timeout:g} has no effect on actors with run.fleet="
                f"{run.fleet}: actor.hang_seconds has"
            )
    if not run.shared_statistics and run.fleet != "hogwild":
        said.append(f"run.shared_statistics=false has no effect with run.fleet={run.fleet}")
    if cfg.eval.device != "auto" and not cfg.eval.live:
        said.append(f"eval.device={cfg.eval.device} has no effect without eval.live=true")
    return said


def _replaced(cfg: Config, algorithm: Algorithm, spec: EnvSpec) -> list[str]:
    run, said = cfg.run, []
    if run.fleet == "hogwild":
        said += [
            f"run.{k}=on is not done: hogwild workers update eagerly, each for itself"
            for k in ("capture", "overlap")
            if getattr(run, k) == "on"
        ]
        if run.compile:
            said.append("run.compile=true is not done: hogwild workers compute on the CPU")
        if run.device == "cuda":
            said.append("run.device=cuda is not used: hogwild workers compute on the CPU")
        if run.exact == "on" and run.actors > 1:
            said.append("run.exact=on is not kept: several workers never act twice alike")
        if cfg.env.workers:
            said.append(
                f"env.workers={cfg.env.workers} is taken as 0: every actor is a process already"
            )
    elif run.fleet == "processes":
        if run.exact == "on" and not cfg.lockstep:
            said.append("run.exact=on is not kept: free actors (actor.lockstep=off) have no order")
        plan = algorithm.plan.for_columns(run.actors * cfg.env.slots)
        state = algorithm.begin(1, Ctx(torch.Generator(), spec))
        if cfg.actor.rows and _splits_state(plan, cfg.actor.rows, state):
            said.append(
                f"actor.rows={cfg.actor.rows} is taken as {plan.chunk}: the memory of the policy "
                "is known where a chunk begins, and there unrolls have to begin"
            )
    return said


def _risky(cfg: Config, algorithm: Algorithm) -> list[str]:
    if cfg.run.fleet == "hogwild":
        return _unmeant(cfg, algorithm)
    if cfg.run.fleet != "processes":
        return []
    if cfg.lockstep:
        rows, usual = cfg.actor.rows, algorithm.plan.for_columns(cfg.run.actors * cfg.env.slots)
        if rows and rows != usual.chunk:
            return [
                f"actor.rows={rows}: one process has chunks of {usual.chunk}, and other results"
            ]
        return []
    plan = algorithm.plan
    if isinstance(plan.sampler, Fifo) and not plan.corrects_lag:
        return [
            f"{cfg.algo_name} learns from rows up to {cfg.actor.buffers + 1} chunks old as if they "
            "were fresh; actor.lockstep=on keeps them fresh"
        ]
    return []


def _unmeant(cfg: Config, algorithm: Algorithm) -> list[str]:
    """Of our own algorithms; what others are meant for, their authors know."""
    module = type(algorithm).__module__
    if not module.startswith("ludus.") or module in _HOGWILD:
        return []
    return [
        f"{cfg.algo_name} with run.fleet=hogwild: only a3c and async-* are made for weights that "
        "others change meanwhile; run.fleet=processes has one learner"
    ]


def _old_atari(cfg: Config, spec: EnvSpec) -> list[str]:
    """An id that many people type for the game as papers play it, which it is not."""
    game = old_game(cfg.env.id)
    if game is None:
        return []
    shapes = ", ".join(str(tuple(leaf.shape)) for leaf in tree_leaves(spec.obs))
    return [
        f"env.id={cfg.env.id} is gymnasium's own: its observation is the raw {shapes}, without "
        f"small grey frames, preset or protocol; env.id={ale_id(game)} has them"
    ]


def _observations(cfg: Config, spec: EnvSpec) -> list[str]:
    """A mask that is only observed, integers that are rounded, bytes that are not normalised."""
    unused, said = unused_mask(spec), []
    if unused is not None:
        said.append("; ".join(unused))
    paths = zip(tree_paths(spec.obs), tree_leaves(spec.obs), strict=True)
    said += ["; ".join(told_rounded(path)) for path, leaf in paths if leaf.rounded]
    bytes_ = [leaf for leaf in tree_leaves(spec.obs) if leaf.dtype == "uint8"]
    if bytes_ and cfg.env.normalize.obs and cfg.env.integer_scale == "bytes":
        said.append(
            "env.normalize.obs=true leaves bytes alone with env.integer_scale=bytes; "
            "env.integer_scale=bounds normalises them"
        )
    return said


def _too_many(cfg: Config) -> list[str]:
    actors, cores = cfg.run.actors, available_cores()
    if cfg.run.fleet == "inline" or actors <= MANY * cores:
        return []
    memory = show_bytes(processes_bytes(cfg))
    shared = f"{cores} core" if cores == 1 else f"{cores} cores"
    return [f"run.actors={actors}: as many processes share {shared} and take about {memory}"]
