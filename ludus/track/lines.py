"""Lines of a file that may hold anything: of a kill, of another version, of a stranger."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ludus.track.atomic_files import open_read

LINE = 16 << 20  # bytes; no line of ours is longer


def first_numbers(path: Path) -> set[int]:
    """The steps of an episodes.csv or evals.csv."""
    parts = (line.partition(b",") for line in whole_lines(path))
    return {int(first) for first, comma, _ in parts if comma and _is_count(first)}


def _is_count(digits: bytes) -> bool:
    return digits.isdigit() and len(digits) <= 18


def whole_lines(path: Path) -> Iterator[bytes]:
    """The lines of a file that may hold anything, without their ends; none where it cannot be read.
    A torn last line is left out, and what comes after a line longer than any of ours."""
    with suppress(OSError), open_read(path) as file:
        while (line := file.readline(LINE)).endswith(b"\n"):
            yield line[:-1]


def csv_rows(lines: Iterable[str], names: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """The rows of a CSV file that may hold anything, up to the first that is no CSV."""
    rows = []
    with suppress(csv.Error):
        for row in csv.DictReader(lines, fieldnames=names):
            rows.append(row)
    return rows
