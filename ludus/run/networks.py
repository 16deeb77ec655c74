"""Build the normaliser from the settings, for the learner and for actors."""

from __future__ import annotations

import torch
from torch import nn

from ludus.contract import Algorithm
from ludus.envs.config import EnvConfig
from ludus.nets.normalize import Normalizer
from ludus.types import EnvSpec


def normalizer_for(env: EnvConfig, spec: EnvSpec, num_envs: int) -> Normalizer | None:
    norm = env.normalize
    if not (norm.obs or norm.reward):
        return None
    return Normalizer(
        spec,
        num_envs,
        obs=norm.obs,
        reward=norm.reward,
        integers=env.integer_scale != "bytes",
        clip=norm.clip,
        gamma=norm.gamma,
    )


def build_net(algorithm: Algorithm, env: EnvConfig, spec: EnvSpec, num_envs: int) -> nn.ModuleDict:
    """Build a network to copy weights into. The global generator stays as it was."""
    with torch.random.fork_rng(devices=[]):
        net = algorithm.build(spec)
    normalizer = normalizer_for(env, spec, num_envs)
    if normalizer is not None:
        net["normalizer"] = normalizer
    return net
