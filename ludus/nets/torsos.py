"""Torsos: observations in, features [B, out] out. No heads, no recurrence, no statistics."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import Annotated, Any, Literal, Self, TypeAlias

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn
from torch.nn import functional

from ludus.contract import Frozen
from ludus.errors import LudusError
from ludus.nets.custom_torso import Custom, CustomTorso
from ludus.nets.inputs import MAX_WIDTH, ImageInput, Order, VectorInput, fits_cnn, ordered_leaves
from ludus.nets.space_to_depth import block_of, convolve_blocks
from ludus.types import ArraySpec, Tree, tree_leaves, tree_paths

Activation: TypeAlias = Literal["relu", "tanh", "elu"]
# In place: a linear layer's backward does not need its output, and each copy slows small nets down.
ACTIVATIONS = {"relu": torch.relu_, "tanh": torch.tanh_, "elu": functional.elu_}
Width: TypeAlias = Annotated[int, Field(ge=1, le=MAX_WIDTH)]
Side: TypeAlias = Annotated[int, Field(ge=1, le=1024)]  # pixels
IMPALA_CHANNELS = (16, 32, 32)  # of its three sections, before `width`


class MLP(Frozen):
    """Dense layers; every leaf is flattened and all are concatenated."""

    kind: Literal["mlp"] = "mlp"
    hidden: tuple[Width, ...] = Field(default=(64, 64), max_length=100)
    activation: Activation = "relu"
    layer_norm: bool = False  # of every layer, before its activation (Ba et al. 2016)


class CNN(Frozen):
    """Convolutions and one dense layer, for one image of at least 8x8.

    Left alone, kernels and strides follow from the size: 8/4, 4/2, 3/1 (Mnih et al. 2015) from 36
    pixels a side on, padded 3x3 below.
    """

    kind: Literal["cnn"] = "cnn"
    channels: tuple[Width, ...] = Field(default=(32, 64, 64), min_length=1, max_length=100)
    kernels: tuple[Side, ...] = ()  # empty: by the size
    strides: tuple[Side, ...] = ()
    hidden: int = Field(default=256, ge=0, le=MAX_WIDTH)  # 0: the flattened maps are the features
    activation: Activation = "relu"
    layer_norm: bool = False  # before every activation; of a map: over the channels of each pixel

    @model_validator(mode="after")
    def _lengths(self) -> Self:
        given = (len(self.kernels), len(self.strides))
        if given not in ((0, 0), (len(self.channels),) * 2):
            raise ValueError("kernels and strides: one of each per entry of channels, or neither")
        return self


class Nips(Frozen):
    """Mnih et al. 2013, section 4.1: 16 maps 8x8/4, 32 maps 4x4/2, a dense layer of 256."""

    kind: Literal["nips"] = "nips"
    hidden: int = Field(default=256, ge=0, le=MAX_WIDTH)

    @property
    def cnn(self) -> CNN:
        return CNN(channels=(16, 32), kernels=(8, 4), strides=(4, 2), hidden=self.hidden)


class Nature(Frozen):
    """Mnih et al. 2015, methods: 32 maps 8x8/4, 64 maps 4x4/2, 64 maps 3x3/1, a dense layer of 512.

    A head with a `hidden` layer of its own wants `hidden: 0` here: the dense layer is then its.
    """

    kind: Literal["nature"] = "nature"
    hidden: int = Field(default=512, ge=0, le=MAX_WIDTH)
    layer_norm: bool = False  # as in CNN

    @property
    def cnn(self) -> CNN:
        return CNN(
            kernels=(8, 4, 3), strides=(4, 2, 1), hidden=self.hidden, layer_norm=self.layer_norm
        )


class Impala(Frozen):
    """Espeholt et al. 2018, figure 3: three sections of a convolution, a max-pool and two residual
    blocks, then one dense layer; for one image of at least 8x8."""

    kind: Literal["impala"] = "impala"
    width: int = Field(default=1, ge=1, le=1024)  # factor on the channels 16, 32, 32
    hidden: int = Field(default=256, ge=0, le=MAX_WIDTH)  # 0: the flattened maps are the features


class Auto(Frozen):
    """A CNN for each image, one MLP for all vectors; several are concatenated."""

    kind: Literal["auto"] = "auto"
    mlp: MLP = MLP()
    cnn: CNN = CNN()


Image: TypeAlias = CNN | Nips | Nature | Impala  # of exactly one image
TorsoModel: TypeAlias = MLP | Image | Auto | Custom
TorsoConfig: TypeAlias = Annotated[TorsoModel, Field(discriminator="kind")]


class MLPTorso(nn.Module):
    out: int

    def __init__(self, inputs: int, cfg: MLP) -> None:
        super().__init__()
        sizes = (inputs, *cfg.hidden)
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(sizes))
        self.norms = layer_norms(cfg.hidden) if cfg.layer_norm else None
        self.activation, self.out = ACTIVATIONS[cfg.activation], sizes[-1]
        self.linear = list(self.layers)  # the same, but a list is walked faster
        find_parts_at_once(self)

    def forward(self, x: Tensor) -> Tensor:
        activation, norms = self.activation, self.norms
        for i, layer in enumerate(self.linear):
            x = linear(layer, x)
            x = activation(x if norms is None else norms[i](x))
        return x


def layer_norms(widths: Iterable[int]) -> nn.ModuleList:
    """One normalisation over the last axis for each layer; epsilon is flax's, not torch's."""
    return nn.ModuleList(nn.LayerNorm(width, eps=1e-6) for width in widths)


class CNNTorso(nn.Module):
    out: int
    # In float32 and not for a few images: one core trained on 256 in 0.72 of the time, on 32 in
    # 0.89, but acted on 8 in 1.07; bfloat16 took 1.08.
    order = Order(rows=16, bf16=False)

    def __init__(self, shape: tuple[int, ...], cfg: CNN) -> None:
        super().__init__()
        channels, height, width = shape
        side = min(height, width)
        layers: list[nn.Conv2d] = []
        for i, size in enumerate(cfg.channels):
            kernel, stride, padding = _window(cfg, i, side, min(height, width))
            layers.append(nn.Conv2d(channels, size, kernel, stride, padding))
            height, width = ((n + 2 * padding - kernel) // stride + 1 for n in (height, width))
            if min(height, width) < 1:
                raise LudusError(
                    "E203",
                    f"an image of {shape[1]}x{shape[2]} is too small for layer {i} of the CNN "
                    f"(kernel {kernel}, stride {stride})",
                    fix="torso.kind=cnn with smaller kernels and strides, or with neither",
                )
            channels = size
        self.convolutions = nn.ModuleList(layers)
        self.block = block_of(layers[0])
        flat = channels * height * width
        self.dense = nn.Linear(flat, cfg.hidden) if cfg.hidden else None
        widths = (*cfg.channels, *((cfg.hidden,) if cfg.hidden else ()))
        self.norms = layer_norms(widths) if cfg.layer_norm else None
        self.activation, self.out = ACTIVATIONS[cfg.activation], cfg.hidden or flat

    def forward(self, x: Tensor) -> Tensor:
        for i, layer in enumerate(self.convolutions):
            assert isinstance(layer, nn.Conv2d)
            # Only an input in blocks has more channels than its layer (see ImageInput).
            in_blocks = x.shape[1] != layer.in_channels
            x = convolve_blocks(layer, x, self.block) if in_blocks else layer(x)
            if self.norms is not None:
                x = self.norms[i](x.movedim(1, -1)).movedim(-1, 1)
            x = self.activation(x)
        x = x.flatten(1)
        if self.dense is None:
            return x
        x = self.dense(x)
        return self.activation(x if self.norms is None else self.norms[-1](x))


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
        for size in (cfg.width * n for n in IMPALA_CHANNELS):
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


ImageTorso: TypeAlias = CNNTorso | ImpalaTorso


class TreeTorso(nn.Module):
    """Input processing, then one body per image leaf and one for the vectors, concatenated."""

    def __init__(
        self,
        spec: Tree,
        inputs: list[nn.Module],
        images: dict[int, ImageTorso],
        vectors: MLPTorso | None,
    ) -> None:
        super().__init__()
        self.spec, self.single = spec, isinstance(spec, ArraySpec)
        self.inputs = nn.ModuleList(inputs)
        self.image_leaves, self.images = list(images), nn.ModuleList(images.values())
        self.vector_leaves = [i for i in range(len(inputs)) if i not in images]
        self.vectors = vectors
        self.out = sum(body.out for body in images.values()) + (vectors.out if vectors else 0)
        find_parts_at_once(self)

    def forward(self, obs: Tree) -> Tensor:
        leaves = (
            [obs] if self.single and isinstance(obs, Tensor) else ordered_leaves(self.spec, obs)
        )
        flat = [prepare(x) for prepare, x in zip(self.inputs, leaves, strict=True)]
        parts: list[Tensor] = [
            body(flat[i]) for i, body in zip(self.image_leaves, self.images, strict=True)
        ]
        if self.vectors is not None:
            vectors = [flat[i] for i in self.vector_leaves]
            parts.append(self.vectors(vectors[0] if len(vectors) == 1 else torch.cat(vectors, -1)))
        return parts[0] if len(parts) == 1 else torch.cat(parts, -1)


def build_torso(cfg: TorsoModel, spec: Tree) -> nn.Module:
    """The torso for observations of `spec` (a tree of ArraySpec), with attribute `out`.

    `forward` takes them batch first, in the dtypes of the spec: [B, *seen_shape] a leaf.
    """
    if isinstance(cfg, Custom):
        return CustomTorso(spec, cfg)
    leaves: list[ArraySpec] = tree_leaves(spec)
    if isinstance(cfg, Image):
        if len(leaves) > 1 or not fits_cnn(leaves[0]):
            seen = dict(zip(tree_paths(spec), (leaf.seen_shape for leaf in leaves), strict=True))
            raise LudusError(
                "E203",
                f"torso {cfg.kind} needs one image of at least 8x8, the observation is {seen}",
                fix="torso.kind=auto",
            )
        kind = ImpalaTorso if isinstance(cfg, Impala) else CNNTorso
        image = ImageInput(leaves[0], kind.order)
        body = _body(image.shape, cfg)
        image.block = body.block
        return TreeTorso(spec, [image], {0: body}, None)
    # A float vector needs no work at all: the common small case skips input processing.
    if isinstance(spec, ArraySpec) and spec.dtype == "float32" and len(spec.seen_shape) == 1:
        dense = cfg.mlp if isinstance(cfg, Auto) else cfg
        return MLPTorso(spec.seen_shape[0], dense)
    return _mixed(cfg, spec, leaves)


def features_of(torso: nn.Module) -> int:
    """The width of a torso's output, its attribute `out`."""
    width = torso.out
    assert isinstance(width, int)
    return width


