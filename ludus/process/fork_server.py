"""Start child processes from Python's fork server, never as a fork of this process.

The server has a temporary folder that contains a locked file. The kernel releases the lock when
the process ends for any reason, and the next run removes the folder. Folders without such a file
belong to other programs and are kept.
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
from ludus.process.signals import STOP_SIGNALS

MARK = "ludus.lock"
_UNBUFFERED = "PYTHONUNBUFFERED"
_marked: set[tuple[int, str]] = set()  # (process, folder); the locked files stay open
_pipes: dict[int, int] = {}  # write ends of pipes, by the descriptor they replace


def process_context(*preload: str) -> Any:
    """Return a multiprocessing context that never forks this process with its threads and GPU.

    The fork server imports `preload` once. Four children then start in 0.1 s instead of importing
    torch four times, and they share its memory. Only the `preload` of the first call counts.
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
    """Delay stop signals inside this block. A child whose start is interrupted has read only part
    of its arguments and prints a traceback. A signal mask is not enough: another thread may receive
    the signal, and Python still interrupts the main thread."""
    came: list[int] = []
    # Keep ignored signals, and handlers installed from C (None).
    known = [s for s in STOP_SIGNALS if signal.getsignal(s) not in (None, signal.SIG_IGN)]
    if threading.current_thread() is not threading.main_thread():
        known = []  # signals interrupt only the main thread
    old = {s: signal.signal(s, lambda number, _: came.append(number)) for s in known}
    try:
        yield
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)
        for late in came:
            signal.raise_signal(late)


def start_server() -> None:
    """Start the fork server with stop signals blocked. Ctrl-C and `timeout` signal the whole
    process group, but only the main process decides when to exit, and a dead fork server ends all
    its children. The children inherit the blocked signals."""
    kill_children_at_exit()
    mark_temporary()
    with without_this_folder():
        resource_tracker.ensure_running()  # first: starting it unblocks signals
        old = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
        try:
            with _forward_output():
                forkserver.ensure_running()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, old)


@contextmanager
def _forward_output() -> Iterator[None]:
    """Send the terminal output of processes started in this block through pipes to this process.

    A child that writes to the terminal, such as an emulator at its start, would break the live
    panel. This process prints the text instead. Its own output is not redirected: libraries may
    print at exit, when the forwarding thread no longer runs."""
    with ExitStack() as after:
        for name, number in (("stdout", 1), ("stderr", 2)):
            if not os.isatty(number):
                continue
            if number not in _pipes:
                read, _pipes[number] = os.pipe()
                threading.Thread(target=_print_forwarded, args=(read, name), daemon=True).start()
            kept = os.dup(number)
            after.callback(os.close, kept)
            after.callback(os.dup2, kept, number)
            os.dup2(_pipes[number], number)
        if _pipes and _UNBUFFERED not in os.environ:  # Python buffers output to a pipe
            os.environ[_UNBUFFERED] = "1"
            after.callback(os.environ.pop, _UNBUFFERED, None)
        yield


def _print_forwarded(read: int, name: str) -> None:
    decode = codecs.getincrementaldecoder("utf-8")("replace").decode
    while data := os.read(read, 1 << 16):
        try:
            out = getattr(sys, name)  # the live panel replaces this stream
            out.write(decode(data))
            out.flush()
        except (OSError, ValueError, AttributeError):  # discard it: the writers must not block
            continue


def mark_temporary() -> None:
    """Create and lock the mark in this process's temporary folder. A child shares the folder of its
    parent and keeps the parent's mark."""
    folder = util.get_temp_dir()
    if (os.getpid(), folder) in _marked:
        return
    half = Path(folder, f".{MARK}.{os.getpid()}")
    _marked.add((os.getpid(), folder))
    with suppress(OSError):  # no locks on this file system: the folder is not swept
        handle = os.open(half, os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        try:
            os.link(half, Path(folder, MARK))  # the mark is locked before it is visible
        except FileExistsError:
            os.close(handle)
        half.unlink()


def sweep_temporary() -> list[Path]:
    """Remove marked folders of dead processes, and return their paths."""
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
    except OSError:  # its process is alive
        return False
    finally:
        os.close(handle)
