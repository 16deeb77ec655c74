"""Yield the CPU in background work: sleep longer than working while no core is idle.

A low priority does not help. Two threads on one physical core slow each other down at any
priority, and a vector environment waits for its slowest emulator. A low priority in addition to
the sleeps would starve the background work.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress

import psutil

from ludus.process.limits import available_cores

REST = 5.0  # seconds of sleep per second of work
LONGEST = 60.0  # longest sleep in seconds: longer work was probably a stopped process
IDLE = 0.25  # cores: other processes that use less count as idle
LOOK = 2.0  # seconds between measurements of the machine


def use_batch_scheduling() -> None:
    """Use SCHED_BATCH: a thread that wakes up waits for a free core instead of preempting another
    thread, such as an emulator. Unlike a low priority, this keeps the thread's share of the CPU."""
    if hasattr(os, "SCHED_BATCH"):  # Linux
        with suppress(OSError):  # a sandbox may forbid it
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def crowded(busy: float, own: float) -> bool:
    """Whether other processes (`busy` cores minus our `own`) leave no physical core free."""
    logical = psutil.cpu_count() or 1
    if available_cores() < logical:  # the load of the cores that we may use is unknown
        return True
    physical = psutil.cpu_count(logical=False) or logical
    if physical == logical:  # virtual machines seldom report shared cores
        physical = -(-logical // 2)
    return busy - own > max(physical - 1, IDLE)


def own_seconds() -> float:
    """CPU time of this process."""
    spent = os.times()
    return spent.user + spent.system


def family_seconds() -> float:
    """CPU time of this process and of all its children, including those that have exited."""
    total, me = 0.0, psutil.Process()
    for process in (me, *me.children(recursive=True)):
        with suppress(psutil.Error):  # the process has exited
            total += sum(process.cpu_times()[:4])  # user, system, and both for exited children
    return total


class CpuYielder:
    """Call `pause` between pieces of work.

    `clock` measures the work: the CPU time of this process, or a wall clock if children do the
    work. A wall clock also counts the time while the process was stopped, so `LONGEST` limits each
    sleep. `spent` returns our own CPU time; the rest of the machine's load belongs to others.
    """

    def __init__(
        self,
        crowded: Callable[[float, float], bool] = crowded,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.process_time,
        spent: Callable[[], float] = own_seconds,
    ) -> None:
        self._crowded, self._sleep, self._clock, self._spent = crowded, sleep, clock, spent
        self.resting = False
        psutil.cpu_percent()  # starts the measurement
        self._looked, self._used = time.monotonic(), self._spent()
        self._resumed = clock()

    def begin(self) -> None:
        """Start measuring work now; earlier time, such as waiting, does not count."""
        self._resumed = self._clock()

    def pause(self) -> None:
        now = time.monotonic()
        if now - self._looked >= LOOK:
            self._look(now)
        if self.resting:
            self._sleep(min(REST * (self._clock() - self._resumed), LONGEST))
        self._resumed = self._clock()

    def _look(self, now: float) -> None:
        busy = psutil.cpu_percent() / 100 * (psutil.cpu_count() or 1)
        used = self._spent()
        own = (used - self._used) / (now - self._looked)
        self.resting = self._crowded(busy, own)
        self._looked, self._used = now, used