def _mixed(cfg: MLP | Auto, spec: Tree, leaves: list[ArraySpec]) -> TreeTorso:
    """Any tree of leaves: images to convolutions where `cfg` has them, all else to dense layers."""
    images: dict[int, ImageTorso] = {}
    inputs: list[nn.Module] = []
    width = 0
    for i, leaf in enumerate(leaves):
        if isinstance(cfg, Auto) and fits_cnn(leaf):
            image = ImageInput(leaf, CNNTorso.order)
            inputs.append(image)
            images[i] = CNNTorso(image.shape, cfg.cnn)
            image.block = images[i].block
        else:
            vector = VectorInput(leaf)
            inputs.append(vector)
            width += vector.shape[0]
    dense = cfg.mlp if isinstance(cfg, Auto) else cfg
    vectors = MLPTorso(width, dense) if width else None
    return TreeTorso(spec, inputs, images, vectors)


def _body(shape: tuple[int, ...], cfg: Image) -> ImageTorso:
    if isinstance(cfg, Impala):
        return ImpalaTorso(shape, cfg)
    return CNNTorso(shape, cfg if isinstance(cfg, CNN) else cfg.cnn)


def _window(cfg: CNN, layer: int, side: int, now: int) -> tuple[int, int, int]:
    """Kernel, stride and padding of one layer; `side` of the image, `now` of this layer's input."""
    if cfg.kernels:
        return cfg.kernels[layer], cfg.strides[layer], 0
    if side >= 36:
        return ((8, 4, 0), (4, 2, 0), (3, 1, 0), (3, 1, 1))[min(layer, 3)]
    # Small boards keep their resolution in the first layer: one pixel there is one object.
    return 3, 2 if now >= 8 and (layer > 0 or side >= 16) else 1, 1


# nn.Module finds parts and weights slowly: on a small network a failed look-up in the object, and
# the one in its modules after it, take as long as a product.
def find_parts_at_once(module: nn.Module) -> None:
    """Let the object itself hold its parts, too. Assigning another part removes the entry.

    Not its parameters: `functional_call` replaces them in nn.Module's own table alone.
    """
    module.__dict__.update(module._modules)


def linear(layer: nn.Module, x: Tensor) -> Tensor:
    """`layer(x)` of an nn.Linear, without the call of a module."""
    own = layer._parameters
    weight = own["weight"]
    assert weight is not None
    return functional.linear(x, weight, own["bias"])


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
        x = full(x)
        if type(layer) is nn.Linear:  # as does the call of a module
            return linear(layer, x)
        return layer(x, *more)
    with torch.autocast(kind, enabled=False):
        return layer(full(x), *more)
