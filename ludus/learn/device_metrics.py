"""Sums of metrics and counts of refused updates, kept on the learner's device.

The host waits for no number before it reads it, so an update can be captured in a CUDA graph.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor


class DeviceMetrics:
    """Written in place by every update; read, and emptied, when a line is logged."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.sums: dict[str, Tensor] = {}
        self.applied = self._zero()  # updates in the sums
        self.bad = self._zero()  # updates refused since the beginning
        self.bad_in_a_row = self._zero()
        self.longest = self._zero()  # the most that were ever refused in a row
        self.refused = torch.zeros((), device=device)  # of the newest update: 1 where refused
        self._counts = torch.zeros(2, dtype=torch.float64)
        if device.type == "cuda":
            self._counts = self._counts.pin_memory()
        self._event: torch.cuda.Event | None = None
        self._pending = False  # counts were sent and not read yet
        self._seen: dict[str, Tensor] = {}  # the sums when `newest` was last called

    def _zero(self) -> Tensor:
        return torch.zeros((), dtype=torch.float64, device=self.device)

    def check_finite(self, *numbers: Tensor) -> Tensor:
        """1 if any of the numbers is not finite, else 0; counted."""
        bad = ~torch.isfinite(torch.stack([n.detach().float() for n in numbers]).sum())
        self.refused.copy_(bad)
        self.bad.add_(self.refused)
        self.bad_in_a_row.add_(1).mul_(self.refused)
        torch.maximum(self.longest, self.bad_in_a_row, out=self.longest)
        return self.refused

    def add(self, metrics: Mapping[str, Tensor]) -> None:
        """Add to the sums, except those of a refused update."""
        self.applied.add_(1 - self.refused)
        for name, value in metrics.items():
            if name not in self.sums:
                self.sums[name] = self._zero()
            self.sums[name].add_(torch.where(self.refused > 0, 0.0, value.detach().double()))

    def take(self) -> dict[str, float]:
        """Means over the updates since the last call."""
        if not self.sums:
            return {}
        *sums, count = torch.stack([*self.sums.values(), self.applied]).tolist()
        for tensor in (*self.sums.values(), self.applied):
            tensor.zero_()
        self._seen = {}
        if not count:
            return {}
        return {name: total / count for name, total in zip(self.sums, sums, strict=True)}

    def newest(self) -> dict[str, Tensor]:
        """The metrics of the newest update, if this is called after each one; 0 if refused."""
        seen, self._seen = self._seen, {k: v.clone() for k, v in self.sums.items()}
        return {k: v - seen[k] if k in seen else v for k, v in self._seen.items()}

    def send_counts(self) -> None:
        """Copy the counts of refused updates to the host, where `read_counts` finds them later.

        One copy at a time: on a device that is always late, the newest would never be complete.
        """
        if self._pending:
            return
        self._pending = True
        self._counts.copy_(torch.stack((self.bad, self.longest)), non_blocking=True)
        self._event = self._mark()

    def _mark(self) -> torch.cuda.Event | None:
        if self.device.type != "cuda":
            return None
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record()
        return event

    def read_counts(self, *, wait: bool = False) -> tuple[int, int] | None:
        """(refused, the most in a row) of the newest copy; None while it is under way."""
        if self._event is not None and wait:
            self._event.synchronize()
        elif self._event is not None and not self._event.query():  # type: ignore[no-untyped-call]
            return None
        self._pending = False
        return int(self._counts[0]), int(self._counts[1])

    def changing(self) -> list[Tensor]:
        """Everything that an update writes."""
        counts = (self.applied, self.bad, self.bad_in_a_row, self.longest, self.refused)
        return [*self.sums.values(), *counts]
