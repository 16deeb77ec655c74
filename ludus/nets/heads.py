"""Value heads over discrete actions: scalar, categorical (C51), quantile (QR-DQN), implicit (IQN).
Each has its own temporal-difference loss. A torso and a head are a QNet (qnet.py). Policies are in
policies.py; the algorithm chooses the targets' actions."""

from __future__ import annotations

import math
from typing import Annotated, Literal, NamedTuple, Self, TypeAlias

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn
from torch.nn import functional

from ludus.contract import Frozen
from ludus.nets.inputs import MAX_WIDTH
from ludus.nets.torsos import find_parts_at_once, in_full
from ludus.ops import categorical_cross_entropy, categorical_project, quantile_huber

Noisy: TypeAlias = Annotated[float, Field(gt=0)]
Rng: TypeAlias = torch.Generator | None
# What a pass is for: the net that learns, the target of its loss, the choice of an action. A head
# that samples has its own number of samples for each.
Use: TypeAlias = Literal["learn", "target", "act"]


class Scalar(Frozen):
    """One number per action."""

    kind: Literal["scalar"] = "scalar"
    loss: Literal["huber", "mse"] = "huber"  # mse is half the square: same gradient as huber near 0
    dueling: bool = False
    noisy: Noisy | None = None  # sigma0
    hidden: int = Field(default=0, ge=0, le=MAX_WIDTH)  # of each stream; 0: linear on the features


class Categorical(Frozen):
    """Bellemare et al. 2017: probabilities of `atoms` values evenly spaced on [v_min, v_max]."""

    kind: Literal["categorical"] = "categorical"
    atoms: int = Field(default=51, ge=2, le=MAX_WIDTH)
    v_min: float = -10.0
    v_max: float = 10.0
    dueling: bool = False
    noisy: Noisy | None = None
    hidden: int = Field(default=0, ge=0, le=MAX_WIDTH)

    @model_validator(mode="after")
    def _range(self) -> Self:
        if not self.v_min < self.v_max:
            raise ValueError(f"v_min ({self.v_min}) must be below v_max ({self.v_max})")
        return self


class Quantile(Frozen):
    """Dabney et al. 2018a: the values at fixed quantile midpoints."""

    kind: Literal["quantile"] = "quantile"
    quantiles: int = Field(default=200, ge=1, le=MAX_WIDTH)
    kappa: float = Field(default=1.0, ge=0)
    dueling: bool = False
    noisy: Noisy | None = None
    hidden: int = Field(default=0, ge=0, le=MAX_WIDTH)


class Implicit(Frozen):
    """Dabney et al. 2018b: the value at any quantile, asked for by number."""

    kind: Literal["implicit"] = "implicit"
    taus: int = Field(default=64, ge=1, le=MAX_WIDTH)  # N, of the net that learns
    target_taus: int = Field(default=64, ge=1, le=MAX_WIDTH)  # N', of the target
    act_taus: int = Field(default=32, ge=1, le=MAX_WIDTH)  # K, to choose an action
    cosines: int = Field(default=64, ge=1, le=MAX_WIDTH)
    kappa: float = Field(default=1.0, ge=0)
    dueling: bool = False
    noisy: Noisy | None = None
    hidden: int = Field(default=0, ge=0, le=MAX_WIDTH)


HeadModel: TypeAlias = Scalar | Categorical | Quantile | Implicit
HeadConfig: TypeAlias = Annotated[HeadModel, Field(discriminator="kind")]


class HeadOut(NamedTuple):
    q: Tensor  # [B,A] expected values
    dist: Tensor  # [B,A,K]: the value (K=1), logits of atoms, or values at quantiles
    taus: Tensor | None = None  # [B,K]


