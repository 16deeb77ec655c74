"""A net that passes gradients to its inputs but not to its own weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn
from torch.func import functional_call


def frozen(net: nn.Module) -> Callable[..., Any]:
    """Call `net` with its present parameters detached; buffers and training mode are its own."""

    def call(*args: Any, **kwargs: Any) -> Any:
        parameters = {name: p.detach() for name, p in net.named_parameters()}
        return functional_call(net, parameters, args, kwargs)

    return call
