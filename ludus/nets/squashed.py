"""Policies on a bounded box: actions are squashed by tanh to [-1, 1] and scaled to the box.

Critics, noise and log-probabilities use the units of [-1, 1]; only the environment gets those of
its box. So a policy's entropy does not depend on the units of its actions."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from ludus.errors import LudusError
from ludus.nets.torsos import TorsoModel, build_torso, features_of, in_full
from ludus.types import Continuous, EnvSpec, Tree

_LOG_2 = math.log(2.0)
_HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)
_LARGEST = torch.finfo(torch.float32).max / 2  # bound of a box: beyond, its width is infinite


class ActionBox(nn.Module):
    """The units of a box: [B, d] in [-1, 1] to actions [B, *shape] and back."""

    middle: Tensor
    radius: Tensor

    def __init__(self, name: str, spec: EnvSpec, instead: str) -> None:
        """`instead`: an algorithm for what this one (`name`) cannot do."""
        super().__init__()
        box = spec.action
        if not isinstance(box, Continuous):
            raise LudusError(
                "E204",
                f"{name} cannot choose actions of this kind: {spec.id} has {box}",
                fix=f"ludus train {instead} {spec.id}",
            )
        if any(not abs(bound) <= _LARGEST for bound in (*box.low, *box.high)):
            raise LudusError(
                "E204",
                f"{name} needs bounded actions, {spec.id} has {box}",
                why="its actions are squashed to the box between low and high",
                fix=f"ludus train ppo {spec.id}   or a wrapper that bounds the actions",
            )
        low, high = torch.tensor(box.low), torch.tensor(box.high)
        self.shape, self.dims = box.shape, len(box.low)
        self.register_buffer("middle", (low + high) / 2)
        self.register_buffer("radius", (high - low) / 2)

    def to_env(self, unit: Tensor) -> Tensor:
        action = torch.addcmul(self.middle, self.radius, unit)
        return action if len(self.shape) == 1 else action.reshape(-1, *self.shape)

    def to_unit(self, action: Tensor) -> Tensor:
        """0 in a dimension that has no extent."""
        flat = action if len(self.shape) == 1 else action.reshape(len(action), self.dims)
        return (flat - self.middle) / self.radius.clamp(min=torch.finfo(torch.float32).tiny)


def squash(mean: Tensor, log_std: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """u = tanh(x), x = mean + std noise, and log pi(u) [B] (Haarnoja et al. 2018, appendix C).

    log (1 - tanh(x)^2) = 2 (log 2 - x - softplus(-2 x)) is exact where 1 - tanh(x)^2 rounds to 0.
    """
    x = torch.addcmul(mean, log_std.exp(), noise)
    gaussian = noise.square().mul(-0.5) - log_std
    slope = 2 * (_LOG_2 - x - functional.softplus(-2 * x))
    log_prob = (gaussian - slope).sum(-1) - x.shape[-1] * _HALF_LOG_2PI
    return x.tanh(), log_prob


class SquashedGaussian(nn.Module):
    """A Gaussian whose mean and deviation depend on the state, squashed by tanh."""

    LOWEST, HIGHEST = -20.0, 2.0  # log of the standard deviation

    def __init__(self, spec: EnvSpec, torso: TorsoModel, dims: int) -> None:
        super().__init__()
        self.torso = build_torso(torso, spec.obs)
        self.head = nn.Linear(features_of(self.torso), 2 * dims)

    def forward(self, obs: Tree) -> tuple[Tensor, Tensor]:
        """Mean and log of the standard deviation before squashing, [B, d] each."""
        mean, log_std = in_full(self.head, self.torso(obs)).chunk(2, -1)
        return mean, log_std.clamp(self.LOWEST, self.HIGHEST)

    def mode(self, obs: Tree) -> Tensor:
        mean, _ = self(obs)
        unit: Tensor = mean.tanh()
        return unit

    def sample(self, obs: Tree, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        """Actions in [-1, 1] [B, d] and their log-probabilities [B], differentiable in both."""
        mean, log_std = self(obs)
        return squash(mean, log_std, torch.empty_like(mean).normal_(generator=rng))


class SquashedMean(nn.Module):
    """A deterministic policy: actions [B, d] in [-1, 1]."""

    def __init__(self, spec: EnvSpec, torso: TorsoModel, dims: int) -> None:
        super().__init__()
        self.torso = build_torso(torso, spec.obs)
        self.head = nn.Linear(features_of(self.torso), dims)

    def forward(self, obs: Tree) -> Tensor:
        unit: Tensor = in_full(self.head, self.torso(obs)).tanh()
        return unit


def uniform_unit(like: Tensor, rng: torch.Generator) -> Tensor:
    """Uniform over [-1, 1]."""
    return torch.empty_like(like).uniform_(-1.0, 1.0, generator=rng)
