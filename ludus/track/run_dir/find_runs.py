"""Find runs by path, by name, by the end of a name, or in a folder of runs."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from ludus.track.run_dir.rundir import RunDir, is_run, list_runs


def find_runs(named: Iterable[str | Path], runs_dir: Path) -> list[RunDir]:
    """Return each run once, in the order given. A folder, such as one of `ludus bench`, stands for
    all runs in it. Names of runs and folders may be relative to `runs_dir`."""
    found: dict[Path, RunDir] = {}
    for name in named:
        folder = Path(name).expanduser()
        places = [place for place in (folder, runs_dir / folder) if place.is_dir()]
        inside = next((runs for place in places if (runs := _inside(place))), [])
        for run in inside or [RunDir.open(name, runs_dir)]:
            found.setdefault(run.path, run)
    return list(found.values())


def _inside(folder: Path) -> list[RunDir]:
    """Return the runs in `folder` and in its subfolders; none if `folder` is itself a run."""
    if is_run(folder) and not (folder / "bench.json").is_file():
        return []
    below = [sub for sub in sorted(folder.iterdir()) if sub.is_dir() and not is_run(sub)]
    return [*list_runs(folder), *(run for sub in below for run in list_runs(sub))]
