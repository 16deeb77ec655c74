"""Background work yields the CPU: it rests longer than it works while no core is idle.

A low priority is no help: with these rests it starves, and without them it is not enough. Two
threads that share one physical core slow each other whatever their priorities, and emulators that
wait for the slowest of their round wait for the slowed one.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress

import psutil

from ludus.process.limits import available_cores

REST = 5.0  # seconds of rest for each second of work
LONGEST = 60.0  # seconds of one rest: what looks like so much work was more likely a stop
IDLE = 0.25  # cores: other processes that use less are idle, on the smallest machine too
LOOK = 2.0  # seconds between looks at the machine


def give_way() -> None:
    """A thread that wakes up waits for a core instead of taking one from the thread that has it,
    which may be an emulator in its round. Unlike a low priority it takes nothing from our share."""
    if hasattr(os, "SCHED_BATCH"):  # Linux
        with suppress(OSError):  # a sandbox may forbid it
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def crowded(busy: float, own: float) -> bool:
    """Whether the others (`busy` cores less our `own`) leave no physical core to us alone."""
    logical = psutil.cpu_count() or 1
    if available_cores() < logical:  # how busy those of our share are is not known
        return True
    physical = psutil.cpu_count(logical=False) or logical
    if physical == logical:  # a virtual machine seldom tells which of its cores share a real one
        physical = -(-logical // 2)
    return busy - own > max(physical - 1, IDLE)


def own_seconds() -> float:
    """Processor time of this process."""
    spent = os.times()
    return spent.user + spent.system


def family_seconds() -> float:
    """And of the processes it has started, those that are over included."""
    total, me = 0.0, psutil.Process()
    for process in (me, *me.children(recursive=True)):
        with suppress(psutil.Error):  # it ended meanwhile
            total += sum(process.cpu_times()[:4])  # user, system, and both of ended children
    return total


class CpuYielder:
    """Call `pause` between pieces of work.

    Work is measured by `clock`: the processor time of this process, unless children work for it. (A
    wall clock would count the wait for a core as work. With children there is no better one, and an
    hour for which all of us were stopped, by Ctrl-Z or with our container, would cost five more:
    hence `LONGEST`.) `spent` is our own processor time when we look at the machine; the rest is
    used by others.
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
        psutil.cpu_percent()  # counts from the call before
        self._looked, self._used = time.monotonic(), self._spent()
        self._resumed = clock()

    def begin(self) -> None:
        """Work begins now: the time before, such as a wait for it, does not count."""
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
