"""Action values as ensembles: the same layer of all members is one batched product. Also the soft
update of target networks."""

from __future__ import annotations

import math
from itertools import pairwise

import torch
from torch import Tensor, nn

from ludus.nets.torsos import ACTIVATIONS, MLP, Auto, TorsoModel, build_torso, features_of, in_full
from ludus.types import ArraySpec, Continuous, Discrete, EnvSpec, Tree


class EnsembleLinear(nn.Module):
    """One linear layer of every member: [E, B, inputs] -> [E, B, outputs]. Initialised as torch's
    own layers are, U(+-1/sqrt(fan in))."""

    def __init__(self, members: int, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(members, inputs, outputs))
        self.bias = nn.Parameter(torch.empty(members, 1, outputs))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        bound = 1 / math.sqrt(self.weight.shape[1])
        nn.init.uniform_(self.weight, -bound, bound)
        nn.init.uniform_(self.bias, -bound, bound)

    def forward(self, x: Tensor, first: int | None = None) -> Tensor:
        """Of the first members alone, if `first` is given."""
        if first is None:  # a slice of all members would cost a copy in the backward pass
            return torch.baddbmm(self.bias, x, self.weight)
        return torch.baddbmm(self.bias[:first], x, self.weight[:first])


class Critic(nn.Module):
    """`members` independent action values: Q(s, a) [E, B] of continuous actions in [-1, 1], or
    Q(s, .) [E, B, A] of discrete ones.

    A vector of observations goes, with the action, through batched layers of the torso's widths.
    For other observations every member has a torso of its own, and the action joins its features.
    """

    JOINED = 256  # width of the layer that joins a torso's features and a continuous action

    def __init__(self, spec: EnvSpec, torso: TorsoModel, members: int = 2) -> None:
        super().__init__()
        self.members = members
        outputs = spec.action.n if isinstance(spec.action, Discrete) else 1
        action = math.prod(spec.action.shape) if isinstance(spec.action, Continuous) else 0
        dense = torso.mlp if isinstance(torso, Auto) else torso
        self.torsos: nn.ModuleList | None = None
        if isinstance(dense, MLP) and not dense.layer_norm and is_float_vector(spec.obs):
            sizes = (spec.obs.seen_shape[0] + action, *dense.hidden, outputs)
            self.activation = ACTIVATIONS[dense.activation]
        else:
            self.torsos = nn.ModuleList(build_torso(torso, spec.obs) for _ in range(members))
            width = features_of(self.torsos[0])
            sizes = (width + action, self.JOINED, 1) if action else (width, outputs)
            self.activation = ACTIVATIONS["relu"]
        self.layers = nn.ModuleList(EnsembleLinear(members, a, b) for a, b in pairwise(sizes))

    def forward(self, obs: Tree, action: Tensor | None = None, first: int | None = None) -> Tensor:
        """`first`: only that many members."""
        count = self.members if first is None else first
        if self.torsos is None:
            x = (obs if action is None else torch.cat((obs, action), -1)).expand(count, -1, -1)
        else:
            x = torch.stack([torso(obs) for torso in self.torsos[:count]])  # [E,B,F]
            if action is not None:
                x = torch.cat((x, action.expand(count, -1, -1)), -1)
        for layer in self.layers[:-1]:
            x = self.activation(layer(x, first))
        q: Tensor = in_full(self.layers[-1], x, first)
        return q if action is None else q.squeeze(-1)


def is_float_vector(obs: Tree) -> bool:
    """Whether observations are one vector of floats, which needs no processing."""
    return isinstance(obs, ArraySpec) and obs.dtype == "float32" and len(obs.seen_shape) == 1


@torch.no_grad()
def soft_update(source: nn.Module, target: nn.Module, tau: float) -> None:
    """target <- (1 - tau) target + tau source; buffers are copied."""
    torch._foreach_lerp_(list(target.parameters()), list(source.parameters()), tau)
    for a, b in zip(source.buffers(), target.buffers(), strict=True):
        b.copy_(a)
