"""Categorical policies from logits, PPO's surrogate, the Munchausen terms. No sampling here.

All work on the last axis and keep the others. -inf marks an action that is not allowed; it has
probability 0, adds nothing to entropy or KL, and gets a gradient of 0, not NaN.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import log_softmax

from ludus.ops.shapes import same_shape
from ludus.ops.td import taken


def clipped_surrogate(ratio: Tensor, advantage: Tensor, clip: float | Tensor) -> Tensor:
    """PPO's loss per item, to minimise (Schulman et al. 2017, eq. 7).

    -min(ρ A, clip(ρ, 1-ε, 1+ε) A). At ρ = 1 its gradient is the plain policy gradient's.
    """
    same_shape(ratio=ratio, advantage=advantage)
    one = torch.ones_like(ratio)
    clipped = torch.clamp(ratio, one - clip, one + clip)
    return -torch.minimum(ratio * advantage, clipped * advantage)


def log_prob(logits: Tensor, action: Tensor) -> Tensor:
    """ln π(a)."""
    return taken(log_softmax(logits, -1), action)


def entropy(logits: Tensor) -> Tensor:
    """-Σ_a π(a) ln π(a)."""
    log_p = log_softmax(logits, -1)
    return -(log_p.exp() * torch.where(log_p > -torch.inf, log_p, 0.0)).sum(-1)


def kl(logits_p: Tensor, logits_q: Tensor) -> Tensor:
    """KL(p || q) = Σ_a p(a) (ln p(a) - ln q(a)); infinite where q forbids what p does."""
    same_shape(logits_p=logits_p, logits_q=logits_q)
    log_p, log_q = log_softmax(logits_p, -1), log_softmax(logits_q, -1)
    # The choice is made inside the product: outside it, 0 * NaN would spoil the gradient.
    return (log_p.exp() * torch.where(log_p > -torch.inf, log_p - log_q, 0.0)).sum(-1)


def log_policy(q: Tensor, tau: float) -> Tensor:
    """ln softmax(q/τ) over the last axis; shifted by the maximum before dividing by a small τ."""
    return log_softmax((q - q.amax(-1, keepdim=True)) / tau, -1)


def soft_value(q: Tensor, tau: float) -> Tensor:
    """τ ln Σ_a exp(q(a)/τ) = Σ_a π(a) (q(a) - τ ln π(a)) with π = softmax(q/τ); max q as τ → 0."""
    top = q.amax(-1, keepdim=True)
    return top.squeeze(-1) + tau * torch.logsumexp((q - top) / tau, -1)


@torch.no_grad()
def munchausen_bonus(q: Tensor, action: Tensor, tau: float, clip_low: float) -> Tensor:
    """[τ ln π(a|s)] clipped to [l0, 0] (Vieillard et al. 2020, eq. 2 and section 4): [B].

    `q` [B, A] are the target net's values at s. To be scaled by α and added to the first reward.
    """
    return (tau * taken(log_policy(q, tau), action)).clamp(clip_low, 0.0)
