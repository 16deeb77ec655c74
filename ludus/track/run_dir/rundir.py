"""The run directory: its name, its paths, and lookup by name.

Every kind of run has the same layout. This module never deletes a run.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from ludus.errors import LudusError, nearest
from ludus.track.atomic_files import make_folder, writing
from ludus.track.run_dir.lock import holder

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
_MARKS = ("config.yaml", "status.json", "manifest.json", "metrics.jsonl", "checkpoints")


def slug(text: str) -> str:
    """Make text usable in a directory name: ALE/Pong-v5 -> ALE-Pong-v5."""
    plain = re.sub(r"[^A-Za-z0-9._-]+|\.{2,}", "-", text)
    return plain.strip("-._")[:60] or "run"


def check_name(name: str) -> str:
    """Return a run name given by the user if it is one plain path component, else raise."""
    if _NAME.fullmatch(name) is None or ".." in name:
        raise LudusError(
            "E103",
            f"{name!r} cannot be the name of a run",
            why="a run is one directory inside the runs directory",
            fix="letters, digits, dot, dash, underscore; choose the place with  --runs-dir DIR",
        )
    return name


class _Inside:
    """The path of a file or folder in a run."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, run: RunDir, owner: type[RunDir]) -> Path:
        return run.path / self._name


@dataclass(frozen=True)
class RunDir:
    """Paths of one run. Created by `create`, found by `open`."""

    path: Path
    config = _Inside("config.yaml")
    user_config = _Inside("config.user.yaml")
    manifest = _Inside("manifest.json")
    metrics = _Inside("metrics.jsonl")
    episodes = _Inside("episodes.csv")
    evals = _Inside("evals.csv")
    events = _Inside("events.jsonl")
    log = _Inside("log.txt")
    tb = _Inside("tb")
    status = _Inside("status.json")
    lock = _Inside("LOCK")
    checkpoints = _Inside("checkpoints")
    eval = _Inside("eval")
    videos = _Inside("videos")
    screenshots = _Inside("screenshots")
    crash = _Inside("crash")

    @classmethod
    def create(
        cls,
        runs_dir: str | Path,
        env_id: str,
        algo: str,
        seed: int,
        *,
        name: str | None = None,
        fresh: bool = False,
    ) -> RunDir:
        """Create a directory `<env>-<algo>-s<seed>-<4 hex>`, or `name`.

        Raise if `name` exists. With fresh=True, rename the earlier run to `<name>.1`,
        `<name>.2`, ... and keep it.
        """
        root = Path(runs_dir)
        if name is not None:
            check_name(name)
        elsewhere = "choose a writable place with  --runs-dir DIR"
        with writing("cannot create a run directory", root, elsewhere):
            root.mkdir(parents=True, exist_ok=True)
            path = _named(root, name, fresh) if name else _unique(root, env_id, algo, seed)
            run = cls(path.resolve())
            run.checkpoints.mkdir()
        return run

    @classmethod
    def open(cls, path_or_name: str | Path, runs_dir: str | Path = "runs") -> RunDir:
        """Open a run by path, by name, or by the end of its name (7f3a) if only one matches."""
        text, root = str(path_or_name), Path(runs_dir)
        for candidate in (Path(text).expanduser(), root / text):
            if text and is_run(candidate):
                return cls(candidate.resolve())
        if text.startswith("agent:"):
            raise LudusError(
                "E303",
                f"{text} is an agent that comes with ludus, not a run",
                where="command line",
                why="eval, record and play take agents; the other verbs need what a run has",
                fix=f"ludus eval {text}",
            )
        names = [run.name for run in list_runs(root)]
        fits = [n for n in names if text and n.endswith(f"-{text}")]
        if len(fits) == 1:
            return cls((root / fits[0]).resolve())
        listed = ", ".join(names[-5:]) or "none"
        raise LudusError(
            "E303",
            f"no run {text!r}{nearest(text, names)}",
            where=str(root.absolute()),
            why=f"several runs end in it: {', '.join(fits)}"
            if fits
            else f"newest runs here: {listed}",
            fix="ludus ls  shows all runs; choose another place with  --runs-dir DIR",
        )

    @property
    def name(self) -> str:
        return self.path.name


def is_run(path: Path) -> bool:
    try:
        return path.is_dir() and any(os.path.lexists(path / mark) for mark in _MARKS)
    except OSError:  # a folder without read permission
        return False


def run_of(path: Path) -> RunDir | None:
    """Return the run at `path`, or the run that contains this checkpoint or model file."""
    whole = path.resolve()
    if (whole / "checkpoints").is_dir():
        return RunDir(whole)
    inside = (place.parent for place in whole.parents[:2] if place.name == "checkpoints")
    return next((RunDir(place) for place in inside), None)


def folder_for(path: Path) -> None:
    """Create a folder. Inside a run, do not follow links; elsewhere the user chose the place."""
    if is_run(path.parent):
        make_folder(path)
    else:
        path.mkdir(parents=True, exist_ok=True)


def list_runs(runs_dir: str | Path) -> list[RunDir]:
    """Return every run in a directory; the one started or resumed last comes last."""
    root = Path(runs_dir)
    if not root.is_dir():
        return []
    found = [entry for entry in root.iterdir() if is_run(entry)]
    return [RunDir(path.resolve()) for path in sorted(found, key=_age)]


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


def _age(path: Path) -> tuple[float, str]:
    for file in (path / "manifest.json", path):
        with suppress(OSError):
            return file.lstat().st_mtime, path.name
    return 0.0, path.name


def numbered(path: Path) -> Path:
    """Return the first of `path`1, `path`2, ... that does not exist."""
    places = (path.with_name(f"{path.name}{number}") for number in count(1))
    return next(place for place in places if not os.path.lexists(place))


def _unique(root: Path, env_id: str, algo: str, seed: int) -> Path:
    stem = f"{slug(env_id)}-{slug(algo)}-s{seed}"
    while True:
        path = root / f"{stem}-{secrets.token_hex(2)}"
        try:
            path.mkdir()
            return path
        except FileExistsError:
            continue


def _named(root: Path, name: str, fresh: bool) -> Path:
    path = root / name
    if os.path.lexists(path) and fresh:
        who = holder(path)
        if who is not None:
            raise LudusError(
                "E302",
                f"the run directory is in use by {who}",
                where=str(path),
                fix=f"ludus stop {name}",
            )
        path.rename(numbered(root / f"{name}."))
    elif os.path.lexists(path):
        raise LudusError(
            "E301",
            f"a run named {name} exists already",
            where=str(path),
            fix=f"ludus resume {name}  goes on with it; --fresh renames it and starts anew",
        )
    path.mkdir()
    return path
