"""Time that passes while this process runs.

A whole group of processes may be stopped for hours: Ctrl-Z, a job that is suspended, a laptop that
sleeps. When it goes on nobody in it is late.
"""

from __future__ import annotations

import time


class Awake:
    """A clock in seconds, to be read again and again: from one reading to the next it goes on by
    `most` at most, so that a stop costs no more than that."""

    def __init__(self, most: float) -> None:
        self.most, self.time = most, 0.0
        self._read = time.monotonic()

    def read(self) -> float:
        now = time.monotonic()
        self.time += min(now - self._read, self.most)
        self._read = now
        return self.time
