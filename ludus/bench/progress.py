"""Progress of a bench: a live table on a terminal, lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TextIO

from ludus.bench.matrix import Cell, Matrix
from ludus.errors import printable
from ludus.track.run_dir.status import read_status
from ludus.units import show_count, show_seconds

if TYPE_CHECKING:
    from rich.table import Table

LINES_SECONDS = 30.0  # between lines about active runs, if not on a terminal
COLUMNS = ("environment", "algorithm", "seed", "state", "steps", "training", "steps/s")


def counts(cells: Sequence[Cell]) -> str:
    """7 of 24 finished, 2 running, 1 failed"""
    by = Counter(cell.state for cell in cells)
    words = [f"{by[state]} {state}" for state in ("running", "failed", "stopped") if by[state]]
    return ", ".join([f"{by['finished']} of {len(cells)} finished", *words])


def outcome(cell: Cell) -> str:
    if cell.state == "finished":
        score = "no score" if cell.score is None else f"score {cell.score:.4g} ({cell.scored_by})"
        return f"finished, {score}" + (f", {show_seconds(cell.seconds)}" if cell.seconds else "")
    if cell.state == "failed":
        return f"failed: {(cell.error or '').splitlines()[0]}"
    return cell.state if cell.step is None else f"{cell.state} at step {show_count(cell.step)}"


class Quiet:
    """Prints failures only."""

    def __init__(self, matrix: Matrix, cells: Sequence[Cell], stream: TextIO | None = None) -> None:
        self.matrix, self.cells, self.stream = matrix, cells, stream or sys.stdout

    def started(self, cell: Cell) -> None:
        """Nothing."""

    def ended(self, cell: Cell) -> None:
        if cell.state == "failed":
            self.say(f"{cell}: {outcome(cell)}")

    def update(self, running: Sequence[Cell]) -> None:
        """Nothing."""

    def say(self, text: str) -> None:
        print(printable(text), file=self.stream, flush=True)

    def close(self) -> None:
        """Nothing."""

    def now(self, cell: Cell) -> dict[str, Any]:
        """The status of an active run."""
        return read_status(self.matrix.run_dir(cell))


class Lines(Quiet):
    """Time-stamped lines."""

    def __init__(self, matrix: Matrix, cells: Sequence[Cell], stream: TextIO | None = None) -> None:
        super().__init__(matrix, cells, stream)
        self._next = time.monotonic() + LINES_SECONDS

    def started(self, cell: Cell) -> None:
        again = f" (attempt {cell.attempts})" if cell.attempts > 1 else ""
        self.say(f"{cell}: started{again}")

    def ended(self, cell: Cell) -> None:
        self.say(f"{cell}: {outcome(cell)}   [{counts(self.cells)}]")

    def update(self, running: Sequence[Cell]) -> None:
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + LINES_SECONDS
        for cell in running:
            status = self.now(cell)
            score = "" if status.get("score") is None else f", training {status['score']:.4g}"
            self.say(f"{cell}: step {_steps(status)}{score}")

    def say(self, text: str) -> None:
        super().say(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}")


class Live(Quiet):
    """A table of the active runs; finished ones scroll by above it."""

    def __init__(self, matrix: Matrix, cells: Sequence[Cell], stream: TextIO | None = None) -> None:
        from rich.console import Console
        from rich.live import Live as Redrawn

        super().__init__(matrix, cells, stream)
        self._console = Console(file=self.stream, highlight=False)
        self._live = Redrawn(console=self._console, auto_refresh=False, transient=True)
        self._began, self._next = time.monotonic(), 0.0
        self._live.start()

    def ended(self, cell: Cell) -> None:
        self.say(f"{cell}: {outcome(cell)}")

    def update(self, running: Sequence[Cell]) -> None:
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + 1.0
        self._live.update(self._table(running), refresh=True)

    def say(self, text: str) -> None:
        self._console.print(printable(text), markup=False)

    def close(self) -> None:
        self._live.stop()

    def _table(self, running: Sequence[Cell]) -> Table:
        from rich.table import Table

        age = show_seconds(time.monotonic() - self._began)
        title = f"{self.matrix.folder.name} · {counts(self.cells)} · {age} · Ctrl-C: save and stop"
        table = Table(*COLUMNS, title=title, title_justify="left", box=None, padding=(0, 2, 0, 0))
        for cell in running:
            status = self.now(cell)
            speed, score = status.get("steps_per_second"), status.get("score")
            table.add_row(
                cell.env,
                " ".join([cell.algo, *cell.swept]),
                str(cell.seed),
                str(status["state"]),
                _steps(status),
                "-" if score is None else f"{score:.4g}",
                show_count(speed) if speed else "-",
            )
        return table


def _steps(status: dict[str, Any]) -> str:
    if status.get("step") is None or not status.get("steps"):
        return "-"
    return f"{show_count(status['step'])} / {show_count(status['steps'])}"


def make_progress(matrix: Matrix, cells: Sequence[Cell], *, quiet: bool) -> Quiet:
    if quiet:
        return Quiet(matrix, cells, sys.stderr)
    return Live(matrix, cells) if sys.stdout.isatty() else Lines(matrix, cells)
