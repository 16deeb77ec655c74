"""`ludus report`: runs as one HTML file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ludus.cli.output import print_json, say
from ludus.cli.runs import warn_about
from ludus.cli.training import Json, RunsDir, runs_root


def report(
    runs: Annotated[
        list[str],
        typer.Argument(metavar="RUN...", help="Runs by directory or name, or a folder of runs."),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="File to write.")] = Path("report.html"),
    title: Annotated[
        str | None, typer.Option(help="Title of the page; default: algorithms and environments.")
    ] = None,
    embed_videos: Annotated[
        bool, typer.Option("--embed-videos", help="Put videos under 8 MB into the file.")
    ] = False,
    runs_dir: RunsDir = None,
    as_json: Json = False,
) -> None:
    """Write a report of one or more runs, or of all runs in a folder, as one HTML file."""
    from ludus.reporting import write_report
    from ludus.stats.run_files import read_settings
    from ludus.track.run_dir.rundir import find_runs
    from ludus.units import show_bytes

    there = find_runs(runs, runs_root(runs_dir))
    for run in there:
        warn_about(run, read_settings(run)[1])
    found = [run.path for run in there]
    path = write_report(found, out, title=title, embed_videos=embed_videos)
    size = path.stat().st_size
    if as_json:
        names = [run.name for run in found]
        print_json({"path": str(path.resolve()), "bytes": size, "runs": names})
        return
    noun = "run" if len(found) == 1 else "runs"
    say(f"report of {len(found)} {noun}: {path} ({show_bytes(size)})")
