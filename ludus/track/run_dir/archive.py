"""Keep what is about to be written anew: files of a session that ended before its first checkpoint,
and all that a run did after the checkpoint it goes back to. Nothing here deletes."""

from __future__ import annotations

import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ludus.track.atomic_files import first_numbers, read_json, writing
from ludus.track.checkpoint import format as layout
from ludus.track.metrics.writer import read_metrics
from ludus.track.run_dir.rundir import RunDir
from ludus.track.run_dir.status import LIVE

FOLDER, ABANDONED = "before-", "abandoned-"  # and a number
_COPIED = ("config.yaml", "config.user.yaml")  # they are the next session's, too


def set_aside(run: RunDir) -> str:
    """Into RUN/before-1, before-2, ...: a warning that says so, or "" where no step was done. Call
    it with the run's lock held."""
    step = _reached(run)
    if not step:
        return ""
    killed = "was killed" if read_json(run.status).get("state") in LIVE else "ended"
    place = _unused(run, FOLDER)
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
    path: Path  # with a folder checkpoints/ for those to be moved
    step: int  # of the newest checkpoint


def abandon(run: RunDir, step: int) -> Abandoned | None:
    """RUN/abandoned-1, ... with copies of the run's files, before it goes back to the checkpoint of
    `step`. None where that is the newest. Call it with the run's lock held."""
    newest = max(layout.checkpoint_paths(run.checkpoints), default=step)
    if newest <= step:
        return None
    place = _unused(run, ABANDONED)
    files = (run.config, run.manifest, run.metrics, run.episodes, run.evals, run.events, run.log)
    with writing("cannot keep what comes after the checkpoint", run.path, "free some space"):
        (place / "checkpoints").mkdir(parents=True)
        for file in files:
            if file.is_file():
                shutil.copy2(file, place / file.name, follow_symlinks=False)
    return Abandoned(place, newest)


def _unused(run: RunDir, stem: str) -> Path:
    number = 1
    while (run.path / f"{stem}{number}").exists():
        number += 1
    return run.path / f"{stem}{number}"


def _reached(run: RunDir) -> int:
    """The last step that its files know of."""
    told = [read_json(run.status).get("step"), *first_numbers(run.episodes)]
    with suppress(OSError, ValueError):  # a power cut may have left anything
        told += [row.get("step") for row in read_metrics(run.metrics)]
    return max((step for step in told if isinstance(step, int)), default=0)
