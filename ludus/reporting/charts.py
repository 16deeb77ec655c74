"""Charts as data: SVG paths of lines and bands, and ticks in percent, for the page's template.

They need no JavaScript; the page's script only adds what the pointer shows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeVar

from ludus.units import show_count

_Any = TypeVar("_Any")
Range = tuple[float, float]
_COLUMNS = ("x", "y", "low", "high", "least", "most")  # of a line
_SPAN = 1000  # the drawing's own units, both ways; the page stretches it


@dataclass(frozen=True)
class Line:
    """One curve. `facts`: further columns of equal length for the pointer (std, min, max, ...)."""

    name: str
    colour: int
    x: Sequence[float]
    y: Sequence[float]
    kind: str = "mean"  # mean | seed | reference | dots
    low: Sequence[float] = ()  # of the band
    high: Sequence[float] = ()
    least: Sequence[float] = ()  # of the paler band around it
    most: Sequence[float] = ()
    facts: Mapping[str, Sequence[float]] = field(default_factory=dict)
    note: str = ""
    run: str = ""  # name of the run, for the CSV of all curves
    path: str = ""  # SVG paths, once it is drawn: of the curve and of both bands
    band: str = ""
    outer: str = ""


def thin(values: Sequence[_Any], most: int) -> list[_Any]:
    """At most `most` values at even distances, with the first and the last."""
    if len(values) <= most:
        return list(values)
    last = len(values) - 1
    return [values[round(i * last / (most - 1))] for i in range(most)]


class Tick(NamedTuple):
    at: float  # percent of the axis
    text: str


@dataclass(frozen=True)
class Chart:
    key: str
    title: str
    x_name: str
    y_name: str
    lines: list[Line]
    x_ticks: list[Tick]
    y_ticks: list[Tick]
    data: dict[str, Any]  # what the script gets
    small: bool = False
    legend: list[Line] = field(default_factory=list)
    view: str = ""  # training | evaluation, where a reader may choose


def draw(
    key: str,
    title: str,
    lines: Sequence[Line],
    *,
    x_name: str = "steps",
    y_name: str = "",
    small: bool = False,
    view: str = "",
    y_range: Range | None = None,
    **more: Any,
) -> Chart | None:
    """None if there is nothing to draw. `more` is passed to the script."""
    lines = [line for line in map(_finite, lines) if len(line.x)]
    if not lines:
        return None
    xs = [v for line in lines for v in line.x]
    ys = [v for line in lines for v in (*line.y, *line.low, *line.high, *line.least, *line.most)]
    x_range = (min(0.0, min(xs)), max(xs) if max(xs) > min(0.0, min(xs)) else min(xs) + 1)
    y_range = y_range or _padded(min(ys), max(ys))
    x_marks, y_marks = _marks(*x_range, 4 if small else 6), _marks(*y_range, 3 if small else 5)
    axes = {"x": x_range, "y": y_range}
    paths = [_paths(line, x_range, y_range) for line in lines]
    return Chart(
        key=key,
        title=title,
        x_name=x_name,
        y_name=y_name,
        lines=paths,
        x_ticks=[Tick(_percent(v, x_range), _mark(v)) for v in x_marks],
        y_ticks=[Tick(_percent(v, y_range), _mark(v)) for v in y_marks],
        data={**axes, "name": title, "lines": [_data(line) for line in lines], **more},
        small=small,
        legend=_legend(lines, paths),
        view=view,
    )


def _legend(lines: Sequence[Line], paths: Sequence[Line]) -> list[Line]:
    """One entry for each name, one's own first. A curve of one point is drawn as a dot, and has
    an entry like any other."""
    found: dict[str, Line] = {}
    for kind in ("mean", "reference"):
        for line, shown in zip(lines, paths, strict=True):
            if line.kind == kind:
                twice = line.name in found
                found[line.name] = replace(found[line.name], note="") if twice else shown
    return list(found.values())


def _finite(line: Line) -> Line:
    """Without points that are not finite."""
    keep = [i for i, (x, y) in enumerate(zip(line.x, line.y, strict=True)) if _ok(x) and _ok(y)]
    if len(keep) == len(line.x):
        return line

    def some(column: Sequence[float]) -> list[float]:
        return [column[i] for i in keep] if len(column) else []

    columns: Any = {name: some(getattr(line, name)) for name in _COLUMNS}
    return replace(line, **columns, facts={k: some(v) for k, v in line.facts.items()})


def _ok(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _padded(low: float, high: float) -> Range:
    """Room above and below, and some height for a line that never changes."""
    if high - low <= 1e-9 * max(1.0, abs(high)):
        half = abs(high) * 0.1 or 1.0
        return low - half, high + half
    room = 0.06 * (high - low)
    # People look for zero: an axis just above it starts there.
    bottom = 0.0 if 0 <= low < 3 * room else low - room
    return bottom, high + room


def ticks(low: float, high: float, about: int) -> list[float]:
    """Round numbers inside the range, `about` as many as asked."""
    if not high > low:
        return [low]
    raw = (high - low) / max(1, about)
    power = 10.0 ** math.floor(math.log10(raw))
    size = next((m * power for m in (1, 2, 2.5, 5) if m * power >= raw * 0.999), 10 * power)
    first = math.ceil(low / size - 1e-9)
    return [i * size for i in range(first, math.floor(high / size + 1e-9) + 1)]


def _marks(low: float, high: float, about: int) -> list[float]:
    """Ticks, at least two of them if possible: one shows no scale."""
    tries = (ticks(low, high, about + more) for more in range(8))
    return next((found for found in tries if len(found) > 1), ticks(low, high, about))


def _mark(value: float) -> str:
    text = show_count(round(value, 12) + 0.0)
    if 0 < abs(value) < 1e-3:  # so many zeros do not fit next to the axis
        digits, _, power = f"{value:.3e}".partition("e")
        text = f"{float(digits):g}e{int(power)}"
    return text.replace("-", "−")


def _percent(value: float, span: Range) -> float:
    return round(100 * (value - span[0]) / (span[1] - span[0]), 2)


def _paths(line: Line, xs: Range, ys: Range) -> Line:
    def at(x: float, y: float, digits: int = 1) -> str:
        right = (x - xs[0]) / (xs[1] - xs[0]) * _SPAN
        down = (1 - (y - ys[0]) / (ys[1] - ys[0])) * _SPAN
        return f"{right:.{digits}f} {down:.{digits}f}".replace(".0", "")

    def area(low: Sequence[float], high: Sequence[float]) -> str:
        if not len(low):
            return ""
        there = [at(x, y, 0) for x, y in zip(line.x, high, strict=True)]
        back = [at(x, y, 0) for x, y in zip(line.x, low, strict=True)]
        return f"M{'L'.join(there)}L{'L'.join(reversed(back))}Z"

    digits = 0 if line.kind == "seed" else 1  # thin lines, and most of the page's bytes
    points = [at(x, y, digits) for x, y in zip(line.x, line.y, strict=True)]
    # A dot is a line of no length with a round cap: the page may stretch the plot, not the dots.
    dots = line.kind == "dots" or len(points) == 1
    path = "".join(f"M{p}h0" for p in points) if dots else f"M{'L'.join(points)}"
    kind = "dots" if dots and line.kind != "reference" else line.kind
    band, outer = area(line.low, line.high), area(line.least, line.most)
    return replace(line, kind=kind, path=path, band=band, outer=outer)


def _data(line: Line) -> dict[str, Any]:
    columns = {"x": line.x, "y": line.y, **line.facts}
    data: dict[str, Any] = {"n": line.name, "c": line.colour, "k": line.kind, "t": line.note}
    data |= {"r": line.run} if line.run else {}
    return data | {k: [short(v) for v in column] for k, column in columns.items()}


def short(value: float) -> float | None:
    """Five significant digits; integers unchanged."""
    if not _ok(value):
        return None
    if float(value).is_integer() and abs(value) < 1e15:
        return int(value)
    return float(f"{value:.5g}")
