"""Printing of the command line: tables for people, JSON for programs, errors."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from ludus.errors import printable
from ludus.secret_masking import hide

_OPTIONS = {"color": True}
_TYPED: list[str] = []


def no_color() -> None:
    """For --no-color. NO_COLOR and pipes turn colours off as well."""
    _OPTIONS["color"] = False
    os.environ["NO_COLOR"] = "1"


def set_typed(words: Sequence[str]) -> None:
    _TYPED[:] = words


def typed() -> list[str]:
    """The words of the command, for messages that repeat it."""
    return list(_TYPED)


def say(text: str = "", *, end: str = "\n", flush: bool = False) -> None:
    """Print a line for people, without control characters from names and files."""
    print(printable(text), end=end, flush=flush)


def warn(text: str) -> None:
    print_error(f"warning: {text}", color=False)


def print_json(value: Any) -> None:
    print(json.dumps(value, indent=1, default=str))


def print_table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Columns as wide as their content; lines are never wrapped, so that grep works."""
    texts = [[cell_text(cell) for cell in row] for row in rows]
    names = [cell_text(name) for name in columns]
    widths = [max([len(c), *(len(r[i]) for r in texts)]) for i, c in enumerate(names)]
    bold, plain = ("\033[1m", "\033[0m") if _colored() else ("", "")
    print(bold + _line(names, widths) + plain)
    for row in texts:
        print(_line(row, widths))


def _colored() -> bool:
    return _OPTIONS["color"] and sys.stdout.isatty() and not os.environ.get("NO_COLOR")


def cell_text(cell: Any) -> str:
    if cell is None:
        return "-"
    if isinstance(cell, bool):  # as it is typed after key=
        return "true" if cell else "false"
    if isinstance(cell, dict):
        return ", ".join(f"{cell_text(k)} {cell_text(v)}" for k, v in cell.items() if v != "")
    if isinstance(cell, float):
        return f"{cell:.4g}"
    return printable(str(cell)).replace("\n", "\\n").replace("\t", " ")


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(f"{c:<{w}}" for c, w in zip(cells, widths, strict=True)).rstrip()


def print_error(text: str, *, color: bool = True) -> None:
    colored = color and sys.stderr.isatty() and _OPTIONS["color"]
    red, plain = ("\033[31m", "\033[0m") if colored else ("", "")
    first, _, rest = printable(hide(text)).partition("\n")
    print(f"{red}{first}{plain}" + (f"\n{rest}" if rest else ""), file=sys.stderr)
