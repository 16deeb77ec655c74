"""TryLock of hogwild workers: when it is taken, and systems that refuse locks."""

from __future__ import annotations

import errno
import fcntl
import os

import pytest

from ludus.errors import LudusError
from ludus.fleets.hogwild.shared_parameters import TryLock


def refusing(monkeypatch, number: int) -> None:
    def refused(file, how):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "lockf", refused)


@pytest.mark.parametrize("number", [errno.EACCES, errno.EAGAIN])
def test_what_somebody_else_has_is_not_taken(monkeypatch, number) -> None:
    lock = TryLock()
    refusing(monkeypatch, number)
    assert lock.acquire() is False


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOLCK, errno.EPERM])
def test_a_system_without_locks_is_refused_before_anything_starts(monkeypatch, number) -> None:
    """Else nobody would ever get the lock, and targets would never be copied."""
    lock = TryLock()
    refusing(monkeypatch, number)
    for refused in (lock.acquire, TryLock):
        with pytest.raises(LudusError) as caught:
            refused()
        assert caught.value.code == "E104" and os.strerror(number) in caught.value.what
        assert "run.fleet=inline" in caught.value.fix


def test_memory_is_locked_where_there_is_some(monkeypatch, tmp_path) -> None:
    """The place for temporary files may be a network disk without locks, or full."""
    made = []

    def memory(name):
        made.append(os.open(tmp_path / name, os.O_RDWR | os.O_CREAT))
        return made[-1]

    monkeypatch.setattr(os, "memfd_create", memory, raising=False)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "nowhere"))
    lock = TryLock()
    assert [lock.file] == made and lock.acquire()
    lock.release()


@pytest.mark.parametrize("missing", [False, True])
def test_without_nameless_memory_a_nameless_file_does(monkeypatch, tmp_path, missing) -> None:
    """Where the system has none (macOS), or does not let us have it."""

    def refused(name):
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    if missing:
        monkeypatch.delattr(os, "memfd_create", raising=False)
    else:
        monkeypatch.setattr(os, "memfd_create", refused, raising=False)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    lock = TryLock()
    assert os.fstat(lock.file).st_dev == tmp_path.stat().st_dev
    assert lock.acquire() and not list(tmp_path.iterdir())
    lock.release()
