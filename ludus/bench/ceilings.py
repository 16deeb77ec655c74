"""The environments' own speed, which no training on this machine can pass."""

from __future__ import annotations

import time
from collections.abc import Callable
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

    Native pools are driven directly, without our adapter: its cost counts as ours.
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

    def send(g: int, k: int) -> None:
        if pools:
            pools[g].send(actions[g][k % 64])
        else:
            envs.send(actions[g][k % 64], g)

    def receive(g: int) -> None:
        if pools:
            pools[g].recv()
        else:
            envs.recv(g)

    for g in range(len(sizes)):
        send(g, 0)
    done = k = 0
    start = time.perf_counter()
    while time.perf_counter() - start < seconds:
        k += 1
        for g, n in enumerate(sizes):
            receive(g)
            send(g, k)
            done += n
    rate = done / (time.perf_counter() - start)
    for g in range(len(sizes)):
        receive(g)
    envs.reset(0)
    return rate


def default_counts(env: EnvConfig, cores: int | None = None) -> list[int]:
    """Numbers of environments worth trying here, each in equal groups."""
    cores = cores or available_cores()
    groups = env.group_count
    return [-(-cores * per // groups) * groups for per in PER_CORE]


def counted(env: EnvConfig, counts: list[int]) -> list[EnvConfig]:
    """The settings for each number of environments; E103 for one that cannot be."""
    return [_counted(env, n) for n in counts]


def _counted(env: EnvConfig, n: int) -> EnvConfig:
    try:
        made = EnvConfig.model_validate(env.model_dump() | {"num": n})
    except ValidationError as error:
        why = error.errors()[0]["msg"]
    else:
        if n % made.group_count == 0:
            return made
        why = f"they do not divide into {made.group_count} equal groups"
    raise LudusError(
        "E103", f"the speed of {n} environments cannot be measured", where="--counts", why=why,
        fix=f"--counts {','.join(map(str, default_counts(env)))}",
    )  # fmt: skip


def nobody(text: str) -> None:
    """Hears what is measured next."""


def best_ceiling(
    cfg: Config, counts: list[int], seconds: float, tell: Callable[[str], None] = nobody
) -> dict[str, float]:
    """The environments' own speed for several numbers of them. `seconds`: as many as for the speed
    they are compared with. Games of Pong that have just begun run a tenth faster than when some of
    them end and begin anew."""
    rates = {}
    for env in counted(cfg.env, counts):
        tell(f"{cfg.algo_name}: {env.slots} environments alone, {seconds:g} s")
        envs = make_envs(env, seed=cfg.run.seed)
        try:
            rates[str(env.slots)] = ceiling(envs, seconds)
        finally:
            envs.close()
    return rates


def beside_best(run: dict[str, Any], best: dict[str, float]) -> None:
    """Training as a share of the most that any number of environments reached, its own too."""
    for mode in run["modes"].values():
        most = max([*best.values(), mode["ceiling_steps_per_second"]])
        mode["of_best_ceiling"] = mode["steps_per_second"] / most


__all__ = ["beside_best", "best_ceiling", "ceiling", "counted", "default_counts"]
