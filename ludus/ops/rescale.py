"""The value rescaling h of Pohlen et al. 2018 and its exact inverse. Nothing is learned here."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor


class Rescale(NamedTuple):
    """A function of values and its inverse."""

    apply: Callable[[Tensor], Tensor]
    inverse: Callable[[Tensor], Tensor]


def signed_hyperbolic(x: Tensor, eps: float = 1e-3) -> Tensor:
    """h(x) = sgn(x) (√(|x|+1) - 1) + ε x (Pohlen et al. 2018, proposition A.2)."""
    # √(m+1) - 1 = m / (√(m+1) + 1): without the difference, which loses small x.
    return x / ((x.abs() + 1).sqrt() + 1) + eps * x


def signed_parabolic(x: Tensor, eps: float = 1e-3) -> Tensor:
    """h⁻¹(x) = sgn(x) (((√(1 + 4ε(|x|+1+ε)) - 1) / 2ε)² - 1), in a form that keeps its digits.

    With m = |h⁻¹(x)| and u = √(m+1) - 1, h says ε u² + (1+2ε) u = |x| and m = u (u+2). The root is
    taken without a difference, so float32 does not cancel for small ε, and ε = 0 is allowed.
    """
    size, linear = x.abs(), 1 + 2 * eps
    u = 2 * size / (linear + (linear * linear + 4 * eps * size).sqrt())
    return torch.sign(x) * u * (u + 2)


SIGNED_HYPERBOLIC = Rescale(signed_hyperbolic, signed_parabolic)
