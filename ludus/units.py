"""Parse and format numbers with units: 10M, 1.5k, 2h, 30m."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Annotated

from pydantic import BeforeValidator

_COUNT = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "b": 10**9}
_TIME = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_FORM = re.compile(r"^\s*([+-]?[\d_]*\.?\d*(?:[eE][+-]?\d+)?)\s*([a-zA-Z]*)\s*$")


def _parse(text: str | float, what: str, units: Mapping[str, float], listed: str) -> float:
    if isinstance(text, int | float):
        try:
            return float(text)
        except OverflowError:
            raise ValueError("an integer of more than 300 digits is too large") from None
    # A list or table in place of a number raises the same ValueError.
    hit = _FORM.match(text) if isinstance(text, str) else None
    if hit is None or hit[1] in ("", "+", "-", "."):
        raise ValueError(f"{text!r} is not {what}")
    if hit[2].lower() not in units:
        raise ValueError(f"{text!r} is not {what} (units: {listed})")
    return float(hit[1].replace("_", "")) * units[hit[2].lower()]


def parse_number(text: str | float) -> float:
    """Parse a number, optionally with the unit k, M or G."""
    return _parse(text, "a number", _COUNT, "k, M, G")


def parse_count(text: str | float) -> int:
    """Parse a whole number: 150k, 10M, 1e6."""
    number = parse_number(text)
    if not math.isfinite(number) or number != int(number):
        raise ValueError(f"{text!r} is not a whole number")
    return int(number)


def parse_seconds(text: str | float) -> float:
    """Parse a duration: 90, 90s, 30m, 2h, 1d."""
    return _parse(text, "a duration", _TIME, "s, m, h, d")


def show_count(n: float) -> str:
    """Format a count: 150000 -> 150k, 12500000 -> 12.5M."""
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(n) >= size:
            return f"{n / size:.4g}{unit}"
    return f"{n:.4g}"


def show_bytes(n: float) -> str:
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("KB", 1e3)):
        if abs(n) >= size:
            return f"{n / size:.3g} {unit}"
    return f"{n:.0f} B"


def show_seconds(seconds: float) -> str:
    seconds = int(seconds)
    if seconds < 60:
        return f"{seconds}s"
    if seconds < 3600:
        return f"{seconds // 60}m{seconds % 60:02d}s"
    if seconds < 48 * 3600:
        return f"{seconds // 3600}h{seconds % 3600 // 60:02d}m"
    return f"{seconds // 86400}d{seconds % 86400 // 3600:02d}h"


# Types of config fields: they accept units and hold plain numbers.
Count = Annotated[int, BeforeValidator(parse_count)]
Seconds = Annotated[float, BeforeValidator(parse_seconds)]
