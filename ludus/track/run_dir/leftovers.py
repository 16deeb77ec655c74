"""Remove half-written files and temporary folders of killed processes."""

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

_HALF = re.compile(r"\..+\.([0-9]{1,9})\.tmp")  # atomic_files.half_written; the pid


def sweep(run: RunDir) -> list[Path]:
    """Clean up a run and the earlier runs of its name, which --fresh keeps. The caller holds the
    run's lock. Return the removed paths."""
    removed = sweep_temporary()
    removed += _half_written(run.path)
    for earlier in run.path.parent.glob(f"{run.name}.*"):
        if not earlier.suffix[1:].isdigit() or earlier.is_symlink() or not earlier.is_dir():
            continue
        with suppress(LudusError, OSError), RunLock(earlier):  # in use or not writable
            removed += _half_written(earlier)
            folder = RunDir(earlier).checkpoints
            removed += [folder / name for name in recover(folder)]
    return removed


def _half_written(place: Path) -> list[Path]:
    """Return half-written files of dead processes. A live one may be writing a report."""
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
