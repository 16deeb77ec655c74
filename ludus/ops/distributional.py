"""Losses and projections for return distributions, per item [B]. Choosing actions is the heads'."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import log_softmax

from ludus.ops.shapes import same_shape
from ludus.ops.td import huber


@torch.no_grad()
def categorical_project(support: Tensor, reward: Tensor, discount: Tensor, probs: Tensor) -> Tensor:
    """Project r + γ z onto the atoms z (Bellemare et al. 2017, eq. 7 and algorithm 1): [B, K].

    `support` [K] is evenly spaced. Mass beyond the ends goes to the end atoms; a shifted atom that
    falls on an atom gives it all its mass. Discount 0 puts everything around r.
    """
    same_shape(reward=reward, discount=discount)
    same_shape(reward=reward, probs=probs[..., 0])
    same_shape(support=support, probs=probs.reshape(-1, probs.shape[-1])[0])
    top = support.shape[0] - 1
    shifted = reward.unsqueeze(-1) + discount.unsqueeze(-1) * support  # [B, K]
    place = (shifted - support[0]) * (top / (support[-1] - support[0]))
    place = place.clamp(0, top)
    # Scattering adds with atomics on an accelerator, in no fixed order; runs must repeat exactly.
    return _scatter(place, probs) if probs.device.type == "cpu" else _hat(place, probs)


def _scatter(place: Tensor, probs: Tensor) -> Tensor:
    """Share each atom's mass between the two atoms around `place` (in units of atoms)."""
    below = place.floor().clamp(max=probs.shape[-1] - 2)
    share = place - below
    index = below.long()
    result = torch.zeros_like(probs)
    result.scatter_add_(-1, index, probs * (1 - share))
    return result.scatter_add_(-1, index + 1, probs * share)


def _hat(place: Tensor, probs: Tensor) -> Tensor:
    """The same as one sum per atom, weights max(0, 1 - distance): [..., K, K] of memory."""
    atoms = torch.arange(probs.shape[-1], device=probs.device, dtype=probs.dtype)
    weight = (1 - (place.unsqueeze(-2) - atoms.unsqueeze(-1)).abs()).clamp(min=0)  # [..., K, K]
    return (weight * probs.unsqueeze(-2)).sum(-1)


def categorical_cross_entropy(logits: Tensor, target_probs: Tensor) -> Tensor:
    """-Σ_k p_k ln softmax(logits)_k over the last axis (Bellemare et al. 2017, algorithm 1)."""
    same_shape(logits=logits, target_probs=target_probs)
    return -(target_probs * log_softmax(logits, -1)).sum(-1)


def quantile_huber(prediction: Tensor, taus: Tensor, target: Tensor, kappa: float = 1.0) -> Tensor:
    """Quantile regression loss [B] (Dabney et al. 2018, QR-DQN eq. 10, IQN eq. 3).

    Σ_i mean_j |τ_i - 1[u_ij < 0]| L_κ(u_ij) / κ, u_ij = target_j - prediction_i, with prediction
    and taus [B, N], target [B, M]. κ = 0 is the plain pinball loss.
    """
    same_shape(prediction=prediction, taus=taus)
    same_shape(prediction=prediction[..., 0], target=target[..., 0])
    error = target.unsqueeze(-2) - prediction.unsqueeze(-1)  # [B, N, M]
    slope = (taus.unsqueeze(-1) - (error < 0).to(taus.dtype)).abs()
    size = huber(error, kappa) / kappa if kappa > 0 else error.abs()
    return (slope * size).mean(-1).sum(-1)
