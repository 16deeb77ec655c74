"""Share: the part of a run that one of its learners has. Also refuses what cannot be shared."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist

from ludus.contract import Algorithm, Plan, overrides
from ludus.errors import LudusError
from ludus.learn.placement import device_of
from ludus.settings.resolve import Config
from ludus.types import EnvSpec


@dataclass(frozen=True)
class Share:
    """Learner `rank` of a run with the settings `cfg`. Actors and environments keep the numbers
    that they have with a single learner, and so their seeds and their exploration."""

    cfg: Config
    rank: int = 0

    @property
    def learners(self) -> int:
        return self.cfg.run.learners

    @property
    def actors(self) -> int:
        return self.cfg.run.actors // self.learners

    @property
    def first_actor(self) -> int:
        return self.rank * self.actors

    @property
    def num_envs(self) -> int:
        return self.actors * self.cfg.env.num_envs

    @property
    def first_env(self) -> int:
        return self.rank * self.num_envs

    def settings(self, spec: EnvSpec | None = None) -> Config:
        """The settings of this learner's part."""
        cfg = self.cfg
        if self.learners == 1:
            return cfg
        # A store anneals beta over the steps that it holds: a share of all.
        horizon = max(1, cfg.run.horizon_steps // self.learners)
        run: dict[str, Any] = {"actors": self.actors, "horizon": horizon}
        run |= {"capture": "off", "overlap": "off"}
        if spec is not None and device_of(cfg, spec).type == "cuda":
            run["device"] = f"cuda:{self.rank}"
        parts: dict[str, Any] = {"run": cfg.run.model_copy(update=run)}
        if self.rank:  # the first learner writes the run's files
            parts["log"] = cfg.log.model_copy(update={"screenshots": 0})
        return cfg.model_copy(update=parts)

    def checked(self, algorithm: Algorithm, spec: EnvSpec) -> Config:
        """As `settings`, after `check_learners`."""
        check_learners(self.cfg, algorithm, spec)
        return self.settings(spec)

    def plans(self, plan: Plan) -> tuple[Plan, Plan]:
        """The plan of the whole run, and that of this learner's part."""
        whole = plan.for_envs(self.cfg.total_envs)
        return whole, self.plan(whole)

    def plan(self, plan: Plan) -> Plan:
        """This learner's part of `plan`, which is filled in for all environments: together the
        learners draw its batch, at its replay ratio, from its capacity, after its warm-up."""
        n = self.learners
        if n == 1:
            return plan
        if plan.batch % n:
            raise LudusError(
                "E104",
                f"a batch of {plan.batch} cannot be divided by run.learners={n}",
                where="run.learners",
                why="every learner computes an equal part of each batch",
                fix=f"algo.batch={max(n, plan.batch // n * n)}, or another run.learners",
            )
        parts: dict[str, Any] = {"batch": plan.batch // n, "warmup": -(-plan.warmup // n)}
        if len(plan.feeds) == 1:
            parts["capacity"] = -(-plan.capacity // n)
        else:
            feeds = tuple(replace(f, capacity=-(-f.capacity // n)) for f in plan.feeds)
            parts |= {"feeds": feeds, "view": None, "sampler": None, "capacity": 0}
        return replace(plan, **parts).for_envs(self.num_envs)


def check_learners(cfg: Config, algorithm: Algorithm, spec: EnvSpec) -> None:
    """Raise E104 if the learners of `cfg` cannot work together."""
    n = cfg.run.learners
    if n == 1:
        return
    for what, why, fix in _obstacles(cfg, algorithm, spec):
        raise LudusError("E104", what, where=f"run.learners={n}", why=why, fix=fix)
    Share(cfg).plans(algorithm.plan)


def _obstacles(cfg: Config, algorithm: Algorithm, spec: EnvSpec) -> list[tuple[str, str, str]]:
    """(what, why, fix) of everything that prevents several learners."""
    run, n = cfg.run, cfg.run.learners
    found = []
    if run.fleet not in ("inline", "processes"):
        why = "its actors learn" if run.capabilities.actors_learn else "it serves one learner"
        found.append(
            (f"run.fleet={run.fleet} with {n} learners", why, "run.fleet=inline or processes")
        )
    if run.actors % n:
        more = -(-run.actors // n) * n
        found.append((
            f"run.actors={run.actors} cannot be divided by run.learners={n}",
            "every learner has its own actors, and as many as the others",
            f"run.actors={more}",
        ))  # fmt: skip
    if run.replays:
        found.append((
            f"run.replays={run.replays} with {n} learners",
            "every learner has the replay of its own actors in its process",
            "run.replays=0",
        ))  # fmt: skip
    for key in ("capture", "overlap"):
        if getattr(run, key) == "on":
            found.append((
                f"run.{key}=on with {n} learners",
                "the learners exchange gradients in every update, between their computations",
                f"run.{key}=off",
            ))  # fmt: skip
    if overrides(algorithm, "after_sample"):
        found.append((
            f"{cfg.algo_name} has after_sample, which changes networks without a gradient",
            "the learners agree on gradients, and their networks would differ",
            "run.learners=1",
        ))  # fmt: skip
    if not (dist.is_available() and dist.is_gloo_available()):
        found.append(("this torch has no gloo", "it was built without", "run.learners=1"))
    return found or _without_gpus(cfg, spec)


def _without_gpus(cfg: Config, spec: EnvSpec) -> list[tuple[str, str, str]]:
    device, n = device_of(cfg, spec), cfg.run.learners
    if device.type != "cuda":
        return []
    if cfg.run.device.startswith("cuda:"):
        why = "every learner needs a GPU of its own"
        return [(f"run.device={cfg.run.device} with {n} learners", why, "run.device=cuda or cpu")]
    gpus = torch.cuda.device_count()
    if gpus >= n and dist.is_nccl_available():
        return []
    what = f"{n} learners on {gpus} GPUs" if gpus < n else "this torch has no NCCL"
    fix = f"run.device=cpu, or run.learners={max(1, gpus)}"
    return [(what, "every learner needs a GPU of its own, and NCCL to sum gradients", fix)]
