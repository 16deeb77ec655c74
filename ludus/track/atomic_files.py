"""Read and write the files of a run: no links followed, bounded reads, atomic writes.

A run may come from an untrusted source. A link in it could point anywhere, a pipe would block, and
a number of 400 digits fits no float. `checkpoint/` writes checkpoints, which are directories.
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
import threading
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from ludus.errors import LudusError

JSON_LIMIT = 8 << 20  # bytes; in memory valid JSON may take fifty times that
_LIMITS = {"status.json": 1 << 20, "trackers.json": 1 << 20}  # bytes
TEXT_LIMIT = 256 << 20
LINE = 16 << 20  # bytes; ludus writes no longer line
DEPTH = 64  # nesting limit of tables and lists, in JSON and in YAML
_LINK = "it is a symbolic link, and links in a run are not followed"
_DIGITS = 40  # a run writes no longer integer


def open_file(path: Path, flags: int, *, shared: bool = True) -> int:
    """`os.open` for regular files only: raise OSError for a link, a pipe, a device, a directory,
    and, with shared=False, for a file that has a second name (a hard link)."""
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
    """Open a file without a buffer; each write goes to its end."""
    return open(open_file(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), "ab", buffering=0)


def open_write(path: Path) -> io.BufferedWriter:
    """Open an empty file; create it if it is missing."""
    fd = open_file(path, os.O_WRONLY | os.O_CREAT)
    os.ftruncate(fd, 0)
    return open(fd, "wb")


def make_folder(path: Path) -> Path:
    """Create a folder of a run if it is missing. Raise OSError if a link is in its place."""
    try:
        path.mkdir()
    except FileExistsError:
        check_folder(path)
    return path


def check_folder(path: Path) -> None:
    """Raise OSError if a link or a file is in the place of a folder of a run."""
    mode = path.lstat().st_mode
    if stat.S_ISLNK(mode):
        raise _refused(path, _LINK)
    if not stat.S_ISDIR(mode):
        raise _refused(path, "it is not a directory")


def has_folder(path: Path) -> bool:
    """Whether `path` is a folder and not a link to one."""
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
    """Return the last `most` bytes of a text file; "" if it cannot be read."""
    with contextlib.suppress(OSError), open_read(path) as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - most))
        return file.read(most).decode("utf-8", "replace")
    return ""


def first_numbers(path: Path) -> set[int]:
    """Return the steps in an episodes.csv or evals.csv."""
    parts = (line.partition(b",") for line in whole_lines(path))
    numbers = (first for first, comma, _ in parts if comma and len(first) <= 18)
    return {int(number) for number in numbers if number.isdigit()}


def whole_lines(path: Path) -> Iterator[bytes]:
    """Yield the lines of an untrusted file without their newlines; none if it cannot be read.
    Stop before an incomplete last line and before a line of more than `LINE` bytes."""
    with contextlib.suppress(OSError), open_read(path) as file:
        while (line := file.readline(LINE)).endswith(b"\n"):
            yield line[:-1]


def csv_rows(lines: Iterable[str], names: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Return the rows of an untrusted CSV file, up to the first invalid one."""
    rows = []
    with contextlib.suppress(csv.Error):
        for row in csv.DictReader(lines, fieldnames=names):
            rows.append(row)
    return rows


def parse_json(data: bytes | str, *, finite: bool = True) -> Any:
    """Parse untrusted JSON. Raise ValueError for deep nesting or very long numbers. With `finite`,
    numbers that are not finite become None."""
    options: dict[str, Any] = {"parse_float": _float, "parse_constant": lambda _: None}
    try:
        value = json.loads(data, parse_int=_integer, **(options if finite else {}))
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
    """Raise ValueError if tables and lists are nested more than `DEPTH` levels deep."""
    level, depth = [value], 0
    while level:
        if depth > DEPTH:
            raise ValueError("it is nested too deeply")
        tables = [list(x.values()) for x in level if isinstance(x, dict)]
        lists = [x for x in level if isinstance(x, list)]
        level = [y for x in (*tables, *lists) for y in x if isinstance(y, dict | list)]
        depth += 1


def load_json(path: Path) -> dict[str, Any]:
    """Load the JSON object in `path`. OSError and ValueError say why it cannot be read."""
    value = parse_json(read_bytes(path, _LIMITS.get(path.name, JSON_LIMIT)))
    if not isinstance(value, dict):
        raise ValueError("it holds no JSON object")
    return value


def read_json(path: Path) -> dict[str, Any]:
    """Load the JSON object in `path`; {} if it is missing or is not a JSON object."""
    try:
        return load_json(path)
    except (OSError, ValueError):
        return {}


def problem(path: Path) -> str:
    """Explain why an existing JSON file cannot be read; "" if it can."""
    try:
        load_json(path)
    except FileNotFoundError:
        return ""
    except (OSError, ValueError) as error:
        return f"{path.name}: {reason(error)}"
    return ""


def reason(error: Exception) -> str:
    """Describe an error in one line."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    if isinstance(error, UnicodeError):
        return "it is not UTF-8 text"
    return (
        f"it is not JSON ({error.msg})" if isinstance(error, json.JSONDecodeError) else str(error)
    )


def sync_path(path: Path) -> None:
    """Make a file, or the renames and links inside a directory, survive a power cut."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def half_written(path: Path, pid: int, thread: str = "") -> Path:
    """Return the temporary file in which a process writes `path`. A killed process leaves it."""
    return path.with_name(f".{path.name}{thread}.{pid}.tmp")


def write_atomic(path: Path, data: bytes, *, sync: bool = False) -> None:
    """Write a temporary file, then rename it to `path`. A link at `path` is not followed."""
    # The watchdog's thread may write status.json while the main thread does.
    other = threading.current_thread() is not threading.main_thread()
    thread = f".{threading.get_ident()}" if other else ""
    temporary = half_written(path, os.getpid(), thread)
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
        sync_path(path.parent)


@contextlib.contextmanager
def writing(what: str, place: Path | str, fix: str, *, exact: bool = False) -> Iterator[None]:
    """Turn an OSError into E301 with the message `what`, for the file it names or `place`; with
    `exact`, for `place` in any case."""
    try:
        yield
    except OSError as error:
        where = str(place if exact else error.filename or place)
        what = f"{what}: {error.strerror or error}"
        raise LudusError("E301", what, where=where, fix=fix) from error


def write_json(path: Path, value: Any, *, sync: bool = False) -> None:
    text = json.dumps(value, indent=1, default=str) + "\n"
    write_atomic(path, text.encode(), sync=sync)
