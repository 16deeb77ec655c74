"""The child's side of every process that Ludus starts: `run_child` is its first call.

A child ignores the signals that ask a run to leave, ends with its parent however that ends, writes
its stack when asked, and sends the error that ends it.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from multiprocessing import forkserver, util
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO, Any

from ludus.errors import LudusError
from ludus.process.modules import forget_safe_path
from ludus.process.signals import ignore_signals

PREFIX = "ludus-"  # of the names of our processes
UNGUARDED = 71  # exit code of a child that was started by a script without a main guard
UNGUARDED_CAUSE = "it read the script from the top, which trains without a main guard"

_registered: set[int] = set()  # processes that kill their children when they exit


def _known(error: BaseException) -> LudusError | None:
    return error if isinstance(error, LudusError) else None


def run_child(
    pipe: Connection,
    body: Callable[[], None],
    *,
    threads: int | None = 1,
    explain: Callable[[BaseException], LudusError | None] = _known,
) -> None:
    """Prepare this process and run `body`. If it raises, send ("error", (LudusError or None, cause,
    traceback)); `explain` makes the LudusError. `threads`: of torch; None leaves it alone."""
    ignore_signals()  # the parent closes us, or kills us
    _die_with_parent()
    _set_process_name()
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    if threads is not None:
        import torch

        torch.set_num_threads(threads)
    try:
        body()
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return  # the parent is gone or has closed us
    except BaseException as error:
        known = explain(error)
        cause = f"{type(error).__name__}: {error}" if known is None else known.what
        text = "".join(traceback.format_exception(error))
        with contextlib.suppress(OSError):
            pipe.send(("error", (known, cause, text)))


def dump_when_asked(path: Path | None, open_file: Callable[[Path], IO[Any]]) -> None:
    """SIGUSR1 writes the stack of every thread to the file `path`."""
    if path is not None:
        with contextlib.suppress(OSError):  # a full disk must not keep the child from working
            faulthandler.register(signal.SIGUSR1, open_file(path), all_threads=True)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGUSR1])  # see start_server


def _leave_with_parent() -> None:
    """Exit when the parent is gone, even from inside a step that never returns."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()  # not getppid(): that is the fork server, which lives as long as we do
    os._exit(1)


def _die_with_parent() -> None:
    """Also from native code that never lets the interpreter run, or when stopped. For the system
    the parent is the fork server, whose only thread lives as long as the process that we work for,
    and as any process that it has started: each holds an end of the pipe it listens to. So that
    end is given up here."""
    forget_safe_path()
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
            server: Any = forkserver._forkserver
            if server._forkserver_alive_fd is not None:
                os.close(server._forkserver_alive_fd)
                server._forkserver_alive_fd = None  # a child that needs a server starts its own


def _set_process_name() -> None:
    """For top and `ps -o comm`: a child of the fork server has its command line."""
    if sys.platform == "linux":
        name = multiprocessing.current_process().name.encode()[:15]  # what the system keeps
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(15, name)  # PR_SET_NAME


def kill_group_after_parent(seconds: float) -> None:
    """For a child that leads a process group of its own: some time after its parent is gone, kill
    the whole group."""
    parent = os.getppid()

    def wait() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        time.sleep(seconds)
        os.killpg(os.getpid(), signal.SIGKILL)

    threading.Thread(target=wait, daemon=True).start()


def kill_children_at_exit() -> None:
    """Kill child processes that are still there when the interpreter exits. `multiprocessing` sends
    them SIGTERM, which ours ignore, and waits for them: a program that failed before it closed its
    fleet would never end."""
    if os.getpid() not in _registered:
        _registered.add(os.getpid())
        util.Finalize(None, _kill_children, exitpriority=100)


def _kill_children() -> None:
    for child in multiprocessing.active_children():
        if child.name.startswith(PREFIX):
            child.kill()


def refuse_import() -> None:
    """A child process imports the user's script. A script that trains without
    `if __name__ == "__main__"` would train once more there: exit instead, with a code from which
    the parent knows why. Call it before anything is trained or any process is started."""
    process = multiprocessing.current_process()
    if not getattr(process, "_inheriting", False):
        return
    if process.name.startswith(PREFIX):  # its parent reports it
        os._exit(UNGUARDED)
    raise unguarded("E205", "a program with processes")


def unguarded(code: str, who: str) -> LudusError:
    script = getattr(sys.modules.get("__main__"), "__file__", None) or "the script"
    return LudusError(
        code,
        f"{script} trains without a main guard",
        where=f"the line of {script} that calls ludus.train or the like",
        why=f"{who} starts processes, and each of them reads the script from the top",
        fix="put such calls under  if __name__ == '__main__':",
    )
