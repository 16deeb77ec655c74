"""Build the replay roles of a run (run.replays), or refuse plans that they cannot serve."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import torch
from torch import nn

from ludus.contract import Algorithm, Fifo, Plan, Prioritized, Unroll, stored_state
from ludus.errors import LudusError
from ludus.fleets.actor_fleet import valued_rows
from ludus.fleets.ray import load_fleet
from ludus.process.limits import available_cores
from ludus.replay.chunk_layout import ChunkLayout
from ludus.replay.roles.launcher import ProcessLauncher
from ludus.replay.roles.link import RoleLauncher
from ludus.replay.roles.settings import Roles
from ludus.replay.roles.store import ReplayRoles
from ludus.replay.roles.transport import Fields
from ludus.run.compatibility import rows_of
from ludus.settings.resolve import Config
from ludus.track.atomic_files import make_folder, open_append, read_tail
from ludus.types import Ctx, EnvSpec, Extras

AHEAD = 2  # samples drawn ahead by run.prefetch=auto, unless actors are in lockstep


def check_roles(cfg: Config, plan: Plan) -> None:
    """Refuse (E104) settings and plans that replay roles cannot serve."""
    roles, actors = cfg.run.replays, cfg.run.actors
    if not roles:
        return
    kept = "run.replays=0  keeps the replay with the learner"
    if cfg.run.capabilities.actors_learn:
        raise _refused(
            f"run.replays={roles} with run.fleet={cfg.run.fleet}",
            "every worker learns from its own rows, and nothing is replayed",
            "run.replays=0, or run.fleet=processes",
        )
    if roles > actors:
        raise _refused(
            f"run.replays={roles} with run.actors={actors}",
            "every actor belongs to one replay role, so some would have none",
            f"run.replays={actors}, or more actors",
        )
    if any(isinstance(sampler, Fifo) for sampler in plan.samplers):
        raise _refused(
            f"run.replays={roles} with {cfg.algo_name}",
            "it learns from a queue, which uses every row once and stays with the learner",
            "run.replays=0, or an algorithm with a replay",
        )
    if plan.needs_features:
        raise _refused(
            f"run.replays={roles} with a sampler that ranks items by features",
            "features are computed by the learner, and do not travel to a replay role",
            kept,
        )
    largest = any(isinstance(s, Prioritized) and s.needs_least for s in plan.samplers)
    if roles > 1 and len(plan.feeds) > 1 and largest:
        raise _refused(
            f"run.replays={roles} with several feeds and replay.normalize=buffer",
            "the largest weight of a feed is not compared between replay roles",
            "run.replays=1, or normalize=batch",
        )


def _refused(what: str, why: str, fix: str) -> LudusError:
    return LudusError("E104", what, where="run.replays", why=why, fix=fix)


def prefetch(cfg: Config) -> int:
    """The samples that are drawn ahead of the learner."""
    if cfg.run.prefetch == "auto":
        return 0 if cfg.lockstep else AHEAD
    return cfg.run.prefetch


def _threads(cfg: Config) -> int:
    """Threads of a role: its share of the cores beside actors and learner, up to four."""
    others = 1 + (cfg.run.actors if cfg.run.capabilities.own_processes else 0)
    return min(4, max(1, available_cores() // (cfg.run.replays + others)))


def build_roles(
    cfg: Config,
    algorithm: Algorithm,
    net: nn.ModuleDict,
    plan: Plan,
    spec: EnvSpec,
    extras: Extras,
    device: torch.device,
    crash: Path,
) -> ReplayRoles:
    """Start the roles, and wait until each has its store. `crash`: the folder for stack dumps."""
    n, fleet = cfg.env.num_envs, cfg.run.capabilities
    ctx = Ctx(torch.Generator().manual_seed(0), spec, actors=cfg.run.actors)
    state = stored_state(algorithm.begin(n, ctx))
    rows = rows_of(cfg, plan, state) if fleet.sends_chunks else plan.chunk
    waits = cfg.lockstep or fleet.waits or cfg.actor.overflow == "wait"
    layout = ChunkLayout.of(
        spec, extras, state, rows, n, valued=valued_rows(plan, rows),
        before=not waits and isinstance(plan.view, Unroll),
    )  # fmt: skip

    def stack_file(index: int, generation: int) -> Path | None:
        with suppress(OSError):  # a full disk must not end the run
            make_folder(crash)
        return crash / f"replay-{index}-{generation}.stack"

    launch: Callable[[Roles, Fields], RoleLauncher] = ProcessLauncher
    if fleet.on_cluster:
        load_fleet()  # is Ray installed?
        from ludus.fleets.ray.replay.launcher import RayLauncher

        launch = partial(RayLauncher, cfg.ray)
    return ReplayRoles(
        Roles(
            plan=plan, spec=spec, layout=layout, extras=extras, actors=cfg.run.actors, num_envs=n,
            roles=cfg.run.replays, prefetch=prefetch(cfg), ordered=cfg.lockstep,
            buffers=cfg.actor.buffers, seed=cfg.run.seed, horizon=cfg.run.horizon_steps,
            device=device, hang_seconds=float(cfg.actor.hang_seconds),
            restarts=cfg.actor.restarts, restart_minutes=cfg.actor.restart_minutes,
            threads=_threads(cfg), imports=cfg.run.imports, stack_file=stack_file,
            open_file=open_append, read_file=read_tail,
        ),
        launch,
    )  # fmt: skip
