"""Small runs of any registered algorithm: whatever is in the registry is tested by being there."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from ludus import registry, seeding
from ludus.evals.agent import load_agent
from ludus.run.session import RunResult, train_run
from ludus.settings.resolve import Config, Request, resolve
from ludus.settings.trust import Trust
from ludus.track.run_dir.rundir import RunDir

# Settings that make a run quick, for whoever has them; the rest is the algorithm's own default.
QUICK = (
    "capacity=3000", "warmup=64", "batch=16", "replay_ratio=4", "target_period=20",
    "rollout=16", "epochs=2", "minibatches=2", "t_max=8",
)  # fmt: skip
# Heads as small as the probes they are tested on; the papers' sizes only cost time here.
SMALL_HEAD = {
    "quantile": ("head.quantiles=8",),
    "implicit": ("head.taus=8", "head.target_taus=8", "head.act_taus=8", "head.cosines=16"),
    "categorical": ("head.atoms=25", "head.v_min=0", "head.v_max=12"),
}
# What a family must have otherwise: its batch is of unrolls, which two environments fill slowly.
SMALL_FAMILY = {
    "impala": ("unroll=5", "batch=2"),
    "reinforce": ("env.max_episode_steps=12",),  # an update waits for whole episodes
    "sac": ("torso.mlp.hidden=[32, 32]",),
    "td3": ("torso.mlp.hidden=[32, 32]",),
}
# What a family needs to learn values exactly, gamma 0.9. Without a row: the last one.
PROBE: dict[str, tuple[str, ...]] = {
    "dqn": ("steps=2000", "replay_ratio=16", "lr=3e-3->3e-4", "target_period=30"),
    "ppo": ("steps=4000", "rollout=20", "epochs=6", "lr=1e-2->1e-3"),
    "pqn": ("steps=6000", "rollout=20", "epochs=6", "lr=1e-2->1e-3"),
    "impala": ("steps=8000", "lr=1e-2->1e-3"),
    "a3c": ("steps=6000", "t_max=5", "lr=1e-2->1e-3"),
    "a2c": ("steps=6000", "lr=1e-2->1e-3", "lr_value=1e-2->1e-3", "clip_norm=0"),
    "reinforce": ("steps=6000", "lr=1e-2->1e-3", "lr_value=1e-2->1e-3"),
    "async": ("steps=6000", "t_max=5", "lr=1e-2->1e-3", "target_period=60"),
    # Without a bonus for entropy, which would be part of the values.
    "sac": (
        "steps=2000",
        "replay_ratio=16",
        "lr=3e-3->3e-4",
        "tau=0.05",
        "target_period=1",
        "temperature=0",
    ),
    "td3": ("steps=2000", "replay_ratio=16", "lr=3e-3->3e-4", "tau=0.1"),
    "": ("steps=4000", "lr=3e-3->3e-4"),
}
# Environments of continuous actions, for algorithms that have no others.
CONTINUOUS = {
    "CartPole-v1": ("Pendulum-v1", ("env.max_episode_steps=25",)),
    "ludus/Identity-v0": ("ludus/IdentityBox-v0", ()),
    "ludus/Truncation-v0": ("ludus/Truncation-v0", ("env.args={box: true}",)),
    "ludus/Termination-v0": ("ludus/Termination-v0", ("env.args={box: true}",)),
}
NAMES = [entry.name for entry in registry.entries()]


def _one_of_each(*, heads: bool, without: tuple[str, ...] = ()) -> list[Any]:
    """Every algorithm. The first of each family (and kind of head) runs with `make test`; the
    others share its code and differ in settings, so they run with `make test-slow`."""
    seen: set[tuple[str, str]] = set()
    found: list[Any] = []
    for entry in [e for e in registry.entries() if e.name not in without]:
        head = entry.variant.get("head", {}).get("kind", "scalar") if heads else ""
        new = (entry.family, head) not in seen
        seen.add((entry.family, head))
        found.append(entry.name if new else pytest.param(entry.name, marks=pytest.mark.slow))
    return found


ONE_OF_EACH_HEAD = _one_of_each(heads=True)
SLOW_NAMES = [x for x in NAMES if x not in ONE_OF_EACH_HEAD]
ONE_OF_EACH_FAMILY = _one_of_each(heads=False)
WITHOUT_VALUES = ("reinforce",)  # they learn from rewards alone and bootstrap from nothing
ONE_OF_EACH_VALUED = _one_of_each(heads=False, without=WITHOUT_VALUES)


def known(name: str, settings: Sequence[str]) -> tuple[str, ...]:
    """Those of the settings that are the run's, or that the algorithm has."""
    fields = {*registry.config_class(name).model_fields, "steps"}
    return tuple(s for s in settings if s.partition("=")[0] in fields)


def overrides(name: str) -> tuple[str, ...]:
    entry = registry.find(name)
    head = entry.variant.get("head", {}).get("kind", "")
    return known(name, QUICK) + SMALL_HEAD.get(head, ()) + SMALL_FAMILY.get(entry.family, ())


def probe_settings(name: str) -> tuple[str, ...]:
    rows = PROBE.get(registry.find(name).family, PROBE[""])
    return (*known(name, (*rows, "gamma=0.9")), "env.num=4")


def fitting(name: str, env: str, *, continuous: bool = False) -> tuple[str, tuple[str, ...]]:
    """`env`, or the one of continuous actions in its place, and the settings it needs."""
    if continuous or "discrete" not in registry.find(name).actions:
        return CONTINUOUS.get(env, (env, ()))
    return env, ()


def tiny(name: str, env: str, *more: str, continuous: bool = False) -> Config:
    """A resolved configuration without presets."""
    env, needed = fitting(name, env, continuous=continuous)
    more = (*needed, *more)
    quiet = ("log.tensorboard=false", "log.every=200", "env.num=2")
    request = Request(name, env, (*quiet, *overrides(name), *more), preset="none", environ={})
    return resolve(request).config


def run(cfg: Config, folder: Path, **options: Any) -> RunResult:
    place = RunDir.create(folder, cfg.env.id, cfg.algo_name, cfg.run.seed)
    quiet = options.pop("quiet", True)
    return train_run(cfg, registry.make(cfg.algo), path=place.path, quiet=quiet, **options)


def learned_values(path: Path, obs: Tensor) -> list[float]:
    """The value a trained agent gives to observations: of the state, or of the first action."""
    net = load_agent(path, trust=Trust(whole=True)).net["online"]
    with torch.no_grad():
        if getattr(net, "core", None) is not None:  # `obs` are those of one episode, in order
            first = torch.arange(len(obs))[:, None] == 0
            state = tuple(net.core.initial(1) for _ in range(2))
            return net.unrolled(obs[:, None], first, state)[1][:, 0].tolist()
        if hasattr(net, "values"):
            return net.values(obs).tolist()
        return net(obs, seeding.generator(0, "probe"), noise=False).q[:, 0].tolist()
