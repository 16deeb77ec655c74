"""Schedules: constants and ramps over a run, written as `1e-3` or `1->0.05@10k`; their values."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Annotated, Any

import torch
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field
from torch import Tensor

from ludus.units import parse_count, parse_number

if TYPE_CHECKING:
    from ludus.plan.plan import Plan

_RAMP = re.compile(
    r"^\s*(?P<a>[^->@^\s]+(?:e-\d+)?)\s*->\s*(?P<b>[^@^\s]+)\s*(?:@(?P<over>[^^\s]+))?\s*(?:\^(?P<power>\S+))?$"
)


class Schedule(BaseModel):
    """start -> end over `over` agent steps (or a fraction of the run), then constant.

    value(t) = end + (start - end) * (1 - t/over)^power; power 1 is linear.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    start: float
    end: float
    over: int | None = Field(default=None, gt=0)  # agent steps; None without a fraction: constant
    fraction: float | None = Field(default=None, gt=0, le=1)  # of the run's steps
    power: float = Field(default=1.0, gt=0)

    def at(self, step: int, horizon: int) -> float:
        """Return the value at an agent step of a run planned for `horizon` steps."""
        span = self.over if self.over is not None else (self.fraction or 0) * horizon
        if span <= 0:
            return self.end if self.over is not None or self.fraction is not None else self.start
        left = max(0.0, 1.0 - step / span)
        return float(self.end + (self.start - self.end) * left**self.power)

    def zero_from(self, horizon: int) -> int | None:
        """Return the step from which the value stays zero, or None if it does not reach zero."""
        if self.end != 0 or (self.over is None and self.fraction is None):
            return None
        return math.ceil(self.over if self.over is not None else (self.fraction or 0) * horizon)

    def __str__(self) -> str:
        if self.over is None and self.fraction is None:
            return f"{self.start:g}"
        over = f"{self.over}" if self.over is not None else f"{100 * (self.fraction or 0):g}%"
        return f"{self.start:g}->{self.end:g}@{over}" + (
            f"^{self.power:g}" if self.power != 1 else ""
        )


def _parse(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError("a schedule is a number or a ramp such as 1->0.05@10k, not a boolean")
    if isinstance(value, int | float):
        number = parse_number(value)
        return {"start": number, "end": number}
    if isinstance(value, str):
        if "->" not in value:
            number = parse_number(value)
            return {"start": number, "end": number}
        hit = _RAMP.match(value)
        if hit is None:
            raise ValueError(
                f"{value!r} is not a schedule; write 0.1, 1->0.05@10k, 1e-3->0@50% or 1->0^2"
            )
        over = hit["over"]
        ramp: dict[str, Any] = {"start": parse_number(hit["a"]), "end": parse_number(hit["b"])}
        if over is None:
            ramp["fraction"] = 1.0
        elif over.endswith("%"):
            ramp["fraction"] = float(over[:-1]) / 100
            if not 0 < ramp["fraction"] <= 1:
                raise ValueError(f"@{over}: a ramp takes between 0 and 100 % of the run")
        else:
            ramp["over"] = parse_count(over)
        if hit["power"]:
            ramp["power"] = float(hit["power"])
        return ramp
    return value


def _within(low: float, high: float) -> AfterValidator:
    def check(schedule: Schedule) -> Schedule:
        for value in (schedule.start, schedule.end):
            if not low <= value <= high:
                limit = f"between {low:g} and {high:g}" if high < math.inf else f"{low:g} or more"
                raise ValueError(f"{value:g} is out of range: it must be {limit}")
        return schedule

    return AfterValidator(check)


# Types of config fields: any number, a number >= 0, a number from 0 to 1.
Ramp = Annotated[Schedule, BeforeValidator(_parse)]
Rate = Annotated[Schedule, BeforeValidator(_parse), _within(0, math.inf)]
Share = Annotated[Schedule, BeforeValidator(_parse), _within(0, 1)]


def ramp(text: str | float) -> Schedule:
    """Parse the short form of a schedule, for defaults in code."""
    return Schedule.model_validate(_parse(text))


class Values:
    """ctx.values: every schedule of the plan, and `warming` (1 until the warm-up is over), as 0-d
    tensors that are updated in place."""

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
