"""The dtypes of a net under torch.autocast: inputs and layers in its dtype, the inputs of losses
and distributions in float32. The caller turns autocast on."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


def layer_dtype(x: Tensor) -> torch.dtype:
    """The dtype of the layers that take `x`: float32, or autocast's."""
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else torch.float32


def full(x: Tensor) -> Tensor:
    """`x` in at least float32."""
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x


def in_full(layer: nn.Module, x: Tensor, *more: Any) -> Any:
    """`layer(x, *more)` in float32 under autocast too. For memories, whose rounding errors add up,
    and for the last layers of heads: bfloat16 has eight bits, so values around 8 would differ by
    0.06 or not at all, and so would log-probabilities, which is half of what PPO may change a
    policy by. They are small: it costs nothing.
    """
    kind = x.device.type
    if not torch.is_autocast_enabled(kind):  # disabling it would take as long as the layer
        return layer(full(x), *more)
    with torch.autocast(kind, enabled=False):
        return layer(full(x), *more)
