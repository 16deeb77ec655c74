"""Which numbers a net computes in under torch.autocast: inputs and layers in its dtype, whatever a
loss or a distribution reads in float32. Turning autocast on is no business of this file."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


def layer_dtype(x: Tensor) -> torch.dtype:
    """What the layers that eat `x` compute in: float32, or less where autocast is on."""
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else torch.float32


def full(x: Tensor) -> Tensor:
    """`x` in at least float32. Nothing happens to what is that already."""
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x


def in_full(layer: nn.Module, x: Tensor, *more: Any) -> Any:
    """`layer(x, *more)` in float32 under autocast too. For memories, whose rounding errors add up,
    and for the last layers of heads: bfloat16 has eight bits, so values around 8 would differ by
    0.06 or not at all, and so would log-probabilities, which is half of what PPO may change a
    policy by. They are small: it costs nothing.
    """
    kind = x.device.type
    if not torch.is_autocast_enabled(kind):  # to leave what is not on takes as long as the layer
        return layer(full(x), *more)
    with torch.autocast(kind, enabled=False):
        return layer(full(x), *more)
