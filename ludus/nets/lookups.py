"""Parts and weights of modules without nn.Module's slow look-up. On a small network a failed
look-up in the object, and the one in its modules after it, takes as long as a product."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional


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
