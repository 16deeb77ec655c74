"""What a session left in a run's directory when it ended before the first checkpoint: kept, in a
folder beside what the next one writes. Nothing here deletes."""

from __future__ import annotations

import shutil
from contextlib import suppress

from ludus.track.files import read_json, writing
from ludus.track.metrics import first_numbers, read_metrics
from ludus.track.rundir import RunDir
from ludus.track.status import LIVE

FOLDER = "before-"  # and a number
_COPIED = ("config.yaml", "config.user.yaml")  # they are the next session's, too


def set_aside(run: RunDir) -> str:
    """Into RUN/before-1, before-2, ...: a warning that says so, or "" where no step was done. Call
    it with the run's lock held."""
    step = _reached(run)
    if not step:
        return ""
    killed = "was killed" if read_json(run.status).get("state") in LIVE else "ended"
    number = 1
    while (run.path / f"{FOLDER}{number}").exists():
        number += 1
    place = run.path / f"{FOLDER}{number}"
    entries = [e for e in run.path.iterdir() if e != run.lock and not e.name.startswith(FOLDER)]
    with writing("cannot set earlier files aside", run.path, "--fresh  keeps the old run"):
        place.mkdir()
        for entry in entries:
            if entry.name in _COPIED:
                shutil.copy2(entry, place / entry.name)
            else:
                entry.rename(place / entry.name)
    return (
        f"the run {killed} at step {step} before its first checkpoint: it begins again at step 0; "
        f"its old files are in {place}"
    )


def _reached(run: RunDir) -> int:
    """The last step that its files know of."""
    told = [read_json(run.status).get("step"), *first_numbers(run.episodes)]
    with suppress(OSError, ValueError):  # a power cut may have left anything
        told += [row.get("step") for row in read_metrics(run.metrics)]
    return max((step for step in told if isinstance(step, int)), default=0)
