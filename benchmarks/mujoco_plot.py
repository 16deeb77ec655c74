"""Writes what mujoco_peers.py recorded into the documentation: the table of
docs/continuous-control.md and the curves in docs/images/mujoco-curves.svg. Measures nothing."""

from __future__ import annotations

import statistics
from typing import Any

from mujoco_peers import OURS, STEPS, THEIRS, table
from peers import ROOT

PAGE = ROOT / "docs" / "continuous-control.md"
IMAGE = ROOT / "docs" / "images" / "mujoco-curves.svg"
BEGIN, END = "<!-- table -->", "<!-- end of table -->"
COLORS = {OURS: "#2563eb", THEIRS: "#c2410c"}
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 420, 250, 56, 16, 40, 40
Row = dict[str, Any]


def text(x: float, y: float, words: str, anchor: str = "middle", color: str = "#444") -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}" fill="{color}">{words}</text>'


def polyline(points: list[tuple[float, float]], color: str, width: float, opacity: float) -> str:
    places = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return (
        f'<polyline points="{places}" fill="none" stroke="{color}" '
        f'stroke-width="{width}" stroke-opacity="{opacity}"/>'
    )


def panel(rows: list[Row], task: str, left: float, top: float) -> list[str]:
    """One task: a pale line for each seed, a strong one for the mean of seeds at equal points."""
    mine = [row for row in rows if row["task"] == task]
    scores = [score for row in mine for _, score in row["curve"]] or [0.0, 1.0]
    low, high = min(0.0, *scores), max(1.0, *scores)

    def place(point: tuple[float, float]) -> tuple[float, float]:
        x = left + LEFT + (WIDTH - LEFT - RIGHT) * point[0] / STEPS[task]
        return x, top + TOP + (HEIGHT - TOP - BOTTOM) * (high - point[1]) / (high - low)

    parts = [text(left + WIDTH / 2, top + 18, f"{task}, greedy score of 5 episodes")]
    for score in (low, (low + high) / 2, high):
        (x1, y), (x2, _) = place((0, score)), place((STEPS[task], score))
        parts.append(f'<path d="M{x1:.1f},{y:.1f} L{x2:.1f},{y:.1f}" stroke="#ddd"/>')
        parts.append(text(x1 - 6, y + 4, f"{score:,.0f}", "end"))
    for share in (0.0, 0.5, 1.0):
        x, y = place((share * STEPS[task], low))
        parts.append(text(x, y + 18, f"{share * STEPS[task] / 1000:.0f}k"))
    for system, color in COLORS.items():
        curves = [row["curve"] for row in mine if row["system"] == system]
        parts += [polyline([place(p) for p in curve], color, 1, 0.35) for curve in curves]
        middle = [
            (statistics.mean(p[0] for p in at), statistics.mean(p[1] for p in at))
            for at in zip(*curves, strict=False)  # a curve may have a point more
        ]
        parts += [polyline([place(p) for p in middle], color, 2.5, 1.0)] if middle else []
    return parts


def draw(rows: list[Row]) -> str:
    width, height = 2 * WIDTH, 2 * HEIGHT + 24
    parts = []
    for i, task in enumerate(STEPS):
        parts += panel(rows, task, (i % 2) * WIDTH, 24 + (i // 2) * HEIGHT)
    for i, (system, color) in enumerate(COLORS.items()):
        parts.append(text(width / 2 + (2 * i - 1) * 80, 16, system, color=color))
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" font-family="sans-serif" font-size="12">'
    )
    back = f'<rect width="{width}" height="{height}" fill="white"/>'
    return "\n".join([head, back, *parts, "</svg>\n"])


def write_page(rows: list[Row]) -> None:
    page = PAGE.read_text(encoding="utf-8")
    before, rest = page.split(BEGIN)
    after = rest.split(END)[1]
    PAGE.write_text(f"{before}{BEGIN}\n{chr(10).join(table(rows))}\n{END}{after}", encoding="utf-8")
    IMAGE.write_text(draw(rows), encoding="utf-8")
