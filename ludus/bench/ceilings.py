"""Speed of the environments alone: the upper bound of training on this machine."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from pydantic import ValidationError

from ludus.envs.adapter import Envs
from ludus.envs.config import EnvConfig
from ludus.envs.make import make_envs
from ludus.errors import LudusError
from ludus.process.limits import available_cores
from ludus.settings.resolve import Config
from ludus.types import Discrete

PER_CORE = (2, 4, 8)  # environments; more of them only take longer to build


def ceiling(envs: Envs, seconds: float) -> float:
    """Steps/s of the environments alone, all groups in flight, with random actions.

    Native pools are stepped directly, without the adapter: its cost counts as training.
    """
    rng, spec = np.random.default_rng(0), envs.spec.action
    envs.reset(0)
    sizes = [part.stop - part.start for part in envs.groups]
    pools: list[Any] = getattr(envs.backend, "pools", [])
    if isinstance(spec, Discrete):
        actions = [rng.integers(0, spec.n, (64, n)) for n in sizes]
    else:
        shape = envs.spec.action_shape
        actions = [np.zeros((64, n, *shape), np.float32) for n in sizes]

    number = range(len(sizes))
    send: Any = [p.send for p in pools] or [partial(envs.send, group=g) for g in number]
    receive: Any = [p.recv for p in pools] or [partial(envs.recv, g) for g in number]
    for g in number:
        send[g](actions[g][0])
    done = k = 0
    start = time.perf_counter()
    while time.perf_counter() - start < seconds:
        k += 1
        for g, n in enumerate(sizes):
            receive[g]()
            send[g](actions[g][k % 64])
            done += n
    rate = done / (time.perf_counter() - start)
    for g in number:
        receive[g]()
    envs.reset(0)
    return rate


def default_counts(env: EnvConfig, cores: int | None = None) -> list[int]:
    """Numbers of environments worth trying here, each in equal groups."""
    cores = cores or available_cores()
    groups = env.group_count
    return [-(-cores * per // groups) * groups for per in PER_CORE]


def with_counts(env: EnvConfig, counts: list[int]) -> list[EnvConfig]:
    """The settings for each number of environments; E103 for an impossible number."""
    made = []
    for n in counts:
        try:
            made.append(EnvConfig.model_validate(env.model_dump() | {"num": n}))
            groups = made[-1].group_count
            why = f"they do not divide into {groups} equal groups" if n % groups else ""
        except ValidationError as error:
            why = error.errors()[0]["msg"]
        if why:
            raise LudusError(
                "E103", f"the speed of {n} environments cannot be measured", where="--counts",
                why=why, fix=f"--counts {','.join(map(str, default_counts(env)))}",
            )  # fmt: skip
    return made


def silent(text: str) -> None:
    """Prints no progress."""


def best_ceiling(
    cfg: Config, counts: list[int], seconds: float, say: Callable[[str], None] = silent
) -> dict[str, float]:
    """Speed of the environments alone for several numbers of them. `seconds` must be as long as
    the measurement they are compared with: Pong runs a tenth faster before games begin to end."""
    rates = {}
    for env in with_counts(cfg.env, counts):
        say(f"{cfg.algo_name}: {env.num_envs} environments alone, {seconds:g} s")
        with contextlib.closing(make_envs(env, seed=cfg.run.seed)) as envs:
            rates[str(env.num_envs)] = ceiling(envs, seconds)
    return rates


def add_share_of_best(run: dict[str, Any], best: dict[str, float]) -> None:
    """Add training as a share of the fastest number of environments, its own included."""
    for mode in run["modes"].values():
        most = max([*best.values(), mode["ceiling_steps_per_second"]])
        mode["of_best_ceiling"] = mode["steps_per_second"] / most
