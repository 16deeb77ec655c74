"""Facts of an algorithm before the first row: the extras of `act` and `after_step`, found by a dry
call, so that a store can allocate them; and the hyperparameters that its actors sampled. Nets and
generators do not change."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn

from ludus.contract import Algorithm, overrides
from ludus.types import Ctx, EnvSpec, Extras, Step, tree_map


@torch.no_grad()
def extras_of(algorithm: Algorithm, net: nn.ModuleDict, spec: EnvSpec) -> Extras:
    """Name -> (shape of one environment's value, dtype)."""
    device = next(net.parameters()).device
    names = (*algorithm.plan.schedules, "warming")
    values = {name: torch.zeros((), device=device) for name in names}
    ctx = Ctx(torch.Generator(device=device).manual_seed(0), spec, values)
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        state = algorithm.begin(1, ctx)
        # A copy in eval mode: layers with running statistics would count this step.
        probed = copy.deepcopy(net).eval()
        step = zero_step(spec, device)
        action, extras, state = algorithm.act(probed, step, state, ctx)
        if overrides(algorithm, "after_step"):
            answered = step._replace(first=~step.first)
            more, _ = algorithm.after_step(probed, step, action, answered, state, ctx)
            extras = {**extras, **more}
    return {name: (tuple(x.shape[1:]), x.dtype) for name, x in extras.items()}


def sample_hparams(
    algorithm: Algorithm, spec: EnvSpec, num_envs: int, *, actors: int, seed: int
) -> dict[str, list[Any]]:
    """The hyperparameters that every actor samples once: name -> one list per actor."""
    found: dict[str, list[Any]] = {}
    for actor in range(actors):
        ctx = Ctx(torch.Generator(), spec, actor=actor, actors=actors, num_envs=num_envs, seed=seed)
        for name, value in algorithm.sampled_hparams(num_envs, ctx).items():
            found.setdefault(name, []).append(value)
    return found


def zero_step(spec: EnvSpec, device: torch.device, n: int = 1) -> Step:
    """The first step of n environments, all zeros."""
    no = torch.zeros(n, dtype=torch.bool, device=device)
    paid = torch.zeros(n, device=device)
    return Step(
        tree_map(lambda s: torch.zeros(n, *s.seen_shape, dtype=s.torch_dtype).to(device), spec.obs),
        ~no,
        no,
        torch.zeros(n, *spec.action_shape, dtype=spec.action_dtype, device=device),
        paid,
        paid,
        no,
        no.new_ones(n, spec.mask_width) if spec.has_action_mask else None,
    )
