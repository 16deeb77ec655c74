"""`ludus report`: runs as one HTML file that needs nothing else, and `ludus.report([...], path)`.

Reads what runs left on disk; knows nothing of how they work.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ludus.errors import LudusError
from ludus.track.atomic_files import write_atomic, writing
from ludus.track.run_dir.find_runs import find_runs

Differences = list[tuple[str, str, str]]


def write_report(
    runs: Sequence[Path],
    out: Path,
    *,
    title: str | None = None,
    embed_videos: bool = False,
    differences: Mapping[str, Differences | None] | None = None,
) -> Path:
    """The report of run directories, as one file. `differences` from the preset, by run path,
    where they are known; else they are worked out, which takes the algorithms' own code."""
    from ludus.reporting.html import render
    from ludus.reporting.page_data import page_data
    from ludus.reporting.reading import read_run

    if not runs:
        raise LudusError("E303", "no runs to report", fix="ludus ls  shows the runs there are")
    found = [read_run(Path(path)) for path in dict.fromkeys(Path(p).resolve() for p in runs)]
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
    """One HTML page about runs: what `train` returned, run directories or names; one or several."""
    several = runs if isinstance(runs, list | tuple) else [runs]
    named = [str(getattr(run, "path", run)) for run in several]
    place = Path(runs_dir or os.environ.get("LUDUS_RUNS_DIR") or "runs")
    found = [run.path for run in find_runs(named, place)]
    return write_report(found, Path(path), title=title, embed_videos=embed_videos)
