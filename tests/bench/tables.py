"""CSV files as rows."""

from __future__ import annotations

import csv
from pathlib import Path


def table(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))
