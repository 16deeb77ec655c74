"""A linear layer with learned, factorised noise. It keeps no noise: every forward draws its own."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional


class NoisyLinear(nn.Module):
    """Fortunato et al. 2018, eq. 9-11: w = mu + sigma * f(e_out) f(e_in)^T, f(x) = sgn(x) sqrt|x|.

    One noise for the whole batch, a fresh one for each forward, so that online, selecting and
    target passes never share it. Without a generator: the mean weights (greedy evaluation).
    """

    def __init__(self, inputs: int, outputs: int, sigma0: float = 0.5) -> None:
        super().__init__()
        self.inputs, self.outputs, self.sigma0 = inputs, outputs, sigma0
        self.weight = nn.Parameter(torch.empty(outputs, inputs))  # mu
        self.bias = nn.Parameter(torch.empty(outputs))
        self.weight_sigma = nn.Parameter(torch.empty(outputs, inputs))
        self.bias_sigma = nn.Parameter(torch.empty(outputs))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        bound = 1 / math.sqrt(self.inputs)
        nn.init.uniform_(self.weight, -bound, bound)
        nn.init.uniform_(self.bias, -bound, bound)
        # Both by the number of inputs, as in the paper; some codes scale the bias by outputs.
        nn.init.constant_(self.weight_sigma, self.sigma0 * bound)
        nn.init.constant_(self.bias_sigma, self.sigma0 * bound)

    def forward(self, x: Tensor, rng: torch.Generator | None = None) -> Tensor:
        if rng is None:
            return functional.linear(x, self.weight, self.bias)
        # In the weights' dtype, not x's, which under autocast is coarser.
        noise = torch.randn(
            self.inputs + self.outputs, generator=rng, device=x.device, dtype=self.weight.dtype
        )
        noise = torch.copysign(noise.abs().sqrt_(), noise)
        e_in, e_out = noise[: self.inputs], noise[self.inputs :]
        weight = torch.addcmul(self.weight, self.weight_sigma, torch.outer(e_out, e_in))
        bias = torch.addcmul(self.bias, self.bias_sigma, e_out)
        return functional.linear(x, weight, bias)
