"""Draw docs/images/pong-curves.svg, the learning curves in the README, from committed measurements.

The curves are the result rows of benchmarks/results/atari_learning.jsonl. The gif next to them was
recorded with `ludus record agent:lunarlander-dqn --gif`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / "benchmarks" / "results" / "atari_learning.jsonl"
IMAGE = ROOT / "docs" / "images" / "pong-curves.svg"
COLORS = {"ppo": "#2563eb", "dqn": "#c2410c"}
GAME, FRAMES = "pong", 10_000_000
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 560, 340, 48, 92, 34, 42
SCORES = (-21, 21)


def result_rows() -> list[dict]:
    """Runs of 10M frames on Pong that count as results, not as trials."""
    rows = [json.loads(line) for line in DATA.read_text(encoding="utf-8").splitlines()]
    return [
        row
        for row in rows
        if row.get("kind") == "result" and row["game"] == GAME and row["frames"] == FRAMES
    ]


def place(millions: float, score: float) -> str:
    """Pixel coordinates of one point."""
    low, high = SCORES
    x = LEFT + (WIDTH - LEFT - RIGHT) * millions * 1e6 / FRAMES
    y = TOP + (HEIGHT - TOP - BOTTOM) * (high - score) / (high - low)
    return f"{x:.1f},{y:.1f}"


def text(x: float, y: float, words: str, anchor: str = "middle", color: str = "#444") -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}" fill="{color}">{words}</text>'


def axes() -> list[str]:
    parts = []
    for score in (-20, -10, 0, 10, 20):
        (x1, y), (x2, _) = (place(m, score).split(",") for m in (0, FRAMES / 1e6))
        parts.append(f'<path d="M{x1},{y} L{x2},{y}" stroke="#ddd"/>')
        parts.append(text(LEFT - 6, float(y) + 4, str(score), "end"))
    for millions in (0, 2, 4, 6, 8, 10):
        x = float(place(millions, 0).split(",")[0])
        parts.append(text(x, HEIGHT - BOTTOM + 18, f"{millions}M"))
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(text(middle, HEIGHT - 8, "emulator frames"))
    parts.append(text(middle, 20, "Pong, training score over the last million frames"))
    return parts


def draw() -> str:
    lines, ends = [], []
    for row in result_rows():
        color = COLORS[row["algo"]]
        points = " ".join(place(millions, score) for millions, score, _ in row["curve"])
        lines.append(f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="2"/>')
        x, y = map(float, points.split()[-1].split(","))
        ends.append((y, x + 6, f"{row['algo']}, seed {row['seed']}", color))
    labels, above = [], 0.0
    for y, x, words, color in sorted(ends):
        above = max(y, above + 14)  # labels of close curves do not overlap
        labels.append(text(x, above + 4, words, "start", color))
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
            f'width="{WIDTH}" height="{HEIGHT}" font-family="sans-serif" font-size="12">',
            f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
            *axes(),
            *lines,
            *labels,
            "</svg>\n",
        ]
    )


def main() -> int:
    IMAGE.write_text(draw(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
