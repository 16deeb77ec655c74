"""How actors leave the greedy path. Schedules fill ctx.values; this file turns them to actions."""

from __future__ import annotations

import torch
from torch import Tensor


def random_actions(q: Tensor, rng: torch.Generator, mask: Tensor | None = None) -> Tensor:
    """Uniform over the allowed actions; q [B,A] gives the shape only."""
    if mask is None:
        return torch.randint(q.shape[-1], q.shape[:-1], generator=rng, device=q.device)
    return torch.multinomial(mask.float(), 1, generator=rng)[..., 0]


def epsilon_greedy(
    q: Tensor, epsilon: Tensor, rng: torch.Generator, mask: Tensor | None = None
) -> Tensor:
    """argmax q [B,A] with probability 1 - epsilon (0-d or [B]), else uniform."""
    greedy = q.argmax(-1)  # [B]
    explore = torch.rand(greedy.shape, generator=rng, device=q.device) < epsilon
    return torch.where(explore, random_actions(q, rng, mask), greedy)
