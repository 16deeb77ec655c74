"""Run the cells of a matrix, several at a time, each in its own process (cell.py).

One thread polls the processes. If a cell fails, the others continue; a signal asks all runs to save
and stop, a second one kills them.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from ludus import errors
from ludus.bench.matrix import Cell, Matrix
from ludus.bench.progress import Quiet
from ludus.process.signals import STOP_SIGNALS, handled_signals
from ludus.track.atomic_files import make_folder, open_write, read_tail
from ludus.track.run_dir.lock import holder
from ludus.track.run_dir.rundir import is_run

POLL_SECONDS = 0.1
STOP_SECONDS = 600.0  # to save a checkpoint: a large replay takes minutes
_LEFT = (*(128 + number for number in STOP_SIGNALS), *(-number for number in STOP_SIGNALS))
_ERROR = re.compile(r"^error\b.*(?:\n  .*)*", re.MULTILINE)


@dataclass
class Job:
    cell: Cell
    process: subprocess.Popen[bytes]
    output: Path


@dataclass(frozen=True)
class Share:
    """The cores and the GPU that one of several runs may use; empty: all."""

    cores: str = ""  # 0,1,2
    device: str = ""  # for CUDA_VISIBLE_DEVICES

    def environ(self) -> dict[str, str]:
        threads = str(self.cores.count(",") + 1) if self.cores else ""
        own = {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
        own["CUDA_VISIBLE_DEVICES"] = self.device
        return {**os.environ, **{name: value for name, value in own.items() if value}}


class Runner:
    """`run` returns the exit code of the bench."""

    def __init__(self, matrix: Matrix, shares: Sequence[Share], listener: Quiet) -> None:
        self.matrix, self.shares, self.listener = matrix, list(shares), listener
        self.jobs: list[Job | None] = [None] * len(self.shares)
        self.stopping = 0  # the signal that was received
        self.deadline = 0.0

    def run(self, cells: Sequence[Cell]) -> int:
        """Run those of `cells` that are not finished."""
        for cell in self.matrix.cells:
            self.matrix.refresh(cell)
        left = [cell for cell in cells if cell.state != "finished"]
        self.matrix.save()
        before = self._listen()
        try:
            self._go(deque(left))
        finally:
            self._leave()
            for number, handler in before.items():
                signal.signal(number, handler)
            self.matrix.save()
        if self.stopping:
            return 128 + self.stopping
        return errors.RUN_FAILED if any(c.state != "finished" for c in cells) else errors.OK

    def _go(self, left: deque[Cell]) -> None:
        waited_for: set[str] = set()
        while (left and not self.stopping) or any(self.jobs):
            for number, job in enumerate(self.jobs):
                if job is None and left and not self.stopping:
                    self._next(number, left, waited_for)
                elif job is not None and job.process.poll() is not None:
                    self.jobs[number] = None
                    self._ended(job)
            if self.stopping and time.monotonic() > self.deadline:
                self._kill()
            self.listener.update([job.cell for job in self.jobs if job is not None])
            time.sleep(POLL_SECONDS)

    def _next(self, number: int, left: deque[Cell], waited_for: set[str]) -> None:
        """Start a cell whose run is not locked. Wait for one that another process still holds, such
        as one that saves after its bench was killed."""
        for _ in range(len(left)):
            cell = left.popleft()
            held = holder(self.matrix.folder / cell.run)
            if held is None:
                if not self.matrix.refresh(cell):  # it may have finished meanwhile
                    self.jobs[number] = self._start(cell, self.shares[number])
                return
            left.append(cell)
            if cell.run not in waited_for:
                waited_for.add(cell.run)
                self.listener.say(f"{cell.run} is still running elsewhere ({held}): waiting for it")

    def _start(self, cell: Cell, share: Share) -> Job:
        own = [str(os.getpid()), share.cores]
        words = [*self.matrix.words(cell), *self._leftover(cell)]
        folder = make_folder(self.matrix.folder / "output")
        output = folder / f"{cell.run}.txt"
        with open_write(output) as out:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "ludus.bench.cell", *own, *words],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env=share.environ(),
                start_new_session=True,  # Ctrl-C goes to this process, which signals them
            )
        cell.state, cell.attempts, cell.error = "running", cell.attempts + 1, None
        self.matrix.save()
        self.listener.started(cell)
        return Job(cell, process, output)

    def _leftover(self, cell: Cell) -> list[str]:
        """Arguments to replace a directory that a killed process left incomplete."""
        place = self.matrix.run_dir(cell)
        if not place.path.exists() or place.config.is_file():
            return []
        with suppress(OSError):  # empty ones
            place.checkpoints.rmdir()
        with suppress(OSError):
            place.path.rmdir()
        return ["--fresh"] if is_run(place.path) or place.path.exists() else []

    def _ended(self, job: Job) -> None:
        cell, code = job.cell, job.process.returncode
        if code in _LEFT or (self.stopping and code < 0):
            cell.state = "stopped"
            self.matrix.refresh(cell)
        elif code != 0 or not self.matrix.refresh(cell):
            cell.state, cell.error = "failed", _reason(job.output, code)
        self.matrix.save()
        self.listener.ended(cell)

    def _listen(self) -> dict[signal.Signals, Any]:
        if threading.current_thread() is not threading.main_thread():
            return {}
        return {s: signal.signal(s, self._heard) for s in handled_signals()}

    def _heard(self, number: int, frame: FrameType | None) -> None:
        if self.stopping:
            if number == signal.SIGINT:  # other signals may arrive twice
                self.deadline = 0.0
            return
        self.stopping, self.deadline = number, time.monotonic() + STOP_SECONDS
        alive = sum(job is not None for job in self.jobs)
        self.listener.say(f"asked to stop: {alive} run(s) save and stop (Ctrl-C: at once)")
        self._ask()

    def _ask(self) -> None:
        for job in self.jobs:
            if job is not None:
                with suppress(OSError):
                    job.process.terminate()

    def _leave(self) -> None:
        """Leave no run behind, however this ends; active ones may save first."""
        self._ask()
        until = time.monotonic() + STOP_SECONDS
        while time.monotonic() < until and self._alive():
            time.sleep(POLL_SECONDS)
        self._kill()

    def _kill(self) -> None:
        """Kill the runs and the processes of their environments and actors."""
        for process in self._alive():
            with suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def _alive(self) -> list[subprocess.Popen[bytes]]:
        return [job.process for job in self.jobs if job and job.process.poll() is None]


def _reason(output: Path, code: int) -> str:
    """The error that a run printed, else its last line or exit code."""
    text = read_tail(output)
    found = _ERROR.findall(text)
    if found:
        return str(found[-1]).strip()
    if code < 0:
        return f"killed by {signal.Signals(-code).name}" + (
            "; the machine may be out of memory: fewer --jobs" if code == -signal.SIGKILL else ""
        )
    last = text.strip().splitlines()[-1:]
    return last[0] if last else f"ended with exit code {code}"
