"""One run per directory: a LOCK file held with flock and naming its holder.

The kernel drops the lock when its holder dies, so the next run can take it. It does not lock
between threads of one process.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from ludus.errors import LudusError
from ludus.track.atomic_files import open_file, parse_json, read_json, writing

_TRIES, _PAUSE = 5, 0.05  # a reader probing the lock holds it for microseconds
_FOREIGN_HEARTBEAT = 60.0  # seconds; flock does not always cross hosts, a fresh heartbeat does


@dataclass(frozen=True)
class Holder:
    """The process that holds a run directory."""

    pid: int
    host: str
    started: str  # local time, for messages

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}, started {self.started}"


class RunLock:
    """`with RunLock(run_directory): ...`; a second holder gets E302."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "LOCK"
        self._fd: int | None = None

    def acquire(self) -> RunLock:
        if self._fd is not None:
            return self
        fix = "check its permissions, or choose another place with  --runs-dir DIR"
        with writing("cannot lock the run directory", self.path, fix):
            fd = open_file(self.path, os.O_RDWR | os.O_CREAT, shared=False)
        try:
            if not _try_lock(fd, fcntl.LOCK_EX):
                raise _refusal(self.path, _parse(os.pread(fd, 4096, 0)))
            if (foreign := _foreign_holder(self.path, os.pread(fd, 4096, 0))) is not None:
                raise _refusal(self.path, foreign)
            me = Holder(os.getpid(), socket.gethostname(), time.strftime("%Y-%m-%d %H:%M:%S"))
            os.ftruncate(fd, 0)
            os.pwrite(fd, (json.dumps(asdict(me)) + "\n").encode(), 0)
        except BaseException:
            os.close(fd)
            raise
        self._fd = fd
        return self

    def release(self) -> None:
        """Empty the file and unlock it. Removing it would race with the next holder."""
        if self._fd is None:
            return
        fd, self._fd = self._fd, None
        os.ftruncate(fd, 0)
        os.close(fd)

    def __enter__(self) -> RunLock:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


def holder(directory: Path) -> Holder | None:
    """Return the current holder of the directory, or None."""
    path = directory / "LOCK"
    try:
        fd = open_file(path, os.O_RDONLY)
    except OSError:
        return None
    try:
        text = os.pread(fd, 4096, 0)
        if _try_lock(fd, fcntl.LOCK_SH, tries=1):
            return _foreign_holder(path, text)
        return _parse(text) or Holder(0, "unknown", "unknown")
    finally:
        os.close(fd)


def _try_lock(fd: int, kind: int, tries: int = _TRIES) -> bool:
    for attempt in range(tries):
        try:
            fcntl.flock(fd, kind | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if attempt + 1 < tries:
                time.sleep(_PAUSE)
    return False


def _parse(text: bytes) -> Holder | None:
    try:
        value = parse_json(text)
        pid = int(value["pid"])
        return Holder(pid if 0 <= pid < 1 << 31 else 0, str(value["host"]), str(value["started"]))
    except (ValueError, KeyError, TypeError):
        return None


def _foreign_holder(path: Path, text: bytes) -> Holder | None:
    """Return a holder on another host whose heartbeat is recent, or None."""
    who = _parse(text)
    if who is None or who.host == socket.gethostname():
        return None
    beat = read_json(path.with_name("status.json")).get("heartbeat", 0.0)
    fresh = isinstance(beat, int | float) and abs(time.time() - beat) < _FOREIGN_HEARTBEAT
    return who if fresh else None


def _refusal(path: Path, who: Holder | None) -> LudusError:
    return LudusError(
        "E302",
        f"the run directory is in use by {who or 'another process'}",
        where=str(path.parent),
        why="the same run was started twice",
        fix=f"wait for it,  ludus stop {path.parent.name}  , or use another  --run NAME",
    )
