"""SIGKILL of a run's main process: seconds until nothing of the run is left. Called by
`actor_faults.py --orphans`.

An ordinary `ludus train` with actors and a live evaluator. Its processes are found by a variable in
their environment, which whatever they start has too. In every second repeat one actor is stopped
with SIGSTOP first: it cannot see its parent go.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

MARK = "BENCHED_FAMILY"  # not LUDUS_...: those are settings
SHARED = Path("/dev/shm")
LONGEST = 200.0  # seconds that are waited for
WORDS = {
    "processes": ("dqn", "CartPole-v1", "fleet=processes", "env.num=2"),
    "hogwild": ("a3c", "CartPole-v1"),
}


def orphans(fleet: str, actors: int, repeats: int) -> dict[str, Any]:
    rounds = [_round(fleet, actors, stopped=number % 2 == 1) for number in range(repeats)]
    return {
        "kind": "orphans", "fleet": fleet, "actors": actors, "repeats": repeats,
        **{name: [r[name] for r in rounds] for name in rounds[0]},
    }  # fmt: skip


def _round(fleet: str, actors: int, *, stopped: bool) -> dict[str, Any]:
    mark, before = uuid.uuid4().hex, _names()
    with tempfile.TemporaryDirectory(prefix="ludus-") as folder:
        words = [
            *WORDS[fleet], f"actors={actors}", "steps=1G", "eval.live=true", "log.every=1000",
            "--quiet", "--runs-dir", folder, "--run", "it",
        ]  # fmt: skip
        with (Path(folder) / "said").open("w") as said:
            parent = subprocess.Popen(
                [sys.executable, "-m", "ludus", "train", *words],
                env={**os.environ, MARK: mark}, stdout=said, stderr=said,
            )  # fmt: skip
        try:
            metrics = Path(folder) / "it" / "metrics.jsonl"
            trains = _wait(lambda: metrics.exists() and metrics.stat().st_size > 0, parent)
            if not trains:
                raise SystemExit(f"it did not train\n{(Path(folder) / 'said').read_text()}")
            found = family(mark)
            if stopped:
                os.kill(_actor(found), signal.SIGSTOP)
        finally:
            parent.kill()
            killed = time.monotonic()
            parent.wait()
        gone = _wait(lambda: not family(mark))
        processes_gone = time.monotonic() - killed
        clean = _wait(lambda: not left_shared(before))
        row = {
            "one_stopped": stopped, "processes": len(found),
            "seconds_until_gone": round(processes_gone, 2) if gone else None,
            "seconds_until_shared_clean": round(time.monotonic() - killed, 2) if clean else None,
            "processes_left": len(family(mark)), "shared_left": len(left_shared(before)),
        }  # fmt: skip
        for pid in family(mark):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    return row


def family(mark: str) -> list[int]:
    """Processes with this mark in their environment; one that has ended shows none."""
    found, entry = [], f"{MARK}={mark}".encode()
    for pid in psutil.pids():
        with suppress(OSError):
            if entry in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                found.append(pid)
    return found


def left_shared(before: set[str]) -> set[str]:
    """New names in /dev/shm that no process has mapped: other runs on this machine make theirs."""
    new, used = _names() - before, set()
    for pid in psutil.pids() if new else ():
        with suppress(OSError):
            lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
            used |= {Path(line.split()[5]).name for line in lines if f"{SHARED}/" in line}
    return new - used


def _names() -> set[str]:
    return set(os.listdir(SHARED)) if SHARED.exists() else set()


def _actor(pids: list[int]) -> int:
    names = ("ludus-actor", "ludus-worker")
    return next(pid for pid in pids if psutil.Process(pid).name().startswith(names))


def _wait(done: Callable[[], Any], process: subprocess.Popen[Any] | None = None) -> bool:
    """Until it is so, unless that takes too long or the process that is to do it has ended."""
    deadline = time.monotonic() + LONGEST
    while not (is_so := bool(done())) and time.monotonic() < deadline:
        if process is not None and process.poll() is not None:
            break
        time.sleep(0.02)
    return is_so
