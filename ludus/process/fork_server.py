"""Start child processes from Python's fork server, never as a fork of this process.

The server has a temporary folder, with a locked file as its mark. The kernel drops the lock when
the process ends, however it ends, and the next run removes the folder. A folder without a mark
belongs to another program and is never touched.
"""

from __future__ import annotations

import codecs
import fcntl
import multiprocessing
import os
import shutil
import signal
import stat
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing import forkserver, resource_tracker, util
from pathlib import Path
from typing import Any

from ludus.process.child import kill_children_at_exit, refuse_import
from ludus.process.modules import without_this_folder
from ludus.process.signals import LEAVE

MARK = "ludus.lock"
_UNBUFFERED = "PYTHONUNBUFFERED"
_marked: set[tuple[int, str]] = set()  # process and folder; the open files stay open
_pipes: dict[int, int] = {}  # the end that processes write to, by the descriptor it replaces


def process_context(*preload: str) -> Any:
    """Fresh processes, never a fork of this one with its threads and its accelerator.

    A fork server imports `preload` once for all of them: starting four children takes 0.1 s instead
    of four imports of torch, and they share its memory. The first call decides on `preload`.
    """
    refuse_import()
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(preload))
    start_server()
    return context


@contextmanager
def signals_delayed() -> Iterator[None]:
    """Signals to leave wait until this is done: a process whose start is cut off has read only half
    of its arguments, and prints a traceback. A mask would not do: another thread of ours may get
    the signal, and the interrupt still comes here."""
    came: list[int] = []
    # An ignored signal disturbs nobody, and None is a handler in C: both are left alone.
    known = [s for s in LEAVE if signal.getsignal(s) not in (None, signal.SIG_IGN)]
    if threading.current_thread() is not threading.main_thread():
        known = []  # nothing interrupts it
    old = {s: signal.signal(s, lambda number, _: came.append(number)) for s in known}
    try:
        yield
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)
        for late in came:
            signal.raise_signal(late)


def start_server() -> None:
    """Start it out of reach of signals to the whole group, which Ctrl-C and `timeout` send: the
    process that saves decides when to leave, and a fork server that dies takes all along. Signals
    that are blocked stay blocked in whatever it starts."""
    kill_children_at_exit()
    mark_temporary()
    with without_this_folder():
        resource_tracker.ensure_running()  # first: starting it unblocks what we block
        old = signal.pthread_sigmask(signal.SIG_BLOCK, LEAVE)
        try:
            with _output_through_us():
                forkserver.ensure_running()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, old)


@contextmanager
def _output_through_us() -> Iterator[None]:
    """Output of children to a terminal, such as an emulator's greeting, would tear the panel that
    is shown there. They get pipes, and this process prints what arrives, so that the panel knows of
    it. This concerns only a process that starts meanwhile: what our own libraries print in their
    last moment must not need a thread of ours."""
    with ExitStack() as after:
        for name, number in (("stdout", 1), ("stderr", 2)):
            if not os.isatty(number):
                continue
            if number not in _pipes:
                read, _pipes[number] = os.pipe()
                threading.Thread(target=_pass_on, args=(read, name), daemon=True).start()
            kept = os.dup(number)
            after.callback(os.close, kept)
            after.callback(os.dup2, kept, number)
            os.dup2(_pipes[number], number)
        if _pipes and _UNBUFFERED not in os.environ:  # into a pipe they would print by the page
            os.environ[_UNBUFFERED] = "1"
            after.callback(os.environ.pop, _UNBUFFERED, None)
        yield


def _pass_on(read: int, name: str) -> None:
    decode = codecs.getincrementaldecoder("utf-8")("replace").decode
    while data := os.read(read, 1 << 16):
        try:
            out = getattr(sys, name)  # a panel puts something of its own here while it is shown
            out.write(decode(data))
            out.flush()
        except (OSError, ValueError, AttributeError):  # nobody reads it; the writers must not wait
            continue


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
