"""Which numbers a net computes in under torch.autocast: inputs and layers in its dtype, whatever a
loss or a distribution reads in float32. Turning autocast on is no business of this file."""

from __future__ import annotations

import torch
from torch import Tensor


def layer_dtype(x: Tensor) -> torch.dtype:
    """What the layers that eat `x` compute in: float32, or less where autocast is on."""
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else torch.float32


def full(x: Tensor) -> Tensor:
    """`x` in at least float32. Nothing happens to what is that already."""
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x
