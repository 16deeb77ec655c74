"""A run's files: opened without following links, read within limits, written as a whole.

A run may come from a stranger. A link in it could lead anywhere, a pipe would block, a number of
400 digits fits no float. Not for checkpoints, which are whole directories (checkpoint.py).
"""

from __future__ import annotations

import contextlib
import csv
import errno
import io
import json
import math
import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from ludus.errors import LudusError

JSON_LIMIT = 8 << 20  # bytes; in memory valid JSON may take fifty times that
_LIMITS = {"status.json": 1 << 20, "trackers.json": 1 << 20}  # of files that are small
TEXT_LIMIT = 256 << 20
LINE = 16 << 20  # bytes; no line of ours is longer
DEPTH = 64  # tables and lists inside each other, in JSON as in YAML
_LINK = "it is a symbolic link, and links in a run are not followed"
_DIGITS = 40  # of the longest integer that a run writes


def open_file(path: Path, flags: int, *, shared: bool = True) -> int:
    """`os.open` for a regular file alone: OSError for a link, a pipe, a device, a directory, and
    for a file with a second name (a hard link) if it must not be shared."""
    safe = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        fd = os.open(path, flags | safe, 0o666)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise _refused(path, _LINK) from None
        if error.errno == errno.ENXIO:
            raise _refused(path, "it is not a regular file") from None
        raise
    found = os.fstat(fd)
    regular = stat.S_ISREG(found.st_mode)
    if not regular or (found.st_nlink > 1 and not shared):
        os.close(fd)
        why = "it has a second name (a hard link)" if regular else "it is not a regular file"
        raise _refused(path, why)
    return fd


def _refused(path: Path, why: str) -> OSError:
    return OSError(errno.EINVAL, why, str(path))


def open_read(path: Path) -> io.BufferedReader:
    return open(open_file(path, os.O_RDONLY), "rb")


def open_append(path: Path) -> io.FileIO:
    """Without a buffer: each write goes to the end of the file."""
    return open(open_file(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), "ab", buffering=0)


def open_write(path: Path) -> io.BufferedWriter:
    """An empty file, made if it is not there."""
    fd = open_file(path, os.O_WRONLY | os.O_CREAT)
    os.ftruncate(fd, 0)
    return open(fd, "wb")


def make_folder(path: Path) -> Path:
    """A folder of a run, made if it is not there: OSError where a link stands in its place."""
    try:
        path.mkdir()
    except FileExistsError:
        check_folder(path)
    return path


def check_folder(path: Path) -> None:
    """OSError where a link or a file stands in place of a folder of a run."""
    mode = path.lstat().st_mode
    if stat.S_ISLNK(mode):
        raise _refused(path, _LINK)
    if not stat.S_ISDIR(mode):
        raise _refused(path, "it is not a directory")


def has_folder(path: Path) -> bool:
    """Whether a run has a folder of its own there."""
    try:
        return stat.S_ISDIR(path.lstat().st_mode)
    except OSError:
        return False


def read_bytes(path: Path, limit: int = TEXT_LIMIT) -> bytes:
    with open_read(path) as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise OSError(errno.EFBIG, f"it is larger than {limit:,} bytes", str(path))
    return data


def read_text(path: Path, limit: int = TEXT_LIMIT) -> str:
    return read_bytes(path, limit).decode("utf-8", "replace")


def read_tail(path: Path, most: int = 1 << 20) -> str:
    """The end of a text for people; nothing where it cannot be read."""
    with contextlib.suppress(OSError), open_read(path) as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - most))
        return file.read(most).decode("utf-8", "replace")
    return ""


def first_numbers(path: Path) -> set[int]:
    """The steps of an episodes.csv or evals.csv."""
    parts = (line.partition(b",") for line in whole_lines(path))
    return {int(first) for first, comma, _ in parts if comma and _is_count(first)}


def _is_count(digits: bytes) -> bool:
    return digits.isdigit() and len(digits) <= 18


def whole_lines(path: Path) -> Iterator[bytes]:
    """The lines of a file that may hold anything, without their ends; none where it cannot be read.
    A torn last line is left out, and what comes after a line longer than any of ours."""
    with contextlib.suppress(OSError), open_read(path) as file:
        while (line := file.readline(LINE)).endswith(b"\n"):
            yield line[:-1]


def csv_rows(lines: Iterable[str], names: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """The rows of a CSV file that may hold anything, up to the first that is no CSV."""
    rows = []
    with contextlib.suppress(csv.Error):
        for row in csv.DictReader(lines, fieldnames=names):
            rows.append(row)
    return rows


def parse_json(data: bytes | str, *, finite: bool = True) -> Any:
    """JSON from a file that may hold anything; ValueError for what is too deep or too long a
    number. Where all should be finite, numbers that are not become None."""
    how: dict[str, Any] = {"parse_float": _float, "parse_constant": lambda _: None}
    try:
        value = json.loads(data, parse_int=_integer, **(how if finite else {}))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    check_depth(value)
    return value


def _integer(digits: str) -> int:
    if len(digits) > _DIGITS:
        raise ValueError(f"it holds a number of {len(digits)} digits")
    return int(digits)


def _float(digits: str) -> float | None:
    value = float(digits)
    return value if math.isfinite(value) else None


def check_depth(value: Any) -> None:
    """ValueError for tables and lists that lie deeper inside each other than any setting does."""
    level, depth = [value], 0
    while level:
        if depth > DEPTH:
            raise ValueError("it is nested too deeply")
        tables = [list(x.values()) for x in level if isinstance(x, dict)]
        lists = [x for x in level if isinstance(x, list)]
        level = [y for x in (*tables, *lists) for y in x if isinstance(y, dict | list)]
        depth += 1


def load_json(path: Path) -> dict[str, Any]:
    """The object in `path`; OSError or ValueError say why there is none."""
    value = parse_json(read_bytes(path, _LIMITS.get(path.name, JSON_LIMIT)))
    if not isinstance(value, dict):
        raise ValueError("it holds no JSON object")
    return value


def read_json(path: Path) -> dict[str, Any]:
    """The object in `path`, or {} when it is missing or not (yet) a JSON object."""
    try:
        return load_json(path)
    except (OSError, ValueError):
        return {}


def problem(path: Path) -> str:
    """Why a JSON file that is there cannot be read, in a few words; empty if it can."""
    try:
        load_json(path)
    except FileNotFoundError:
        return ""
    except (OSError, ValueError) as error:
        return f"{path.name}: {reason(error)}"
    return ""


def reason(error: Exception) -> str:
    """What went wrong, in one line."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    if isinstance(error, UnicodeError):
        return "it is not UTF-8 text"
    return (
        f"it is not JSON ({error.msg})" if isinstance(error, json.JSONDecodeError) else str(error)
    )


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
    """Write beside `path`, then rename over it: a link at `path` is replaced, not followed."""
    temporary = half_written(path, os.getpid())
    temporary.unlink(missing_ok=True)
    try:
        with open_write(temporary) as file:
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
