"""Remove what killed processes left behind: half-written files of a run, and temporary folders."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

import psutil

from ludus.errors import LudusError
from ludus.process.fork_server import sweep_temporary
from ludus.track.checkpoint.writer import recover
from ludus.track.run_dir.lock import RunLock
from ludus.track.run_dir.rundir import RunDir

_HALF = re.compile(r"\..+\.([0-9]{1,9})\.tmp")  # files.half_written: of a process, by its number


def sweep(run: RunDir) -> list[Path]:
    """Also in earlier runs of that name, which --fresh keeps and nobody resumes. Call it with the
    run's lock held. Returns what was removed."""
    removed = sweep_temporary()
    removed += _half_written(run.path)
    for earlier in run.path.parent.glob(f"{run.name}.*"):
        if not earlier.suffix[1:].isdigit() or earlier.is_symlink() or not earlier.is_dir():
            continue
        with suppress(LudusError, OSError), RunLock(earlier):  # in use, or not ours to write
            removed += _half_written(earlier)
            folder = RunDir(earlier).checkpoints
            removed += [folder / name for name in recover(folder)]
    return removed


def _half_written(place: Path) -> list[Path]:
    """Of processes that are gone. A living one may be writing a report of the run just now."""
    removed = []
    for path in (*place.glob(".*.tmp"), *place.glob("*/.*.tmp")):
        hit = _HALF.fullmatch(path.name)
        if hit is None or path.parent.is_symlink() or not path.is_file() or path.is_symlink():
            continue
        if not psutil.pid_exists(int(hit[1])):
            with suppress(OSError):
                path.unlink()
                removed.append(path)
    return removed
