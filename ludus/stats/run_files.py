"""Read the files of a run, whatever they hold, without torch or configuration classes.

The amount of data is bounded, however long the run: a large file is sampled at even distances.
"""

from __future__ import annotations

import contextlib
import math
import os
from pathlib import Path
from typing import Any, NamedTuple

from ludus.errors import LudusError
from ludus.settings.yaml import read_file
from ludus.track.atomic_files import has_folder, open_read, parse_json, read_json
from ludus.track.run_dir.rundir import RunDir

_LARGEST = 1e100  # no number of a run is larger
WHOLE = 6_000_000  # bytes; a longer file of lines is sampled
_LINE = 1 << 16  # maximum bytes of a line of a sampled file
_VIDEOS = {".mp4": "video/mp4", ".webm": "video/webm", ".gif": "image/gif"}


class Video(NamedTuple):
    path: Path
    media_type: str
    size: int  # bytes


def number(value: Any) -> float | None:
    """A finite number, or None: files may be of another version, or edited by hand."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        found = float(value)
    except (ValueError, OverflowError):
        return None
    return found if abs(found) < _LARGEST else None  # false for nan and inf


def integer(value: Any) -> int | None:
    found = number(value)
    return None if found is None else int(found)


def table(tree: Any, name: str) -> dict[str, Any]:
    """A table inside a file; an empty one if the file holds something else there."""
    part = tree.get(name) if isinstance(tree, dict) else None
    return part if isinstance(part, dict) else {}


def read_settings(run: RunDir) -> tuple[dict[str, Any], str]:
    """config.yaml, and why it cannot be read. A missing file is no problem: the run may have been
    cut off while its directory was made."""
    try:
        return read_file(run.config).tree, ""
    except LudusError as error:
        there = os.path.lexists(run.config)
        return {}, error.what.replace(str(run.config), run.config.name) if there else ""


def read_lines(path: Path, limit: int | None, newest: int | None = None) -> list[dict[str, Any]]:
    """Complete JSON lines: about `limit` at even distances and the last, or the `newest` ones."""
    lines = sampled_lines(path) if newest is None else tail_lines(path, newest)
    stride = max(1, math.ceil(len(lines) / limit)) if limit else 1
    found = []
    for line in lines[(len(lines) - 1) % stride :: stride]:
        with contextlib.suppress(ValueError):
            found.append(parse_json(line))
    return [value for value in found if isinstance(value, dict)]


def sampled_lines(path: Path, parts: int = 1_500) -> list[bytes]:
    """All complete lines of a file; of a large file one line per part, and the last."""
    try:
        with open_read(path) as file:
            size = file.seek(0, 2)
            file.seek(0)
            if size <= WHOLE:
                return file.read().split(b"\n")[:-1]
            found = [file.readline(_LINE)]
            for i in range(1, parts):
                file.seek(size * i // parts)
                file.readline(_LINE)  # skip the rest of a line
                found.append(file.readline(_LINE))
    except OSError:
        return []
    return [*(line for line in found if line.endswith(b"\n")), *tail_lines(path, 1)]


def tail_lines(path: Path, count: int) -> list[bytes]:
    try:
        with open_read(path) as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - WHOLE))
            return file.read().split(b"\n")[:-1][-count:]
    except OSError:
        return []


def evaluation_files(folder: Path) -> list[tuple[Path, dict[str, Any]]]:
    """The files of a run's eval/ and their contents, oldest first. Unreadable ones are skipped."""
    found = []
    for path in sorted(folder.glob("*.json")) if has_folder(folder) else ():
        with contextlib.suppress(OSError):
            found.append((path.lstat().st_mtime, path))
    return [(path, read_json(path)) for _, path in sorted(found)]


def video_files(folder: Path) -> list[Video]:
    """Without hidden files, which are being written, and without unreadable ones."""
    found = []
    for path in sorted(folder.rglob("*")) if has_folder(folder) else []:
        kind = _VIDEOS.get(path.suffix.lower())
        if not kind or any(p.startswith(".") for p in path.relative_to(folder).parts):
            continue
        with contextlib.suppress(OSError):
            if path.is_file() and not path.is_symlink():
                found.append(Video(path, kind, path.stat().st_size))
    return found
