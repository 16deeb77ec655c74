"""Small files written so that a reader sees the old content or the new, never a part.

Not for checkpoints, which are whole directories (checkpoint.py).
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ludus.errors import LudusError


def sync_directory(path: Path) -> None:
    """Make renames and links inside `path` survive a power cut."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def half_written(path: Path, pid: int) -> Path:
    """Where a process has what is to become `path`; killed meanwhile, it leaves it there."""
    return path.with_name(f".{path.name}.{pid}.tmp")


def write_atomic(path: Path, data: bytes, *, sync: bool = False) -> None:
    """Write beside `path`, then rename over it."""
    temporary = half_written(path, os.getpid())
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            if sync:
                file.flush()
                os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    if sync:
        sync_directory(path.parent)


@contextlib.contextmanager
def writing(what: str, place: Path, fix: str) -> Iterator[None]:
    """What the system refuses becomes E301: `what` went wrong, at the file it names or `place`."""
    try:
        yield
    except OSError as error:
        raise LudusError(
            "E301",
            f"{what}: {error.strerror or error}",
            where=str(error.filename or place),
            fix=fix,
        ) from error


def write_json(path: Path, value: Any, *, sync: bool = False) -> None:
    text = json.dumps(value, indent=1, default=str) + "\n"
    write_atomic(path, text.encode(), sync=sync)


def read_json(path: Path) -> dict[str, Any]:
    """The object in `path`, or {} when it is missing or not (yet) a JSON object."""
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}
