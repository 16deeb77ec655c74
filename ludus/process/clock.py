"""Time that passes while this process runs.

A whole group of processes may be stopped for hours: Ctrl-Z, a job that is suspended, a laptop that
sleeps. When it goes on nobody in it is late.
"""

from __future__ import annotations

import time


class Awake:
    """A clock in seconds, to be read again and again: from one reading to the next it goes on by
    what this process has worked, and by `most` at most if that is less. So a stop costs no more
    than `most`, and hours of work are hours."""

    def __init__(self, most: float) -> None:
        self.most, self.time = most, 0.0
        self._read, self._worked = time.monotonic(), time.process_time()

    def read(self) -> float:
        now, worked = time.monotonic(), time.process_time()
        self.time += min(now - self._read, max(worked - self._worked, self.most))
        self._read, self._worked = now, worked
        return self.time
