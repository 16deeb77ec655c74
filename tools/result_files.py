"""Reads what lies in benchmarks/results. For `results.py` and its parts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent.parent / "benchmarks" / "results"


def table(name: str) -> dict[str, Any] | None:
    path = FOLDER / name
    return json.loads(path.read_text()) if path.exists() else None


def lines_of(name: str) -> list[dict[str, Any]]:
    path = FOLDER / name
    return [json.loads(x) for x in path.read_text().splitlines()] if path.exists() else []
