"""The residual image torso of IMPALA. Not the plain convolutions: those are in torsos.py."""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from ludus.contract import Frozen
from ludus.nets.inputs import MAX_WIDTH, Order

CHANNELS = (16, 32, 32)  # of the three sections, before `width`


class Impala(Frozen):
    """Espeholt et al. 2018, figure 3: three sections of a convolution, a max-pool and two residual
    blocks, then one dense layer; for one image of at least 8x8."""

    kind: Literal["impala"] = "impala"
    width: int = Field(default=1, ge=1, le=1024)  # factor on the channels 16, 32, 32
    hidden: int = Field(default=256, ge=0, le=MAX_WIDTH)  # 0: the flattened maps are the features


class ResidualBlock(nn.Module):
    """x + conv(relu(conv(relu(x)))), 3x3 and padded."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        # Only the inner one in place: the skip needs x as it came.
        y: Tensor = self.second(torch.relu_(self.first(torch.relu(x))))
        return y + x


class ImpalaTorso(nn.Module):
    out: int
    block = 0  # its first layer moves by one pixel
    # Always: one core trained on 64 in 0.64 of the time, in bfloat16 0.55; acted on 8 in 0.48. A
    # GPU is a quarter faster.
    order = Order(gpu=True)

    def __init__(self, shape: tuple[int, ...], cfg: Impala) -> None:
        super().__init__()
        channels, height, width = shape
        layers: list[nn.Module] = []
        for size in (cfg.width * n for n in CHANNELS):
            # differs: padded alike on both sides, where TensorFlow's SAME pads an even image only
            # at its end; the sizes are the same, 84 -> 42 -> 21 -> 11.
            layers += [
                nn.Conv2d(channels, size, 3, padding=1),
                nn.MaxPool2d(3, 2, padding=1),
                ResidualBlock(size),
                ResidualBlock(size),
            ]
            height, width, channels = (height + 1) // 2, (width + 1) // 2, size
        self.sections = nn.Sequential(*layers)
        flat = channels * height * width
        self.dense = nn.Linear(flat, cfg.hidden) if cfg.hidden else None
        self.out = cfg.hidden or flat

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu_(self.sections(x)).flatten(1)
        return x if self.dense is None else torch.relu_(self.dense(x))
