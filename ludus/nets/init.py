"""Weights drawn from a given generator. Not a place for architectures."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn

from ludus.errors import LudusError

Scheme: TypeAlias = Literal["default", "orthogonal"]
Layer: TypeAlias = nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d


class OutputLinear(nn.Linear):
    """The last layer of a head; orthogonal initialisation scales it by its own gain."""

    def __init__(self, inputs: int, outputs: int, gain: float) -> None:
        super().__init__(inputs, outputs)
        self.gain = gain


@torch.no_grad()
def initialize(module: nn.Module, rng: torch.Generator, scheme: Scheme = "default") -> None:
    """Draw every parameter of `module` anew from `rng`; the global generator does not change.

    "default" is torch's own, U(+-1/sqrt(fan in)). "orthogonal" (PPO): gain sqrt 2, heads their
    own gain, biases 0. Layers of other kinds are drawn by their `reset_parameters()`.
    """
    for name, part in module.named_modules():
        own = list(part.parameters(recurse=False))
        if not own:
            continue
        if isinstance(part, Layer):
            _layer(part, rng, scheme)
        elif isinstance(part, nn.LSTM | nn.GRU):
            _recurrent(part, own, rng, scheme)
        elif reset := _reset_of(part):
            _by_itself(reset, own[0].device, rng)
        elif any(bool((p != p.flatten()[0]).any()) for p in own):
            raise LudusError(
                "E104",
                f"{type(part).__name__} ({name or 'the network'}) has parameters of its own "
                "and no reset_parameters()",
                why="its first values came from torch's global generator, so seeds would not hold",
                fix="give the class a method reset_parameters(self) that fills them",
            )


def _layer(part: Layer, rng: torch.Generator, scheme: Scheme) -> None:
    if scheme == "orthogonal":
        _orthogonal(part.weight, part.gain if isinstance(part, OutputLinear) else math.sqrt(2), rng)
        if part.bias is not None:
            part.bias.zero_()
        return
    bound = 1 / math.sqrt(part.weight[0].numel())
    _uniform(part.weight, bound, rng)
    if part.bias is not None:
        _uniform(part.bias, bound, rng)


def _recurrent(
    part: nn.LSTM | nn.GRU, own: list[nn.Parameter], rng: torch.Generator, scheme: Scheme
) -> None:
    for parameter in own:
        if scheme == "default":
            _uniform(parameter, 1 / math.sqrt(part.hidden_size), rng)
        elif parameter.dim() > 1:
            _orthogonal(parameter, 1.0, rng)
        else:
            parameter.zero_()


def _uniform(out: Tensor, bound: float, rng: torch.Generator) -> None:
    # Drawn where the generator lives, so that the same seed gives the same weights everywhere.
    out.copy_(torch.empty(out.shape, device=rng.device).uniform_(-bound, bound, generator=rng))


def _orthogonal(out: Tensor, gain: float, rng: torch.Generator) -> None:
    out.copy_(nn.init.orthogonal_(torch.empty(out.shape, device=rng.device), gain, generator=rng))


def _reset_of(part: nn.Module) -> Callable[[], None] | None:
    """The method by which a layer of another kind draws its parameters, if it has one."""
    found = getattr(part, "reset_parameters", None) or getattr(part, "_reset_parameters", None)
    return found if callable(found) else None


def _by_itself(reset: Callable[[], None], device: torch.device, rng: torch.Generator) -> None:
    """Layers that use only the global generator draw from it, seeded; then it is restored."""
    seed = int(torch.randint(2**62, (1,), generator=rng, device=rng.device))
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        reset()
