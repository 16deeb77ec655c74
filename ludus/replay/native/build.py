"""C sources as a library, compiled by this machine's compiler and kept for the next process.

What was kept is loaded as code, so it is trusted only where nobody else can have written it, and
only with the checksum in its name: a file that is cut off ends the process that loads it (SIGBUS).
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shlex
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

SECONDS = 15  # for the compiler, which needs half of one
Bind = Callable[[ctypes.CDLL], ctypes.CDLL]


class NotCompiledError(Exception):
    """Says why in one line."""


def load(sources: Sequence[Path], flags: Sequence[str], bind: Bind) -> tuple[ctypes.CDLL, str]:
    """The library with its functions bound, and where it is kept; or NotCompiledError."""
    try:
        command = shlex.split(os.environ.get("CC") or "cc") or ["cc"]
        folder_and_key = _place(sources, flags, command)
        for kept in _sound(*folder_and_key) if folder_and_key is not None else ():
            with suppress(OSError, AttributeError):  # of another C library: made anew
                return bind(ctypes.CDLL(str(kept))), str(kept)
        if shutil.which(command[0]) is None:
            raise NotCompiledError(f"no C compiler ({command[0]})")
        folder = Path(tempfile.mkdtemp(prefix="ludus-"))
        try:
            made = folder / "replay.so"
            _run([*command, *flags, "-o", str(made), *map(str, sources)])
            place = None if folder_and_key is None else _keep(made, *folder_and_key)
            if place is not None:
                return bind(ctypes.CDLL(str(place))), str(place)
            where = "for this process: no folder of ours to keep it in"
            return bind(ctypes.CDLL(str(made))), where
        finally:
            shutil.rmtree(folder, ignore_errors=True)  # what is loaded stays loaded
    except NotCompiledError:
        raise
    except Exception as error:  # whatever it is, numpy can do without
        raise NotCompiledError(_last_line(str(error)) or type(error).__name__) from error


def _place(
    sources: Sequence[Path], flags: Sequence[str], command: list[str]
) -> tuple[Path, str] | None:
    """Where it is kept, and its key: another one for other sources, compilers, machines and C
    libraries."""
    machine = (platform.system(), platform.machine(), *platform.libc_ver())
    known = (*(source.read_bytes() for source in sources), *flags, *command, *machine)
    key = hashlib.sha256(repr(known).encode()).hexdigest()[:16]
    try:
        home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    except RuntimeError:  # a user without a home, as in some containers
        return None
    return Path(home) / "ludus", key


def _named(folder: Path, key: str, data: bytes) -> Path:
    return folder / f"replay-{key}-{hashlib.sha256(data).hexdigest()[:32]}.so"


def _sound(folder: Path, key: str) -> list[Path]:
    """The file kept under that key, if it belongs to us and is intact. A damaged one is removed."""
    found = []
    for path in sorted(folder.glob(f"replay-{key}-*.so")):
        with suppress(OSError):
            if not ours_alone(path):
                continue
            if _named(folder, key, path.read_bytes()) == path:
                found.append(path)
            else:
                path.unlink()
    return found


def ours_alone(path: Path) -> bool:
    """Whether file and folder belong to us and nobody else may write to them."""
    if not hasattr(os, "geteuid"):
        return True
    states = (path.stat(), path.parent.stat())
    return all(s.st_uid == os.geteuid() and not s.st_mode & 0o022 for s in states)


def _keep(made: Path, folder: Path, key: str) -> Path | None:
    """Put it where the next process looks, if that is possible; never half of it."""
    data = made.read_bytes()
    path = _named(folder, key, data)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle, copy = tempfile.mkstemp(".so", "making-", folder)
        try:
            with open(handle, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(copy, path)  # another process that compiles it makes the same
            _sync_folder(folder)
        finally:
            Path(copy).unlink(missing_ok=True)
        return path if ours_alone(path) else None
    except OSError:
        return None


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _run(words: list[str]) -> None:
    """A compiler that hangs is ended with all that it started."""
    with subprocess.Popen(
        words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, errors="replace", start_new_session=True,
    ) as process:  # fmt: skip
        try:
            said, _ = process.communicate(timeout=SECONDS)
        except BaseException as error:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            if isinstance(error, subprocess.TimeoutExpired):
                raise NotCompiledError(f"{words[0]} did not end within {SECONDS} s") from error
            raise
    if process.returncode:
        raise NotCompiledError(_last_line(said) or f"{words[0]} ended with {process.returncode}")


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1] if lines else ""
