"""What keeps a run's files from being read, in one line. Other runs are listed all the same."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from ludus.cli.output import warn
from ludus.errors import LudusError

if TYPE_CHECKING:
    from ludus.track.run_dir.rundir import RunDir


def read_settings(run: RunDir) -> tuple[dict[str, Any], str]:
    """config.yaml as it is, and why it cannot be read. Missing is no problem: a run may be cut off
    while its directory is being made."""
    from ludus.settings.yaml import read_file

    try:
        return read_file(run.config).tree, ""
    except LudusError as error:
        there = os.path.lexists(run.config)
        return {}, error.what.replace(str(run.config), run.config.name) if there else ""


def problem_of(run: RunDir, *others: str) -> str:
    """What is wrong with status.json and the folder of checkpoints, behind `others`."""
    from ludus.track.atomic_files import check_folder, reason
    from ludus.track.run_dir.status import read_status

    found = [*others, read_status(run).get("problem", "")]
    try:
        if os.path.lexists(run.checkpoints):
            check_folder(run.checkpoints)
    except OSError as error:
        found.append(f"{run.checkpoints.name}: {reason(error)}")
    return "; ".join(text for text in found if text)


def warn_of(run: RunDir, *others: str) -> None:
    problem = problem_of(run, *others)
    if problem:
        warn(f"{run.name}: {problem}")
