"""The training return over time: mean, deviation, minimum and maximum of the last 100 episodes.

Read from episodes.csv, without episodes that a checkpoint or an error cut short.
"""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np

from ludus.track.atomic_files import open_read

WINDOW = 100  # episodes, whatever eval.best_window says: curves are to be compared
POINTS = 240  # of a run's curve
_CUT = (b"checkpoint", b"error")  # ends of episodes that have no score
_WHOLE = 8_000_000  # bytes; of a longer file only blocks at even distances are read
_TAILS = (1 << 18, 64 << 20)  # bytes read for the last window; more if many episodes were cut
_MAX_STEP, _LARGEST = 1e15, 1e100  # larger steps, seconds and scores are damage
_SAMPLE = 1 << 16  # bytes at the end of a file that tell how long its lines are


class Window(NamedTuple):
    """The last episodes before `step`."""

    step: int
    seconds: float
    mean: float
    std: float  # of the sample, n - 1
    least: float
    most: float
    episodes: int  # in the window


def read_windows(path: Path, window: int = WINDOW, points: int = POINTS) -> list[Window]:
    """About `points` windows, evenly spaced in steps; fewer while there are fewer episodes."""
    try:
        with open_read(path) as file:
            size = file.seek(0, 2)
            file.seek(0)
            if size <= _WHOLE:
                return _windows(_parse(file.read()), window, points)
            found = []
            block = _block(file, size, window)
            for i in range(1, points + 1):
                end = size * i // points
                file.seek(max(0, end - block))
                lines = file.read(block).partition(b"\n")[2]
                found += _windows(_parse(lines[: lines.rfind(b"\n") + 1]), window, 1)
            return found
    except OSError:
        return []


def last_window(path: Path, window: int = WINDOW) -> list[Window]:
    """The last window alone, or none before the first episode: only the end of the file is read."""
    found = _parse(b"")
    try:
        with open_read(path) as file:
            size = file.seek(0, 2)
            for length in _TAILS:
                file.seek(max(0, size - length))
                text = file.read(length)
                found = _parse(text if size <= length else text.partition(b"\n")[2])
                if size <= length or len(found) >= window:
                    break
    except OSError:
        return []
    return _windows(found, window, 1)


def _block(file: BinaryIO, size: int, window: int) -> int:
    """Bytes that hold a window, even if every other episode was cut."""
    file.seek(max(0, size - _SAMPLE))
    lines = file.read(_SAMPLE).count(b"\n")
    return 2 * (window + 1) * _SAMPLE // max(1, lines)


def _parse(text: bytes) -> np.ndarray:
    """[episodes, 3]: step, seconds and score, by step. A line is step, slot, score, length, end,
    seconds, info: only the last may hold commas of its own."""
    rows = []
    for line in text[: text.rfind(b"\n") + 1].splitlines():
        cells = line.split(b",", 6)
        if len(cells) < 6 or cells[4] in _CUT:
            continue
        try:
            row = (int(cells[0]), float(cells[5]), float(cells[2]))
        except ValueError:  # the header, or a score that was not finite
            continue
        if abs(row[0]) < _MAX_STEP and abs(row[1]) < _LARGEST and abs(row[2]) < _LARGEST:
            rows.append(row)
    rows.sort(key=lambda row: row[0])  # already sorted unless the file was edited
    return np.array(rows, float).reshape(-1, 3)


def _windows(found: np.ndarray, window: int, points: int) -> list[Window]:
    if not len(found):
        return []
    step = found[:, 0]
    wanted = np.linspace(step[0], step[-1], points) if points > 1 else step[-1:]
    result = []
    # The last episode at or before each wanted step; several may share one.
    for end in np.unique(np.searchsorted(step, wanted, side="right")).tolist():
        scores = np.ascontiguousarray(found[max(0, end - window) : end, 2])
        std = float(scores.std(ddof=1)) if len(scores) > 1 else 0.0
        mean, least, most = (float(x) for x in (scores.mean(), scores.min(), scores.max()))
        last = int(step[end - 1]), float(found[end - 1, 1])
        result.append(Window(*last, mean, std, least, most, len(scores)))
    return result
