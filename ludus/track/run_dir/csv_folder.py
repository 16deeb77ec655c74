"""log.csv: link episodes.csv and evals.csv into a folder of the user. The links point to the run's
own files, so the run never reads or writes outside its directory."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from ludus.track.atomic_files import open_append, writing
from ludus.track.run_dir.rundir import RunDir


def place_csv(run: RunDir, folder: str, *, typed: bool = True) -> list[str]:
    """Link the CSV files into `folder`; call it before they are opened. With typed=False `folder`
    comes from the run's config.yaml, which is not trusted: return a warning and do not use it."""
    if not folder:
        return []
    place = Path(folder).expanduser().absolute()
    if not typed:
        named = list(place.glob(f"{run.name}-episodes*.csv")) if place.is_dir() else []
        if any(_same(path, run.episodes) for path in named):
            return []
        return [
            f"log.csv={folder} of the run's config.yaml is not used; to use it:  "
            f"ludus resume {run.name} log.csv={folder}"
        ]
    fix = "log.csv=FOLDER , one that can be written; without it they are in the run"
    with writing(f"cannot keep CSV files in {place}", "log.csv", fix, exact=True):
        place.mkdir(parents=True, exist_ok=True)
        for file in (run.episodes, run.evals):
            _name(file, place, f"{run.name}-{file.stem}")
    return []


def _name(file: Path, place: Path, stem: str) -> None:
    """Link `file` into `place`: a hard link, or a symbolic link on another file system."""
    open_append(file).close()  # create it if it is new
    target, number = place / f"{stem}.csv", 1
    while os.path.lexists(target):  # another run of that name: never overwritten
        if _same(target, file):
            return
        target, number = place / f"{stem}-{number}.csv", number + 1
    try:
        os.link(file, target, follow_symlinks=False)
    except OSError as error:
        if error.errno not in (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP):
            raise
        target.symlink_to(file.resolve())


def _same(path: Path, file: Path) -> bool:
    try:
        return path.samefile(file)
    except OSError:
        return False
