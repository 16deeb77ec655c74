"""run.compile: torsos through torch.compile, and the reason where that fails."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn

from ludus.compute.gpu_memory import is_out_of_memory


class Compiled:
    """The torsos that were compiled, in all nets of a run. Compiling happens in their first calls:
    if one fails (no C compiler, a bug of the compiler), all of them run uncompiled.
    """

    def __init__(self) -> None:
        self.modules: list[nn.Module] = []
        self.mode = ""  # for the status: "2 torsos", those of the learner, or "not: " and why

    def take(self, modules: Sequence[nn.Module]) -> None:
        if self.mode.startswith("not: "):
            return  # it failed in another net
        if not modules:
            self.disable("no residual torso")
            return
        self.mode = self.mode or f"{len(modules)} torso{'s' if len(modules) > 1 else ''}"
        for module in modules:
            module.compile(dynamic=False)
            self._guard(module)

    def disable(self, why: str) -> None:
        self.mode = f"not: {why}"
        for module in self.modules:
            module._compiled_call_impl = None
        self.modules.clear()

    def _guard(self, module: nn.Module) -> None:
        compiled: Any = module._compiled_call_impl

        def guarded(*inputs: Any, **named: Any) -> Any:
            try:
                return compiled(*inputs, **named)
            except Exception as error:
                if is_out_of_memory(error):
                    raise
                # torch wraps the error, and names its own frames first.
                first = getattr(error, "inner_exception", None) or error
                said = (str(first).strip() or "?").splitlines()[0]
                self.disable(f"{type(first).__name__}: {said}")
            return module(*inputs, **named)  # an error of the torso itself is raised here

        module._compiled_call_impl = guarded
        self.modules.append(module)
