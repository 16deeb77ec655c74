"""Clean up before a run starts: archive files that it would overwrite, which are those of a session
that ended before its first checkpoint and those written after the checkpoint that it goes back to,
and remove half-written files and temporary folders of killed processes."""

from __future__ import annotations

import re
import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from ludus.errors import LudusError
from ludus.process.fork_server import sweep_temporary
from ludus.track.atomic_files import first_numbers, read_json, writing
from ludus.track.checkpoint import format as layout
from ludus.track.checkpoint.writer import recover
from ludus.track.metrics.writer import read_metrics
from ludus.track.run_dir.lock import RunLock
from ludus.track.run_dir.rundir import RunDir, numbered
from ludus.track.run_dir.status import LIVE

FOLDER, ABANDONED = "before-", "abandoned-"  # a number follows
_HALF = re.compile(r"\..+\.([0-9]{1,9})\.tmp")  # atomic_files.half_written; the pid
_COPIED = ("config.yaml", "config.user.yaml")  # the next session needs them too


def set_aside(run: RunDir) -> str:
    """Move files to RUN/before-1, before-2, ... and return a warning, or "" if no step was done.
    The caller holds the run's lock."""
    step = _reached(run)
    if not step:
        return ""
    killed = "was killed" if read_json(run.status).get("state") in LIVE else "ended"
    place = numbered(run.path / FOLDER)
    entries = [e for e in run.path.iterdir() if e != run.lock and not e.name.startswith(FOLDER)]
    with writing("cannot set earlier files aside", run.path, "--fresh  keeps the old run"):
        place.mkdir()
        for entry in entries:
            if entry.name in _COPIED:
                shutil.copy2(entry, place / entry.name, follow_symlinks=False)
            else:
                entry.rename(place / entry.name)
    return (
        f"the run {killed} at step {step} before its first checkpoint: it begins again at step 0; "
        f"its old files are in {place}"
    )


@dataclass(frozen=True)
class Abandoned:
    path: Path  # it has a folder checkpoints/ for the moved ones
    step: int  # of the newest checkpoint


def abandon(run: RunDir, step: int) -> Abandoned | None:
    """Copy the run's files to RUN/abandoned-1, ... before it goes back to the checkpoint of `step`.
    Return None if that is the newest one. The caller holds the run's lock."""
    newest = max(layout.checkpoint_paths(run.checkpoints), default=step)
    if newest <= step:
        return None
    place = numbered(run.path / ABANDONED)
    files = (run.config, run.manifest, run.metrics, run.episodes, run.evals, run.events, run.log)
    with writing("cannot keep what comes after the checkpoint", run.path, "free some space"):
        (place / "checkpoints").mkdir(parents=True)
        for file in files:
            if file.is_file():
                shutil.copy2(file, place / file.name, follow_symlinks=False)
    return Abandoned(place, newest)


def _reached(run: RunDir) -> int:
    """Return the last step in the run's files."""
    steps = [read_json(run.status).get("step"), *first_numbers(run.episodes)]
    with suppress(OSError, ValueError):  # a power cut may have left anything
        steps += [row.get("step") for row in read_metrics(run.metrics)]
    return max((step for step in steps if isinstance(step, int)), default=0)


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
