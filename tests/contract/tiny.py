"""Small runs of any registered algorithm. A new family adds a row here and is tested."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ludus import registry
from ludus.config import Config, Request, resolve
from ludus.run.session import RunResult, train_run
from ludus.track.rundir import RunDir

# Settings that make a run of each family quick; the rest is the algorithm's own default.
QUICK: dict[str, tuple[str, ...]] = {
    "dqn": ("capacity=3000", "warmup=64", "batch=16", "replay_ratio=4", "target_period=20"),
    "ppo": ("rollout=16", "epochs=2", "minibatches=2"),
}
# Heads as small as the probes they are tested on; the papers' sizes only cost time here.
SMALL_HEAD = {
    "quantile": ("head.quantiles=8",),
    "implicit": ("head.taus=8", "head.target_taus=8", "head.act_taus=8", "head.cosines=16"),
    "categorical": ("head.atoms=25", "head.v_min=0", "head.v_max=12"),
}
NAMES = [entry.name for entry in registry.BUILT_IN]


def overrides(name: str) -> tuple[str, ...]:
    entry = registry.find(name)
    head = entry.variant.get("head", {}).get("kind", "")
    return QUICK[entry.family] + SMALL_HEAD.get(head, ())


def tiny(name: str, env: str, *more: str) -> Config:
    """A resolved configuration without presets."""
    quiet = ("log.tensorboard=false", "log.every=200", "env.num=2")
    request = Request(name, env, (*quiet, *overrides(name), *more), preset="none", environ={})
    return resolve(request).config


def run(cfg: Config, folder: Path, **options: Any) -> RunResult:
    place = RunDir.create(folder, cfg.env.id, cfg.algo_name, cfg.run.seed)
    return train_run(cfg, registry.make(cfg.algo), path=place.path, quiet=True, **options)
