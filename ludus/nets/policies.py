"""Policies as flat parameter tensors [..., P], and the distributions they stand for.

No clipping and no squashing: the environment adapter clips the continuous actions it sends, and
the learner keeps those that were drawn."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from ludus.nets.init import OutputLinear
from ludus.nets.torsos import in_full
from ludus.types import ActionSpec, Continuous, Discrete, MultiDiscrete

_LOG_2PI = math.log(2 * math.pi)


class LogitsHead(nn.Module):
    """Logits of one or several categoricals, side by side: P = sum of the choices."""

    def __init__(self, features: int, choices: int, gain: float) -> None:
        super().__init__()
        self.linear, self.out = OutputLinear(features, choices, gain), choices

    def forward(self, features: Tensor) -> Tensor:
        logits: Tensor = in_full(self.linear, features)
        return logits


class GaussianHead(nn.Module):
    """Mean from the features, log of the standard deviation as free parameters: P = 2 d."""

    def __init__(self, features: int, dims: int, gain: float, log_std_init: float) -> None:
        super().__init__()
        self.linear, self.out = OutputLinear(features, dims, gain), 2 * dims
        self.log_std_init = log_std_init
        self.log_std = nn.Parameter(torch.full((dims,), log_std_init))

    def reset_parameters(self) -> None:
        nn.init.constant_(self.log_std, self.log_std_init)

    def forward(self, features: Tensor) -> Tensor:
        mean = in_full(self.linear, features)
        return torch.cat((mean, self.log_std.expand_as(mean)), -1)


class SoftplusHead(nn.Module):
    """Mean and variance both from the features (Mnih et al. 2016, section 9): the mean linear, the
    variance log(1 + e^x). P = 2 d, the second half being the log of the standard deviation."""

    SMALLEST = 1e-5  # variance: its logarithm stays finite

    def __init__(self, features: int, dims: int, gain: float = 0.01) -> None:
        super().__init__()
        self.linear, self.out = OutputLinear(features, 2 * dims, gain), 2 * dims

    def forward(self, features: Tensor) -> Tensor:
        mean, x = in_full(self.linear, features).chunk(2, -1)
        return torch.cat((mean, 0.5 * (functional.softplus(x) + self.SMALLEST).log()), -1)


class ValueHead(nn.Module):
    """Features [..., F] to values [...]."""

    def __init__(self, features: int, gain: float = 1.0) -> None:
        super().__init__()
        self.linear = OutputLinear(features, 1, gain)

    def forward(self, features: Tensor) -> Tensor:
        value: Tensor = in_full(self.linear, features).squeeze(-1)
        return value


def build_policy_head(
    features: int, action: ActionSpec, *, gain: float = 0.01, log_std_init: float = 0.0
) -> LogitsHead | GaussianHead:
    """features [..., F] -> params [..., P]; attribute `out` is P (see `params_width`)."""
    if isinstance(action, Continuous):
        return GaussianHead(features, math.prod(action.shape), gain, log_std_init)
    return LogitsHead(features, params_width(action), gain)


def params_width(action: ActionSpec) -> int:
    """P, for the extras a policy stores."""
    if isinstance(action, Continuous):
        return 2 * math.prod(action.shape)
    return action.n if isinstance(action, Discrete) else sum(action.nvec)


class PolicyDist:
    """The distribution(s) of params [..., P]; every result has the leading dimensions.

    `action_mask` [..., P] (True = allowed) applies to the choices; where nothing is allowed the
    choice is uniform, since such rows (an environment resetting) are never learned from.
    """

    def __init__(
        self, params: Tensor, action: ActionSpec, action_mask: Tensor | None = None
    ) -> None:
        self.action = action
        self.parts: list[Tensor] = []  # log-probabilities, one per categorical
        if isinstance(action, Continuous):
            self.mean, self.log_std = params.chunk(2, -1)
            return
        if action_mask is not None:
            # Finite, so that 0 * log 0 stays 0 in entropy and KL, and so do the gradients.
            params = params.masked_fill(~action_mask, torch.finfo(params.dtype).min / 4)
        if isinstance(action, MultiDiscrete):
            split = params.split_with_sizes(action.nvec, -1)
            self.parts = [logits.log_softmax(-1) for logits in split]
        else:
            self.parts = [params.log_softmax(-1)]

    def sample(self, rng: torch.Generator) -> Tensor:
        if isinstance(self.action, Continuous):
            noise = torch.empty_like(self.mean).normal_(generator=rng)
            return self._shaped(torch.addcmul(self.mean, self.log_std.exp(), noise))
        # argmax p / e with e ~ Exp(1) is a draw from p, on any leading dimensions.
        return self._joined(
            [(p.exp() / torch.empty_like(p).exponential_(generator=rng)) for p in self.parts]
        )

    def mode(self) -> Tensor:
        return self._shaped(self.mean) if not self.parts else self._joined(self.parts)

    def log_prob(self, action: Tensor) -> Tensor:
        """log pi(action), summed over the dimensions of an action."""
        if isinstance(self.action, Discrete):
            return self.parts[0].gather(-1, action.unsqueeze(-1)).squeeze(-1)
        if isinstance(self.action, MultiDiscrete):
            pairs = zip(self.parts, action.unbind(-1), strict=True)
            each = [p.gather(-1, a.unsqueeze(-1)) for p, a in pairs]
            return torch.cat(each, -1).sum(-1)
        z = (action.reshape(self.mean.shape) - self.mean) * (-self.log_std).exp()
        return -(0.5 * (z.square() + _LOG_2PI) + self.log_std).sum(-1)

    def entropy(self) -> Tensor:
        if not self.parts:
            return (self.log_std + 0.5 * (1 + _LOG_2PI)).sum(-1)
        terms = [-(p.exp() * p).sum(-1) for p in self.parts]
        return terms[0] if len(terms) == 1 else torch.stack(terms).sum(0)

    def kl(self, other: PolicyDist) -> Tensor:
        """KL(self || other)."""
        if not self.parts:
            ratio = (2 * (self.log_std - other.log_std)).exp()
            shift = ((self.mean - other.mean) * (-other.log_std).exp()).square()
            return (0.5 * (ratio + shift - 1) + other.log_std - self.log_std).sum(-1)
        pairs = zip(self.parts, other.parts, strict=True)
        terms = [(p.exp() * (p - q)).sum(-1) for p, q in pairs]
        return terms[0] if len(terms) == 1 else torch.stack(terms).sum(0)

    def _joined(self, scores: list[Tensor]) -> Tensor:
        best = [s.argmax(-1) for s in scores]
        return torch.stack(best, -1) if isinstance(self.action, MultiDiscrete) else best[0]

    def _shaped(self, flat: Tensor) -> Tensor:
        assert isinstance(self.action, Continuous)
        return flat.reshape(*flat.shape[:-1], *self.action.shape)
