"""The replay ratio: when the learner may draw. It counts; it holds no data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_COUNTERS = ("steps_inserted", "samples_drawn", "missing")


@dataclass
class ReplayRatio:
    """One update is allowed when `warmup` steps are in; from then on the samples drawn follow the
    steps inserted:

        ready  <=>  steps_inserted >= warmup  and
                   samples_drawn <= ratio * (steps_inserted - warmup)

    So the first batch is drawn at exactly `warmup` steps and each further one when the steps since
    then have paid for all batches before it. Only rows with mask=True count, on both sides.
    """

    ratio: float
    warmup: int = 0
    steps_inserted: int = 0
    samples_drawn: int = 0  # transitions, or trained steps of sequences and unrolls
    missing: int = 0  # rows to collect again before learning goes on, after a resume without them

    def insert(self, steps: int) -> None:
        """Rows of a refill stand for rows that were counted already."""
        again = min(self.missing, steps)
        self.missing -= again
        self.steps_inserted += steps - again

    def ready(self) -> bool:
        # The slack forgives rounding in ratios such as 0.1; it is far below one sample.
        paid = self.ratio * (self.steps_inserted - self.warmup) + 1e-6
        warm = self.steps_inserted >= self.warmup
        return not self.missing and warm and self.samples_drawn <= paid

    def state(self) -> dict[str, int]:
        return {name: getattr(self, name) for name in _COUNTERS}

    def load(self, numbers: Mapping[str, Any]) -> None:
        for name in _COUNTERS:
            setattr(self, name, int(numbers[name]))
