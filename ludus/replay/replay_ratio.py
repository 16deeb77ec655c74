"""When the learner may draw: the replay ratio. It counts; it holds no data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Pace:
    """One update is allowed when `warmup` steps are in; from then on the samples drawn follow the
    steps inserted:

        ready  <=>  inserted >= warmup  and  drawn <= ratio * (inserted - warmup)

    So the first batch is drawn at exactly `warmup` steps and each further one when the steps since
    then have paid for all batches before it. Only rows with mask=True count, on both sides.
    """

    ratio: float
    warmup: int = 0
    inserted: int = 0  # steps
    drawn: int = 0  # samples: transitions, or trained steps of sequences and unrolls
    missing: int = 0  # rows to collect again before learning goes on, after a resume without them

    def insert(self, steps: int) -> None:
        """Rows of a refill stand for rows that were counted already."""
        again = min(self.missing, steps)
        self.missing -= again
        self.inserted += steps - again

    def ready(self) -> bool:
        # The slack forgives rounding in ratios such as 0.1; it is far below one sample.
        paid = self.ratio * (self.inserted - self.warmup) + 1e-6
        return not self.missing and self.inserted >= self.warmup and self.drawn <= paid
