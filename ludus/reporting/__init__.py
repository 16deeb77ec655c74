"""`ludus report` and `ludus.report([...], path)`: runs as one self-contained HTML file.

Only renders; `ludus.stats` reads the runs.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ludus.errors import LudusError
from ludus.track.atomic_files import write_atomic, writing
from ludus.track.run_dir.rundir import RunDir, find_runs

Differences = list[tuple[str, str, str]]


def write_report(
    runs: Sequence[Path],
    out: Path,
    *,
    title: str | None = None,
    embed_videos: bool = False,
    differences: Mapping[str, Differences | None] | None = None,
) -> Path:
    """Write the report of run directories. `differences` from the preset, by run path; without it
    they are computed, which imports the algorithms."""
    from ludus.reporting.html import render
    from ludus.reporting.page_data import page_data
    from ludus.stats.runs import read_run

    if not runs:
        raise LudusError("E303", "no runs to report", fix="ludus ls  shows the runs there are")
    paths = dict.fromkeys(Path(path).resolve() for path in runs)
    found = [read_run(RunDir(path), history=True) for path in paths]
    if differences is None:
        from ludus.reporting.settings import stored_differences

        known: Any = {}
        differences = {
            str(run.path): stored_differences(run.path, run.config, run.preset, known)
            for run in found
        }
    data = page_data(found, out, title=title, embed_videos=embed_videos, changed=differences)
    text = render(data)
    with writing("cannot write the report", out, "choose another place with  -o FILE"):
        out.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(out, text.encode("utf-8", "replace"))
    return out


def report(
    runs: Any,
    path: str | Path = "report.html",
    *,
    runs_dir: str | Path | None = None,
    title: str | None = None,
    embed_videos: bool = False,
) -> Path:
    """Write one HTML page about runs: results of `train`, run directories or names."""
    several = runs if isinstance(runs, list | tuple) else [runs]
    named = [str(getattr(run, "path", run)) for run in several]
    place = Path(runs_dir or os.environ.get("LUDUS_RUNS_DIR") or "runs")
    found = [run.path for run in find_runs(named, place)]
    return write_report(found, Path(path), title=title, embed_videos=embed_videos)
