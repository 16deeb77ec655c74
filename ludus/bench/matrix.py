"""A matrix of runs (algorithms x environments x seeds), and the bench.json that stores it.

The run directory decides a cell's state; bench.json repeats it for readers and adds errors.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from ludus.errors import LudusError
from ludus.process.signals import REASONS
from ludus.secret_masking import masked_command
from ludus.stats.runs import read_run
from ludus.track.atomic_files import read_json, write_json
from ludus.track.metrics.writer import read_metrics
from ludus.track.run_dir.rundir import RunDir, check_name, is_run
from ludus.track.run_dir.status import LIVE, read_status

FORMAT = 1
_KEPT = ("suite", "settings", "preset", "imports", "cells", "left_out")  # of bench.json
ASKED_TO_LEAVE = (*REASONS, "quit")  # reasons to stop of runs that have steps left


@dataclass
class Cell:
    """One run of the matrix."""

    algo: str
    env: str
    seed: int
    run: str  # its directory inside the bench's
    swept: list[str] = field(default_factory=list)  # settings that differ within the bench
    state: str = "waiting"  # running, finished, failed, stopped
    attempts: int = 0
    error: str | None = None  # of the last attempt, if it failed
    score: float | None = None
    scored_by: str | None = None  # the last evaluation, or the last episodes of training
    episodes: int | None = None  # that it is the mean of
    step: int | float | None = None
    seconds: int | float | None = None  # of training, all attempts that are in the run

    def __str__(self) -> str:
        return ", ".join([f"{self.algo} on {self.env}", *self.swept, f"seed {self.seed}"])


@dataclass
class Matrix:
    """All cells of one bench, and what their runs have in common."""

    folder: Path
    suite: str | None = None
    settings: list[str] = field(default_factory=list)
    preset: str | None = None
    imports: list[str] = field(default_factory=list)
    cells: list[Cell] = field(default_factory=list)
    left_out: list[dict[str, str]] = field(default_factory=list)  # algo, env, why

    @property
    def path(self) -> Path:
        return self.folder / "bench.json"

    def save(self) -> None:
        from ludus import __version__

        kept = {k: v for k, v in vars(self).items() if k not in ("folder", "cells")}
        kept["settings"] = masked_command(self.settings)
        kept["cells"] = [asdict(cell) for cell in self.cells]
        write_json(self.path, {"format": FORMAT, "ludus": __version__, **kept}, sync=True)

    def run_dir(self, cell: Cell) -> RunDir:
        return RunDir(self.folder / cell.run)

    def words(self, cell: Cell) -> list[str]:
        """The command of a cell: it starts the run or resumes it."""
        preset = ["--preset", self.preset] if self.preset else []
        imports = [word for module in self.imports for word in ("--import", module)]
        return [
            "train", cell.algo, cell.env, *self.settings, *cell.swept, f"run.seed={cell.seed}",
            *preset, *imports, "--run", cell.run, "--runs-dir", str(self.folder), "--quiet",
        ]  # fmt: skip

    def refresh(self, cell: Cell) -> str:
        """Update the cell from the files of its run: `finished`, or `` for any other state."""
        place = self.run_dir(cell)
        status: dict[str, Any] = read_status(place) if is_run(place.path) else {"state": "empty"}
        cell.step = status.get("step")
        left = status["state"] == "stopped" and status.get("reason") not in ASKED_TO_LEAVE
        if status["state"] != "finished" and not left:
            # It was killed, or a finished run was removed.
            if cell.state in ("running", "finished") and status["state"] not in LIVE:
                cell.state = "waiting" if status["state"] == "empty" else "stopped"
            return ""
        cell.state, cell.error = "finished", None
        found = read_run(place).score  # the number that `ludus compare` takes
        if found is not None:
            cell.score, cell.scored_by, cell.episodes = found.mean, found.source, found.episodes
        lines = read_metrics(place.metrics)
        seconds = lines[-1].get("seconds") if lines else None
        cell.seconds = seconds if isinstance(seconds, int | float) else None
        return "finished"


def load_matrix(folder: Path) -> Matrix | None:
    """The bench in a folder; None where there is none."""
    path = folder / "bench.json"
    if not path.exists():
        return None
    stored = read_json(path)
    try:
        if stored["format"] != FORMAT:
            raise KeyError("format")
        kept = {"folder": ".", **{name: stored[name] for name in _KEPT}}
        matrix = TypeAdapter(Matrix).validate_json(json.dumps(kept), strict=True)
        matrix = replace(matrix, folder=folder)  # its name may not be UTF-8
        if not all({"algo", "env", "why"} <= row.keys() for row in matrix.left_out):
            raise KeyError("left_out")
    except (KeyError, ValidationError):
        raise LudusError(
            "E105",
            f"{path} is not a bench of this version",
            where=str(path),
            fix="--name OTHER  begins a new one; the runs in that folder stay as they are",
        ) from None
    for cell in matrix.cells:
        check_name(cell.run)
    return matrix


def merged(wanted: Matrix) -> tuple[Matrix, list[Cell]]:
    """The bench of that folder with the wanted cells added, and those cells. A matrix can grow, but
    all its runs share their settings."""
    there = load_matrix(wanted.folder)
    if there is None:
        return wanted, wanted.cells
    for what in ("settings", "preset", "imports"):
        old, new = getattr(there, what), getattr(wanted, what)
        new = masked_command(new) if what == "settings" else new
        if old != new:
            raise LudusError(
                "E307",
                f"this bench was begun with other {what}: {_shown(old)}, now {_shown(new)}",
                where=str(there.path),
                why="runs with different settings do not belong in one table",
                fix="--name OTHER  begins another bench; or type the same as before",
            )
    there.settings = wanted.settings  # the file holds no secrets
    known = {cell.run: cell for cell in there.cells}
    for cell in wanted.cells:
        if known.setdefault(cell.run, cell) is cell:
            there.cells.append(cell)
        _check_same(known[cell.run], cell, there.path)
    there.suite = wanted.suite if wanted.suite == there.suite else None
    pairs = {(cell.algo, cell.env) for cell in there.cells}
    left = {(row["algo"], row["env"]): row for row in (*there.left_out, *wanted.left_out)}
    there.left_out = [row for pair, row in left.items() if pair not in pairs]
    return there, [known[cell.run] for cell in wanted.cells]


def _check_same(old: Cell, new: Cell, path: Path) -> None:
    """Refuse a file that has another run under the name of a wanted cell."""
    if (old.algo, old.env, old.seed, old.swept) != (new.algo, new.env, new.seed, new.swept):
        raise LudusError(
            "E307",
            f"{new.run} of this bench is another run: {old}, now {new}",
            where=str(path),
            why="bench.json was changed, or comes from elsewhere",
            fix="--name OTHER  begins another bench",
        )


def _shown(value: Any) -> str:
    text = " ".join(value) if isinstance(value, list) else str(value or "")
    return text or "none"


def check_names(cells: Sequence[Cell]) -> None:
    seen: dict[str, Cell] = {}
    for cell in cells:
        other = seen.setdefault(cell.run, cell)
        if other is not cell:
            raise LudusError(
                "E104",
                f"{cell} and {other} would be one run",
                where="command line",
                why="an environment, algorithm or seed is named twice, or two names differ only in "
                "characters that directories cannot have",
                fix="name each of them once",
            )
