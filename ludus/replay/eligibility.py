"""Which rows may be drawn: those whose window of rows is complete.

It sees flags only, never data, and works on the host.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

Flags = np.ndarray[Any, Any]


class Tail(NamedTuple):
    """The newest rows of a source whose windows may still be open, [<= span - 1, B]."""

    stop: Flags  # the row ends its episode or its stream
    candidate: Flags  # an item may start here
    settled: Flags  # decided already


class Items:
    """An item at row t reads rows t .. t+span-1, or up to the first `stop` row among them.

    It may be drawn once that window and the observation after it are written, and if the window
    has at least `least` rows.
    """

    def __init__(self, span: int, least: int = 1) -> None:
        self.span, self.least = span, least
        self.tails: dict[int, Tail] = {}

    def extend(self, source: int, stop: Flags, candidate: Flags) -> tuple[int, Flags]:
        """Add T rows. Returns how many older rows are looked at again, k, and for those and the
        new ones whether an item became drawable just now, [k + T, B]."""
        if self.span == 1:
            return 0, candidate
        tail = self.tails.get(source)
        settled = np.zeros_like(stop)
        k = 0
        if tail is not None:
            k = len(tail.stop)
            stop = np.concatenate((tail.stop, stop))
            candidate = np.concatenate((tail.candidate, candidate))
            settled = np.concatenate((tail.settled, settled))
        rows = len(stop)
        at = np.arange(rows)[:, None]
        ends = np.where(stop, at, rows)[::-1]
        end = np.minimum.accumulate(ends, 0)[::-1]  # the first stop at or after each row
        done = (end < rows) | (at + self.span <= rows)
        fresh = done & ~settled & candidate
        if self.least > 1:
            fresh &= np.minimum(end + 1 - at, self.span) >= self.least
        keep = max(0, rows - self.span + 1)
        self.tails[source] = Tail(stop[keep:], candidate[keep:].copy(), done[keep:])
        return k, fresh

    def cut(self, source: int, cut: Flags) -> None:
        """The newest row turned out to be the last of its stream where `cut` [B]."""
        if source in self.tails and len(self.tails[source].stop):
            self.tails[source].stop[-1] |= cut
