"""How the command line prints: tables for people, JSON for programs, errors on one screen."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from ludus.masking import hide

_SEEN = {"color": True}


def no_color() -> None:
    """--no-color. NO_COLOR and pipes are noticed without it."""
    _SEEN["color"] = False
    os.environ["NO_COLOR"] = "1"


def print_json(value: Any) -> None:
    print(json.dumps(value, indent=1, default=str))


def print_table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Columns as wide as their content; never wrapped, so that lines can be searched."""
    texts = [[cell_text(cell) for cell in row] for row in rows]
    widths = [max([len(c), *(len(r[i]) for r in texts)]) for i, c in enumerate(columns)]
    bold, plain = ("\033[1m", "\033[0m") if _colored() else ("", "")
    print(bold + _line(columns, widths) + plain)
    for row in texts:
        print(_line(row, widths))


def _colored() -> bool:
    return _SEEN["color"] and sys.stdout.isatty() and not os.environ.get("NO_COLOR")


def cell_text(cell: Any) -> str:
    if cell is None:
        return "-"
    if isinstance(cell, bool):  # as it is typed after key=
        return "true" if cell else "false"
    if isinstance(cell, dict):
        return ", ".join(f"{k} {cell_text(v)}" for k, v in cell.items() if v != "")
    return f"{cell:.4g}" if isinstance(cell, float) else str(cell)


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(f"{c:<{w}}" for c, w in zip(cells, widths, strict=True)).rstrip()


def print_error(text: str) -> None:
    red, plain = ("\033[31m", "\033[0m") if sys.stderr.isatty() and _SEEN["color"] else ("", "")
    first, _, rest = hide(text).partition("\n")
    print(f"{red}{first}{plain}" + (f"\n{rest}" if rest else ""), file=sys.stderr)
