"""The schedules of a plan as 0-d tensors that are updated in place."""

from __future__ import annotations

import torch
from torch import Tensor

from ludus.contract import Plan


class Values:
    """ctx.values: every schedule of the plan, and `warming` (1 until the warm-up is over)."""

    def __init__(self, plan: Plan, horizon: int, device: torch.device | str = "cpu") -> None:
        self.plan, self.horizon = plan, horizon
        self.tensors: dict[str, Tensor] = {
            name: torch.zeros((), device=device) for name in (*plan.schedules, "warming")
        }
        self.numbers: dict[str, float] = dict.fromkeys(self.tensors, 0.0)  # the same, on the host

    def at(self, step: int) -> dict[str, Tensor]:
        for name, schedule in self.plan.schedules.items():
            self._put(name, schedule.at(step, self.horizon))
        self._put("warming", float(step < self.plan.warmup))
        return self.tensors

    def _put(self, name: str, value: float) -> None:
        if self.numbers[name] != value:
            self.numbers[name] = value
            self.tensors[name].fill_(value)
