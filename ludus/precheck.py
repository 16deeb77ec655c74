"""Check a configuration and estimate its resources before a run starts or writes anything."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from ludus import registry
from ludus.errors import LudusError
from ludus.settings.resolve import Config


@dataclass(frozen=True)
class Estimate:
    """Resources of a run, and warnings about its settings."""

    spec: Any
    replay_bytes: int
    parameters: int
    warnings: list[str]
    checkpoint_steps: int  # between checkpoints, apart from run.checkpoint_time
    replayed: bool = True  # True: replay memory; False: rollouts that are used once


def precheck(cfg: Config) -> Estimate:
    """Raise for an unknown environment, unsupported actions or too little memory."""
    import torch

    from ludus.compute.probe_act import extras_of
    from ludus.contract import Fifo
    from ludus.envs.make import check_screenshots, probe_spec
    from ludus.evals.evaluate import check_epsilon
    from ludus.fleets.hogwild.loop import check
    from ludus.learn.placement import check_devices, device_of, place_replay
    from ludus.replay.storage.memory import estimate_bytes
    from ludus.run.build import checkpoint_interval, exact
    from ludus.run.compatibility import conflicting_settings, cuts_episodes, fitted, shortened
    from ludus.run.learners.share import check_learners
    from ludus.run.replay_roles import check_roles
    from ludus.run.stalls import watched_early
    from ludus.track.metrics.trackers import check_trackers

    asked, cfg = cfg, fitted(cfg)
    check_devices(cfg)
    check_trackers(cfg.tree()["log"])
    entry = registry.find(cfg.algo_name)
    with watched_early(cfg.run.grace) as pulse:
        spec = replace(probe_spec(cfg.env, shown=True, pulse=pulse), num_envs=cfg.total_envs)
        if cfg.log.screenshots:
            check_screenshots(cfg.env, pulse)
    _check_actions(cfg, entry, spec)
    algorithm = registry.make(cfg.algo)
    check_epsilon(algorithm, cfg.eval.epsilon)
    actors_learn = cfg.run.capabilities.actors_learn  # each from its own environments
    num_envs = cfg.env.num_envs * (1 if actors_learn else cfg.run.actors)
    plan = algorithm.plan.for_envs(num_envs)
    check_learners(cfg, algorithm, spec)
    with torch.random.fork_rng(devices=[]):  # initial weights use the global generator
        net = algorithm.build(spec)
    if actors_learn:
        check(cfg, algorithm, algorithm.optimizer(net))
    device = device_of(cfg, spec)
    on_device = not cfg.run.replays and (device.type != "cpu" or cfg.run.capture == "on")
    check_roles(cfg, plan)
    needed = estimate_bytes(plan, spec, num_envs, extras_of(algorithm, net, spec), on_device)
    place_replay(cfg, plan, needed, torch.device("cpu") if cfg.run.replays else device)
    size, num_envs = sum(p.numel() for p in net.parameters()), cfg.total_envs
    barriers = exact(cfg, device)
    every = checkpoint_interval(cfg, spec, num_envs, barriers)
    algorithm, shorter = shortened(cfg, algorithm)
    cut = cuts_episodes(cfg, spec, every, num_envs) if barriers else ""
    replayed = not all(isinstance(sampler, Fifo) for sampler in plan.samplers)
    warnings = [*conflicting_settings(asked, algorithm, spec), *filter(None, (shorter, cut))]
    return Estimate(spec, needed, size, warnings, every, replayed)


def _check_actions(cfg: Config, entry: registry.Entry, spec: Any) -> None:
    kind = type(spec.action).__name__.lower()
    if kind not in entry.actions:
        able = [e.name for e in registry.entries() if kind in e.actions]
        raise LudusError(
            "E204",
            f"{entry.name} needs {' or '.join(entry.actions)} actions; "
            f"{cfg.env.id} has {kind} ones",
            where=cfg.env.id,
            fix=f"ludus train {able[0]} {cfg.env.id}" if able else "ludus list algos",
        )
