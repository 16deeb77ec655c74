"""log.csv: episodes.csv and evals.csv in a folder of the user's. The run directory has links to
them, so whoever reads a run finds them where they always are."""

from __future__ import annotations

import shutil
from pathlib import Path

from ludus.errors import LudusError
from ludus.track.rundir import RunDir


def place_csv(run: RunDir, folder: str) -> None:
    """Before the files are opened. A file that lies elsewhere (a resumed run's) moves along."""
    if not folder:
        return
    place = Path(folder).expanduser().resolve()
    try:
        place.mkdir(parents=True, exist_ok=True)
        for link in (run.episodes, run.evals):
            _place(link, place, f"{run.name}-{link.stem}")
    except OSError as error:
        raise LudusError(
            "E301",
            f"cannot keep CSV files in {place}: {error.strerror or error}",
            where="log.csv",
            fix="log.csv=FOLDER , one that can be written; without it they are in the run",
        ) from error


def _place(link: Path, place: Path, stem: str) -> None:
    now = link.resolve()
    if link.is_symlink() and now.parent == place:
        return
    target, number = place / f"{stem}.csv", 1
    while target.exists():  # of another run of that name: never mixed, never overwritten
        target, number = place / f"{stem}-{number}.csv", number + 1
    if now.exists():
        shutil.move(now, target)
    else:
        target.touch()
    link.unlink(missing_ok=True)
    link.symlink_to(target)
