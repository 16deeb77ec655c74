"""A clock that does not count time while this process is stopped.

Ctrl-Z, a suspended job or a sleeping laptop stops a whole process group for hours. When the group
continues, none of its processes has missed a deadline.
"""

from __future__ import annotations

import time


class ActiveClock:
    """Count seconds between calls of `read`. Each reading adds the elapsed time, limited to the
    larger of `max_gap` and the CPU time used. A stop adds at most `max_gap`; work counts in full.
    """

    def __init__(self, max_gap: float) -> None:
        self.max_gap, self.time = max_gap, 0.0
        self._read_at, self._used = time.monotonic(), time.process_time()

    def read(self) -> float:
        now, used = time.monotonic(), time.process_time()
        self.time += min(now - self._read_at, max(used - self._used, self.max_gap))
        self._read_at, self._used = now, used
        return self.time
