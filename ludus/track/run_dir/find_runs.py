"""Which runs a user means: by path, by name, by the end of a name, or a folder of runs."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from ludus.track.run_dir.rundir import RunDir, is_run, list_runs


def find_runs(named: Iterable[str | Path], runs_dir: Path) -> list[RunDir]:
    """Each run once, in the order named; a folder, such as one of `ludus bench`, stands for all the
    runs in it. Folders may be named as runs are: below `runs_dir`."""
    found: dict[Path, RunDir] = {}
    for name in named:
        folder = Path(name).expanduser()
        places = [place for place in (folder, runs_dir / folder) if place.is_dir()]
        inside = next((runs for place in places if (runs := _inside(place))), [])
        for run in inside or [RunDir.open(name, runs_dir)]:
            found.setdefault(run.path, run)
    return list(found.values())


def _inside(folder: Path) -> list[RunDir]:
    """Runs of a folder that is none itself, or of the folders in it."""
    if is_run(folder) and not (folder / "bench.json").is_file():
        return []
    below = [sub for sub in sorted(folder.iterdir()) if sub.is_dir() and not is_run(sub)]
    return [*list_runs(folder), *(run for sub in below for run in list_runs(sub))]
