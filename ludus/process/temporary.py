"""Temporary folders of `multiprocessing`: marked while their process lives, removed afterwards.

The mark is a locked file. The kernel drops the lock when its process ends, however it ends. A
folder without a mark belongs to another program and is never touched.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import tempfile
from contextlib import suppress
from multiprocessing import util
from pathlib import Path

MARK = "ludus.lock"
_marked: set[tuple[int, str]] = set()  # process and folder; the open files stay open


def mark_temporary() -> None:
    """Mark the folder of this process, which it makes if there is none yet. A child uses that of
    its parent, whose mark stays: the child may end first."""
    folder = util.get_temp_dir()
    if (os.getpid(), folder) in _marked:
        return
    half = Path(folder, f".{MARK}.{os.getpid()}")
    _marked.add((os.getpid(), folder))
    with suppress(OSError):  # no locks there: then it is not swept
        handle = os.open(half, os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        try:
            os.link(half, Path(folder, MARK))  # locked before anybody can find it
        except FileExistsError:
            os.close(handle)
        half.unlink()


def sweep_temporary() -> list[Path]:
    """Remove marked folders whose process is dead. Returns them."""
    return [p for p in Path(tempfile.gettempdir()).glob("pymp-*") if _is_ours(p) and _removed(p)]


def _is_ours(folder: Path) -> bool:
    try:
        found = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()


def _removed(folder: Path) -> bool:
    try:
        handle = os.open(folder / MARK, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)
        return True
    except OSError:  # its process lives
        return False
    finally:
        os.close(handle)
