"""Observations of environments to inputs of layers: float, channels first, batch first. Nothing
here is learned or normalised by statistics (see normalize.py)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ludus.nets import space_to_depth as blocks
from ludus.types import ActionSpec, ArraySpec, Continuous, Discrete, Tree, tree_leaves, tree_map

MAX_WIDTH = 1 << 20  # units of a layer: sizes that are multiplied stay within 63 bits
SMALLEST_IMAGE = 8  # pixels a side; below that an image is a vector


@dataclass(frozen=True)
class Order:
    """When the layers of a torso are faster on images in channels-last order; the numbers are the
    same. A class says so as its attribute `order`."""

    rows: int = 1  # on a CPU: from so many images on
    bf16: bool = True  # on a CPU without a measurement: in bfloat16 too, not only in float32
    gpu: bool = False  # on a GPU, weights too; such a torso is also worth compiling

    def pays(self, rows: int, dtype: torch.dtype, measured: bool | None) -> bool:
        if rows < self.rows:
            return False
        return (self.bf16 or dtype == torch.float32) if measured is None else measured


class VectorInput(nn.Module):
    """Any leaf as a flat float vector [B, n]; bytes are scaled by `spec.scale`."""

    def __init__(self, spec: ArraySpec) -> None:
        super().__init__()
        self.shape: tuple[int, ...] = (math.prod(spec.seen_shape),)
        self.scale = spec.scale

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1) if x.dim() != 1 else x.unsqueeze(1)  # a scalar leaf is [B]
        return as_input(x, self.scale)


class ImageInput(nn.Module):
    """An image leaf as float [B, C, H, W]; stacked frames become channels, oldest first.

    `order` is that of the next layers; without one, images stay as they come. The result of a
    measurement on this machine (`channels_last`) overrides it. A torso that can compute on blocks
    of pixels (space_to_depth.py) gives their size as `block`.
    """

    block = 0

    def __init__(self, spec: ArraySpec, order: Order | None = None) -> None:
        super().__init__()
        self.prefers = order
        self.channels_last: bool | None = None
        channels, height, width = image_size(spec)
        self.shape: tuple[int, ...] = (channels * spec.stack, height, width)
        self.layout, self.stacked = spec.layout, spec.stack > 1
        self.scale = spec.scale

    def forward(self, x: Tensor) -> Tensor:
        if self.layout == "hwc":
            x = x.movedim(-1, -3)  # [B,(k,)C,H,W]
        if self.layout == "hw":
            x = x if self.stacked else x.unsqueeze(1)  # the stack is the channels
        elif self.stacked:
            x = x.flatten(1, 2)  # [B,k*C,H,W]
        if self.block and blocks.pays(x, layer_dtype(x)):
            x = blocks.to_blocks(x, self.block)
        if not self._rearranges(x):
            return as_input(x, self.scale)
        # 256 stacks of 4 bytewise screens: 3.7 ms, where x.to(dtype, memory_format=...) takes 11.
        x = torch.stack(x.unbind(1), -1)  # [B,H,W,C]
        return as_input(x, self.scale).movedim(-1, 1)

    def _rearranges(self, x: Tensor) -> bool:
        if self.prefers is None or x.device.type != "cpu":
            return False
        return self.prefers.pays(x.shape[0], layer_dtype(x), self.channels_last)


def layer_dtype(x: Tensor) -> torch.dtype:
    """The dtype of the layers that take `x`: float32, or autocast's."""
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else torch.float32


def as_input(x: Tensor, scale: tuple[float, float]) -> Tensor:
    """Floats as they are; bytes from `scale` to 0..1, in the dtype of the layers: bfloat16 holds
    every byte, so it rounds once. Bytes that were normalised are floats already."""
    if x.dtype != torch.uint8:
        return x.float()
    low, high = scale
    x = x.to(layer_dtype(x))
    if low:
        x.sub_(low)
    return x if high - low == 1 else x.mul_(1 / (high - low))


def image_size(spec: ArraySpec) -> tuple[int, int, int]:
    """(channels, height, width) of one frame."""
    if spec.layout == "chw":
        channels, height, width = spec.shape
    elif spec.layout == "hwc":
        height, width, channels = spec.shape
    else:
        (height, width), channels = spec.shape, 1
    return channels, height, width


def fits_cnn(spec: ArraySpec) -> bool:
    return spec.is_image and min(image_size(spec)[1:]) >= SMALLEST_IMAGE


def ordered_leaves(spec: Tree, obs: Tree) -> list[Tensor]:
    """The leaves of `obs` in the order of `spec`, whatever the order of its own keys."""
    leaves: list[Tensor] = tree_leaves(tree_map(lambda _, x: x, spec, obs))
    return leaves


def over_time(module: Any, obs: Tree, *args: Any, **kwargs: Any) -> Any:
    """Call a [B]-module on observations [T, B, ...]: flatten, call, restore the leading two.

    Outputs may be a tensor or a NamedTuple of tensors and Nones; further arguments are handed
    through untouched.
    """
    steps, batch = tree_leaves(obs)[0].shape[:2]
    out = module(tree_map(lambda x: x.flatten(0, 1), obs), *args, **kwargs)

    def restore(x: Tensor | None) -> Tensor | None:
        return None if x is None else x.view(steps, batch, *x.shape[1:])

    if isinstance(out, torch.Tensor):
        return restore(out)
    return type(out)(*(restore(x) for x in out))


def previous_width(action: ActionSpec) -> int:
    """How many numbers `previous_step` makes of an action and a reward."""
    if isinstance(action, Continuous):
        return math.prod(action.shape) + 1
    return 1 + (action.n if isinstance(action, Discrete) else sum(action.nvec))


def previous_step(
    action: ActionSpec, prev_action: Tensor, prev_reward: Tensor, first: Tensor
) -> Tensor:
    """The action and reward before each observation as inputs [..., W]: choices one-hot, the reward
    clipped to +-1 (Espeholt et al. 2018, figure 3). All zero where an episode opens: what came
    before it, the action of a reset among it, must not show.
    """
    if isinstance(action, Continuous):
        parts = [prev_action.flatten(first.dim()).float()]
    elif isinstance(action, Discrete):
        parts = [_one_hot(prev_action, action.n)]
    else:
        pairs = zip(prev_action.unbind(-1), action.nvec, strict=True)
        parts = [_one_hot(a, n) for a, n in pairs]
    parts.append(prev_reward.clamp(-1, 1).unsqueeze(-1))
    return torch.cat(parts, -1).masked_fill(first.unsqueeze(-1), 0.0)


def _one_hot(chosen: Tensor, n: int) -> Tensor:
    # Not functional.one_hot: it looks at the numbers, which a captured graph must not.
    return (chosen.unsqueeze(-1) == torch.arange(n, device=chosen.device)).float()