class NoisyLinear(nn.Module):
    """A linear layer with learned, factorised noise, of which it keeps none.

    Fortunato et al. 2018, eq. 9-11: w = mu + sigma * f(e_out) f(e_in)^T, f(x) = sgn(x) sqrt|x|.

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

    def forward(self, x: Tensor, rng: Rng = None) -> Tensor:
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


class Streams(nn.Module):
    """Features [..., F] to [..., A, K], plain or dueling, with plain or noisy layers.

    Dueling (Wang et al. 2016, eq. 9): Q = V + A - mean_a A, for each of the K outputs. Both
    streams are one layer wherever that is the same computation.
    """

    def __init__(self, features: int, actions: int, width: int, cfg: HeadModel) -> None:
        super().__init__()
        self.width, self.size = width, cfg.hidden
        self.dueling, self.noisy = cfg.dueling, cfg.noisy is not None

        def linear(inputs: int, outputs: int) -> nn.Module:
            if cfg.noisy is None:
                return nn.Linear(inputs, outputs)
            return NoisyLinear(inputs, outputs, cfg.noisy)

        rows = actions + 1 if self.dueling else actions
        self.hidden = linear(features, cfg.hidden * (1 + self.dueling)) if cfg.hidden else None
        if self.hidden is not None and self.dueling:
            self.value: nn.Module | None = linear(cfg.hidden, width)
            self.output = linear(cfg.hidden, actions * width)
        else:
            self.value = None
            self.output = linear(cfg.hidden or features, rows * width)
        find_parts_at_once(self)

    def forward(self, x: Tensor, rng: Rng) -> Tensor:
        noise = (rng,) if self.noisy else ()
        if self.hidden is not None:
            x = torch.relu_(self.hidden(x, *noise))
        if not self.dueling:
            return self._rows(self.output, x, *noise)
        if self.value is not None:
            value = self._rows(self.value, x[..., : self.size], *noise)
            advantage = self._rows(self.output, x[..., self.size :], *noise)
        else:
            both = self._rows(self.output, x, *noise)  # [..,1+A,K]
            value, advantage = both[..., :1, :], both[..., 1:, :]
        return value + (advantage - advantage.mean(-2, keepdim=True))

    def _rows(self, layer: nn.Module, x: Tensor, *noise: Rng) -> Tensor:
        y: Tensor = in_full(layer, x, *noise)
        return y.view(*y.shape[:-1], -1, self.width)


class _ValueHead(nn.Module):
    """`width` outputs for each action; `read` gives the expected values that they stand for."""

    random: bool  # two passes with a generator differ

    def __init__(self, features: int, actions: int, width: int, cfg: HeadModel) -> None:
        super().__init__()
        self.streams = Streams(features, actions, width, cfg)
        self.random = cfg.noisy is not None
        find_parts_at_once(self)

    def forward(
        self, features: Tensor, rng: Rng = None, *, noise: bool = True, use: Use = "learn"
    ) -> HeadOut:
        return self.read(self.streams(features, rng if noise else None))

    def read(self, dist: Tensor) -> HeadOut:
        raise NotImplementedError

    def select(self, out: HeadOut, action: Tensor) -> Tensor:
        return chosen(out.dist, action)

    def best(self, out: HeadOut) -> Tensor:
        """What `select` gives for the action of the largest q."""
        return self.select(out, out.q.argmax(-1))


class ScalarHead(_ValueHead):
    def __init__(self, features: int, actions: int, cfg: Scalar) -> None:
        super().__init__(features, actions, 1, cfg)
        self.cfg = cfg

    def read(self, dist: Tensor) -> HeadOut:
        return HeadOut(dist.squeeze(-1), dist)

    def best(self, out: HeadOut) -> Tensor:
        return out.q.amax(-1, keepdim=True)  # q is the value itself

    def td(
        self, out: HeadOut, action: Tensor, reward: Tensor, discount: Tensor, next_dist: Tensor
    ) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            target = torch.addcmul(reward, discount, next_dist.squeeze(-1))  # [B]
        q = out.q.gather(1, action.unsqueeze(1)).squeeze(1)
        if self.cfg.loss == "huber":
            # ops.huber(target - q) in one fused operation: a fifth of a small update's time.
            loss = functional.huber_loss(q, target, reduction="none")
        else:
            loss = 0.5 * (target - q).square()
        return loss, (target - q.detach()).abs_()


class CategoricalHead(_ValueHead):
    """`dist` holds logits; `select` answers probabilities."""

    support: Tensor

    def __init__(self, features: int, actions: int, cfg: Categorical) -> None:
        super().__init__(features, actions, cfg.atoms, cfg)
        support = torch.linspace(cfg.v_min, cfg.v_max, cfg.atoms)
        self.register_buffer("support", support, persistent=False)

    def read(self, dist: Tensor) -> HeadOut:
        # Not a product of matrices: autocast would round the values to its own dtype.
        return HeadOut((dist.softmax(-1) * self.support).sum(-1), dist)

    def select(self, out: HeadOut, action: Tensor) -> Tensor:
        return chosen(out.dist, action).softmax(-1)

    def td(
        self, out: HeadOut, action: Tensor, reward: Tensor, discount: Tensor, next_dist: Tensor
    ) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            target = categorical_project(self.support, reward, discount, next_dist)  # [B,K]
        loss = categorical_cross_entropy(chosen(out.dist, action), target)
        return loss, loss.detach()


class QuantileLoss(_ValueHead):
    """`dist` holds the values at `taus`."""

    kappa: float

    def td(
        self, out: HeadOut, action: Tensor, reward: Tensor, discount: Tensor, next_dist: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Quantile Huber loss of the taken action; priority: mean |error| over all pairs."""
        assert out.taus is not None
        prediction = chosen(out.dist, action)  # [B,N]
        with torch.no_grad():
            target = torch.addcmul(reward.unsqueeze(1), discount.unsqueeze(1), next_dist)  # [B,N']
            pairs = target.unsqueeze(1) - prediction.unsqueeze(2)  # [B,N,N']
            priority = pairs.abs_().mean((1, 2))
        return quantile_huber(prediction, out.taus, target, self.kappa), priority


