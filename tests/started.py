"""Processes that tests start: whether they are gone, and that none is left behind."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import psutil

_started: list[subprocess.Popen[Any]] = []


def kept(process: subprocess.Popen[Any]) -> subprocess.Popen[Any]:
    """Ended after the test if it still runs then: an assertion may fail before the test's own kill,
    and a run without end would train on for hours."""
    _started.append(process)
    return process


def end_started() -> None:
    """See `tests/conftest.py`."""
    while _started:
        process = _started.pop()
        if process.poll() is None:
            for one in psutil.Process(process.pid).children(recursive=True):
                with suppress(psutil.NoSuchProcess):
                    one.kill()
            process.kill()
        process.wait()
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()
    for child in multiprocessing.active_children():  # of a fleet that was not closed
        child.kill()
        child.join()


def gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def survivors(pids: Iterable[int], seconds: float = 60.0) -> list[int]:
    """Who is still there after so long; they are killed. After a SIGKILL of the parent the bar is
    5 s, on a machine with nothing else to do. Here a process that is not told never goes, and a
    busy machine may need longer for one that is."""
    deadline = time.monotonic() + seconds
    left = list(pids)
    while (left := [p for p in left if not gone(p)]) and time.monotonic() < deadline:
        time.sleep(0.05)
    for pid in left:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return left
