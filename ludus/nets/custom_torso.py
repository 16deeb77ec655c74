"""Torsos from a user's own classes."""

from __future__ import annotations

import inspect
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from ludus.contract import Frozen
from ludus.errors import LudusError, nearest
from ludus.nets.inputs import ImageInput, Order, VectorInput, ordered_leaves
from ludus.types import ArraySpec, Tree, tree_leaves, tree_unflatten

_CUSTOM: dict[str, type[nn.Module]] = {}


class Custom(Frozen):
    """A class given to `register_torso`, called as cls(shape, **options)."""

    kind: Literal["custom"] = "custom"
    name: str
    options: dict[str, Any] = Field(default_factory=dict)


def register_torso(name: str, cls: type[nn.Module]) -> None:
    """Make `cls` available as torso {kind: custom, name: ...}.

    It is built as cls(shape, **options), where shape is (n,) for vectors and (channels, height,
    width) for images, or a dict/tuple of those; `forward` gets floats [B, *shape] and returns
    [B, features].
    """
    if _CUSTOM.get(name, cls) is not cls:
        raise LudusError(
            "E104", f"a torso named {name!r} is registered already", fix="choose another name"
        )
    _CUSTOM[name] = cls


class CustomTorso(nn.Module):
    """A registered class after our input processing; one dry call finds its width."""

    def __init__(self, spec: Tree, cfg: Custom) -> None:
        super().__init__()
        if cfg.name not in _CUSTOM:
            raise LudusError(
                "E103",
                f"no torso is registered as {cfg.name!r}{nearest(cfg.name, _CUSTOM)}",
                why="its module was not imported before the run was built",
                fix="--import MODULE, where MODULE calls ludus.nets.register_torso(name, class)",
            )
        self.spec = spec
        order = getattr(_CUSTOM[cfg.name], "order", None)  # may mean something else
        order = order if isinstance(order, Order) else None
        leaves = [_input(leaf, order) for leaf in tree_leaves(spec)]
        self.inputs = nn.ModuleList(leaves)
        self.body = _made(cfg, tree_unflatten(spec, [leaf.shape for leaf in leaves]))
        with torch.no_grad():
            zeros = [torch.zeros(2, *leaf.shape) for leaf in leaves]
            features = self.body(tree_unflatten(spec, zeros))
        if not isinstance(features, Tensor) or features.dim() != 2 or features.shape[0] != 2:
            got = tuple(features.shape) if isinstance(features, Tensor) else type(features).__name__
            raise LudusError(
                "E203", f"torso {cfg.name!r} answered {got} to a batch of 2",
                fix="forward(x) must return features [batch, n]",
            )  # fmt: skip
        self.out = features.shape[1]

    def forward(self, obs: Tree) -> Tensor:
        leaves = ordered_leaves(self.spec, obs)
        ready = [prepare(x) for prepare, x in zip(self.inputs, leaves, strict=True)]
        features: Tensor = self.body(tree_unflatten(self.spec, ready))
        return features


def _made(cfg: Custom, shape: Tree) -> nn.Module:
    """The user's class; options it does not take are refused before it runs."""
    cls = _CUSTOM[cfg.name]
    try:
        takes = inspect.signature(cls)
    except ValueError:  # written in C, for example: only the call can tell
        return cls(shape, **cfg.options)
    try:
        takes.bind(shape, **cfg.options)
    except TypeError as error:
        known = list(takes.parameters)[1:]
        typo = next((nearest(key, known) for key in cfg.options if key not in known), "")
        raise LudusError(
            "E103",
            f"torso {cfg.name!r} cannot be made: {error}{typo}",
            where="algo.torso.options",
            why=f"{cls.__name__} takes: {', '.join(known) or 'no options'}",
            fix="give the options the class has; it is called as cls(shape, **options)",
        ) from error
    return cls(shape, **cfg.options)


def _input(leaf: ArraySpec, order: Order | None) -> ImageInput | VectorInput:
    return ImageInput(leaf, order) if leaf.is_image else VectorInput(leaf)
