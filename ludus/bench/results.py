"""Results of a matrix: one row per algorithm and environment over seeds, results.csv, report."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path

from ludus.bench.matrix import Cell, Matrix
from ludus.stats import aggregates
from ludus.stats.references import human_normalized
from ludus.stats.runs import describe_sources
from ludus.track.atomic_files import write_atomic
from ludus.track.metrics.writer import csv_line


@dataclass(frozen=True)
class Row:
    """One algorithm on one environment."""

    env: str
    algo: str
    swept: str  # settings that differ within the bench
    finished: int  # runs
    failed: int
    runs: int
    mean: float | None  # of the runs' scores
    std: float | None  # of the sample, n - 1
    iqm: float | None
    low: float | None  # 95 % interval of the interquartile mean, by bootstrap
    high: float | None
    human: float | None  # the mean between random play (0) and a human (1), of an Atari game
    scored_by: str
    seeds: str  # of finished runs
    scores: str


def rows_of(cells: Sequence[Cell]) -> list[Row]:
    groups: dict[tuple[str, str, str], list[Cell]] = {}
    for cell in cells:
        groups.setdefault((cell.env, cell.algo, " ".join(cell.swept)), []).append(cell)
    return [_row(key, members) for key, members in groups.items()]


def _row(key: tuple[str, str, str], members: Sequence[Cell]) -> Row:
    done = sorted((c for c in members if c.state == "finished"), key=lambda c: c.seed)
    scored = [(c.seed, c.score) for c in done if c.score is not None]
    scores = [score for _, score in scored]
    mean = statistics.fmean(scores) if scores else None
    return Row(
        *key,
        len(done),
        sum(c.state == "failed" for c in members),
        len(members),
        mean,
        statistics.stdev(scores) if len(scores) > 1 else None,
        *_interval(scores),
        None if mean is None else human_normalized(key[0], mean),
        describe_sources((c.scored_by, c.episodes) for c in done if c.scored_by) or "-",
        " ".join(str(seed) for seed, _ in scored),
        " ".join(map(repr, scores)),
    )


def _interval(scores: Sequence[float]) -> tuple[float | None, float | None, float | None]:
    """IQM and its interval over seeds; one run has no interval."""
    if not scores:
        return None, None, None
    middle = aggregates.iqm(scores)
    if len(scores) < 2:
        return middle, None, None
    return middle, *aggregates.stratified_bootstrap(scores, aggregates.iqm)


def write_results(matrix: Matrix) -> Path:
    rows = [[field.name for field in fields(Row)], *map(astuple, rows_of(matrix.cells))]
    lines = [csv_line("" if value is None else value for value in row) for row in rows]
    path = matrix.folder / "results.csv"
    write_atomic(path, "".join(lines).encode())
    return path


def write_report(matrix: Matrix) -> tuple[Path | None, str]:
    """Write the report of all finished runs: its path, or why there is none. A report that fails
    does not fail the bench."""
    runs = [matrix.run_dir(c).path for c in matrix.cells if c.state == "finished"]
    if not runs:
        return None, "no run has finished"
    from ludus import reporting  # imports the page templates

    out, title = matrix.folder / "report.html", matrix.folder.name
    try:
        return reporting.write_report(runs, out, title=title), ""
    except Exception as error:
        return None, f"{type(error).__name__}: {error}"
