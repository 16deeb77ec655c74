"""The parts into which a sample is cut for its updates: rows, or whole environments in time."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ludus.contract import Plan
from ludus.types import map_fields, tree_map


class Split:
    """What `prepare` returned, ready to be cut. Leaves are [T or T+1, B, ...]; those of a field
    `state` are [B, ...]."""

    def __init__(self, plan: Plan, data: Any) -> None:
        self.envs, self.count = plan.minibatch_over == "envs", self.size(plan, data)
        # [T,B,...] -> [T*B,...]
        self.data = data if self.envs else map_fields(lambda x: x.flatten(0, 1), data)

    @staticmethod
    def size(plan: Plan, data: Any) -> int:
        """The number of rows or environments to be divided among the minibatches."""
        mask: Tensor = data.mask
        return mask.shape[1] if plan.minibatch_over == "envs" else mask.numel()

    def part(self, items: Tensor) -> Any:
        """A minibatch of these rows [N, ...], or of these environments [T, b, ...]."""
        if not self.envs:
            return map_fields(lambda x: x[items], self.data)
        fields = zip(self.data._fields, self.data, strict=True)
        return type(self.data)(*(self._of_envs(name, field, items) for name, field in fields))

    @staticmethod
    def _of_envs(name: str, field: Any, items: Tensor) -> Any:
        axis = 0 if name == "state" else 1
        return None if field is None else tree_map(lambda x: x.index_select(axis, items), field)
