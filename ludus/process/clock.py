"""A clock that stands still while this process is stopped.

A whole group of processes may be stopped for hours: Ctrl-Z, a suspended job, a sleeping laptop.
When it continues, no process in it is late.
"""

from __future__ import annotations

import time


class ActiveClock:
    """Seconds, to be read again and again. Between two readings it advances by the real time, but
    by no more than `max_gap` or the processor time used, whichever is longer. So a stop costs at
    most `max_gap`, and hours of work count as hours."""

    def __init__(self, max_gap: float) -> None:
        self.max_gap, self.time = max_gap, 0.0
        self._read_at, self._used = time.monotonic(), time.process_time()

    def read(self) -> float:
        now, used = time.monotonic(), time.process_time()
        self.time += min(now - self._read_at, max(used - self._used, self.max_gap))
        self._read_at, self._used = now, used
        return self.time