class QuantileHead(QuantileLoss):
    midpoints: Tensor

    def __init__(self, features: int, actions: int, cfg: Quantile) -> None:
        super().__init__(features, actions, cfg.quantiles, cfg)
        self.kappa = cfg.kappa
        self.register_buffer("midpoints", tau_midpoints(cfg.quantiles), persistent=False)

    def read(self, dist: Tensor) -> HeadOut:
        return HeadOut(dist.mean(-1), dist, self.midpoints.expand(dist.shape[0], -1))


class ImplicitHead(QuantileLoss):
    """Z(tau) = f(psi(s) * phi(tau)), phi(tau) = ReLU(W cos(pi i tau)), i = 0..n-1 (eq. 4).

    taus are drawn for each item from `rng`; without a generator they are the midpoints, so a
    greedy evaluation can be free of chance.
    """

    frequencies: Tensor

    def __init__(self, features: int, actions: int, cfg: Implicit) -> None:
        super().__init__(features, actions, 1, cfg)
        self.kappa, self.random = cfg.kappa, True
        self.taus = {"learn": cfg.taus, "target": cfg.target_taus, "act": cfg.act_taus}
        self.embedding = nn.Linear(cfg.cosines, features)
        frequencies = math.pi * torch.arange(cfg.cosines, dtype=torch.float32)
        self.register_buffer("frequencies", frequencies, persistent=False)

    def forward(
        self, features: Tensor, rng: Rng = None, *, noise: bool = True, use: Use = "learn"
    ) -> HeadOut:
        batch, count, device = features.shape[0], self.taus[use], features.device
        if rng is None:
            tau = tau_midpoints(count, device).expand(batch, -1)
        else:
            tau = torch.rand(batch, count, generator=rng, device=device)
        return self.at(features, tau, rng if noise else None)

    def at(self, features: Tensor, tau: Tensor, rng: Rng = None) -> HeadOut:
        """The values at given tau [B,K]; `rng` is for noisy layers only."""
        cosines = torch.cos(tau.unsqueeze(-1) * self.frequencies)  # [B,K,cosines]
        phi = torch.relu_(self.embedding(cosines))  # [B,K,F]
        joint: Tensor = self.streams(features.unsqueeze(1) * phi, rng)  # [B,K,A,1]
        dist = joint.squeeze(-1).transpose(1, 2)  # [B,A,K]
        return HeadOut(dist.mean(-1), dist, tau)


Head: TypeAlias = ScalarHead | CategoricalHead | QuantileHead | ImplicitHead


def build_head(cfg: HeadModel, features: int, actions: int) -> Head:
    if isinstance(cfg, Scalar):
        return ScalarHead(features, actions, cfg)
    if isinstance(cfg, Categorical):
        return CategoricalHead(features, actions, cfg)
    if isinstance(cfg, Quantile):
        return QuantileHead(features, actions, cfg)
    return ImplicitHead(features, actions, cfg)


def chosen(dist: Tensor, action: Tensor) -> Tensor:
    """dist [B,A,K] at action [B]: [B,K]. By gather, whose backward is cheaper than indexing's."""
    return dist.gather(1, action.view(-1, 1, 1).expand(-1, 1, dist.shape[2])).squeeze(1)


def tau_midpoints(count: int, device: torch.device | None = None) -> Tensor:
    """(2i - 1) / 2N, i = 1..N."""
    return (torch.arange(count, device=device, dtype=torch.float32) + 0.5) / count
