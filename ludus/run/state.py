"""The state of a run as tensors and JSON for a checkpoint, and back."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor, nn

from ludus.envs.config import EnvConfig
from ludus.errors import LudusError, nearest
from ludus.learn.learner import Learner
from ludus.nets.squashed import ActionBox
from ludus.run.loop import Loop
from ludus.track.checkpoint.optimizer import optimizer_from_tensors, optimizer_to_tensors
from ludus.types import ArraySpec, EnvSpec, tree_map

EXPLODED = 1e8  # larger than any weight of a working network
_NEVER_NEGATIVE = tuple(f"normalizer.{part}_" for part in ("var", "count", "scale"))
RUNNING = "normalizer.running_return"  # the one buffer whose size is the number of environments


def pack(loop: Loop) -> tuple[dict[str, dict[str, Tensor]], dict[str, Any]]:
    """Return tensors by group, and the rest as JSON. The store packs its own replay."""
    optim, optim_meta = optimizer_to_tensors(loop.learner.optimizer)
    env_state = {k: torch.as_tensor(v) for k, v in loop.fleet.state().items()}
    tensors = {"model": loop.learner.net.state_dict(), "optim": optim, "envs": env_state}
    tensors["learners"] = loop.extra_tensors()
    state = {
        "step": loop.step,
        "updates": loop.learner.updates,
        "skipped": loop.learner.skipped,
        "optim": optim_meta,
        "scores": loop.scores.state(),
        "actors": loop.actors.state(),
        "seconds": loop.clock.seconds,
        "compute": loop.compute_info,
    }
    return {k: v for k, v in tensors.items() if v}, state


def unpack(loop: Loop, tensors: dict[str, dict[str, Tensor]], state: dict[str, Any]) -> None:
    load_model(loop.learner.net, tensors["model"])
    optimizer_from_tensors(loop.learner.optimizer, tensors.get("optim", {}), state["optim"])
    loop.fleet.load_state({k: v.numpy() for k, v in tensors.get("envs", {}).items()})
    loop.load_extra(tensors.get("learners", {}))
    loop.learner.set_counts(state["updates"], state["skipped"])
    loop.scores.load(state["scores"])
    loop.actors.load(state.get("actors", {}))
    loop.clock.before = state["seconds"]
    loop.step = state["step"]


def load_model(net: nn.ModuleDict, tensors: dict[str, Tensor]) -> None:
    """Copy saved weights into `net`. Names and shapes must match, numbers must be finite."""
    check_fit(net, tensors)
    _check_finite(net, tensors)
    net.load_state_dict(tensors)


def _check_finite(net: nn.ModuleDict, tensors: dict[str, Tensor]) -> None:
    """Raise E305 for nan or inf, unless the buffer of `net` has them too (action bounds), and for
    a negative variance."""
    own = net.state_dict()
    floats = {k: v.to(own[k].dtype) for k, v in tensors.items() if own[k].is_floating_point()}
    found = {k: int((~v.isfinite()).sum()) for k, v in floats.items()}
    bad = [f"{k}: {n} of {tensors[k].numel()}" for k, n in found.items()
           if n and own[k].isfinite().all()]  # fmt: skip
    if bad:
        raise LudusError(
            "E305",
            "the saved weights are not finite: they hold nan or inf",
            where="; ".join(bad[:6]) + (" ..." if len(bad) > 6 else ""),
            why="training diverged before they were saved, or the file was changed",
            fix="take earlier weights:  --checkpoint STEP ;  ludus status RUN  lists the steps",
        )
    scales = [k for k in own if k.startswith(_NEVER_NEGATIVE)]
    negative = [k for k in scales if bool((floats[k] < 0).any())]
    if negative:
        raise LudusError(
            "E305",
            "the saved statistics of the normaliser are impossible: they hold negative numbers",
            where="; ".join(negative),
            why="the file was changed",
            fix="take earlier weights:  --checkpoint STEP ;  ludus status RUN  lists the steps",
        )


def check_fit(net: nn.ModuleDict, tensors: dict[str, Tensor]) -> None:
    """Raise E306 unless all names and shapes match those of `net`."""
    own = net.state_dict()
    wrong = [
        f"{name}: saved {tuple(tensors[name].shape)}, wanted {tuple(own[name].shape)}"
        for name in own
        if name in tensors and tensors[name].shape != own[name].shape
    ]
    missing = [name for name in own if name not in tensors]
    extra = [name for name in tensors if name not in own]
    if wrong or missing or extra:
        listed = wrong + [f"{n}: not in the checkpoint" for n in missing]
        listed += [f"{n}: only in the checkpoint{nearest(n, own)}" for n in extra]
        raise LudusError(
            "E306",
            "the saved networks do not fit the configured ones",
            where="; ".join(listed[:6]) + (" ..." if len(listed) > 6 else ""),
            why="another algorithm, head, torso or environment than the one that was trained",
            fix="use the settings in the run's config.yaml",
        )


def load_weights(net: nn.ModuleDict, tensors: dict[str, Tensor]) -> None:
    """Load the weights of another run, without what describes its environments: running returns
    (it may have had another number of environments) and the box of actions."""
    boxes = [name for name, part in net.named_modules() if isinstance(part, ActionBox)]
    parts = {RUNNING, *(f"{box}.{part}" for box in boxes for part in ("middle", "radius"))}
    own = {k: v for k, v in net.state_dict().items() if k in parts and k in tensors}
    load_model(net, tensors | own)


def weights_health(learner: Learner) -> dict[str, Any]:
    """Whether a run can continue from these weights: `sound` if weights and optimizer state are
    finite and no weight has exploded."""
    params = [p.detach() for p in learner.net.parameters() if p.numel()]
    kept = [v for s in learner.optimizer.state.values() for v in s.values()]
    others = [x for x in (*learner.net.buffers(), *kept) if torch.is_tensor(x) and x.numel()]
    norms = [p.abs().max().double().cpu() for p in params]
    largest = float(torch.stack(norms).max()) if norms else 0.0  # NaN where there is one
    finite = math.isfinite(largest) and all(bool(x.isfinite().all()) for x in others)
    return {
        "sound": finite and largest <= EXPLODED,
        "finite": finite,
        "largest": largest if math.isfinite(largest) else str(largest),
        "refused_in_a_row": learner.skipped_in_a_row,
    }


def spec_json(spec: EnvSpec) -> dict[str, Any]:
    """Return the parts of the spec that decide whether weights fit an environment."""
    return {
        "id": spec.id,
        "obs": tree_map(_leaf_json, spec.obs),
        "action": {"kind": type(spec.action).__name__, **asdict(spec.action)},
        "has_action_mask": spec.has_action_mask,
    }


def check_env(state: dict[str, Any], spec: EnvSpec) -> None:
    """Raise E306 if the environment of a checkpoint was another one, and name the difference."""
    if "spec" not in state:  # files of older versions
        return
    stored, now = state["spec"], spec_json(spec)
    then = stored if isinstance(stored, dict) else {}
    same = json.loads(json.dumps(now))  # lists for tuples, as in the file
    other = [key for key in now if same[key] != then.get(key)]
    if other:
        raise LudusError(
            "E306",
            f"{spec.id} is not the environment this agent was trained on",
            where="; ".join(f"{k}: trained with {then.get(k)}, now {same[k]}" for k in other),
            why="another version of the environment or other env settings",
            fix="install the version named in the run's manifest.json",
        )


def _leaf_json(leaf: ArraySpec) -> dict[str, Any]:
    """Return a leaf as JSON without the default scale, which older checkpoints lack."""
    found = asdict(leaf)
    del found["rounded"]  # is for people
    if leaf.scale == ArraySpec.scale:
        del found["scale"]
    return found


def other_scaling(state: dict[str, Any], env: EnvConfig, spec: EnvSpec) -> list[str]:
    """Return a warning if the weights were trained with another scale of integers."""
    then = state.get("config", {}).get("env", {}).get("integer_scale", "bytes")
    obs = json.loads(json.dumps(spec_json(spec)["obs"]))
    if then == env.integer_scale or state.get("spec", {}).get("obs") == obs:
        return []
    return [
        f"the weights were trained with env.integer_scale={then}, this run has "
        f"env.integer_scale={env.integer_scale}: the network sees other numbers than before"
    ]
