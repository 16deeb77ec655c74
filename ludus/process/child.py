"""Set-up of child processes: every child calls `run_child` first.

A child ignores the signals that stop a run, exits when its parent exits or is killed, writes its
stack on request, and sends the error that ends it to its parent.
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

PREFIX = "ludus-"  # starts the name of every child process
UNGUARDED = 71  # exit code of a child whose parent script has no main guard
UNGUARDED_CAUSE = "it imported the script, which trains without a main guard"

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
    traceback)); `explain` makes the LudusError. `threads`: torch threads; None keeps the default.
    """
    ignore_signals()  # the parent closes or kills this process
    _die_with_parent()
    _set_process_name()
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    if threads is not None:
        import torch

        torch.set_num_threads(threads)
    try:
        body()
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return  # the parent exited or closed the pipe
    except BaseException as error:
        with contextlib.suppress(OSError):
            pipe.send(("error", report(error, explain(error))))


def report(error: BaseException, known: LudusError | None) -> tuple[LudusError | None, str, str]:
    """Return (`known`, the cause, the traceback) of an error, for the parent."""
    cause = f"{type(error).__name__}: {error}" if known is None else known.what
    return known, cause, "".join(traceback.format_exception(error))


def dump_when_asked(path: Path | None, open_file: Callable[[Path], IO[Any]]) -> None:
    """Write the stack of every thread to the file `path` on SIGUSR1."""
    if path is not None:
        with contextlib.suppress(OSError):  # a full disk must not stop the child
            faulthandler.register(signal.SIGUSR1, open_file(path), all_threads=True)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGUSR1])  # see start_server


def _leave_with_parent() -> None:
    """Exit when the parent exits, even inside a step that never returns."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()  # not getppid(): that is the fork server, which outlives the parent
    os._exit(1)


def _die_with_parent() -> None:
    """Ask the kernel to kill this process with its parent, also in native code or while stopped.

    For the kernel the parent is the fork server. The server exits when all write ends of its pipe
    are closed. Each child inherits one, so the child closes it here."""
    forget_safe_path()
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
            server: Any = forkserver._forkserver
            if server._forkserver_alive_fd is not None:
                os.close(server._forkserver_alive_fd)
                server._forkserver_alive_fd = None  # a child that needs a server starts one


def _set_process_name() -> None:
    """Set the name that top and `ps -o comm` show; the command line is the fork server's."""
    if sys.platform == "linux":
        name = multiprocessing.current_process().name.encode()[:15]  # the kernel keeps 15 bytes
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(15, name)  # PR_SET_NAME


def kill_group_after_parent(seconds: float) -> None:
    """Kill this process's group `seconds` after its parent exits. The caller leads its group."""
    parent = os.getppid()

    def wait() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        time.sleep(seconds)
        os.killpg(os.getpid(), signal.SIGKILL)

    threading.Thread(target=wait, daemon=True).start()


def kill_children_at_exit() -> None:
    """Kill remaining child processes when the interpreter exits. `multiprocessing` sends SIGTERM,
    which our children ignore, and waits for them. A program that failed before it closed its fleet
    would never exit."""
    if os.getpid() not in _registered:
        _registered.add(os.getpid())
        util.Finalize(None, _kill_children, exitpriority=100)


def _kill_children() -> None:
    for child in multiprocessing.active_children():
        if child.name.startswith(PREFIX):
            child.kill()


def refuse_import() -> None:
    """Exit if this process is a child that imports the user's script. A script without
    `if __name__ == "__main__"` would train again in each child. The exit code tells the parent the
    reason. Call this before training or starting a process."""
    process = multiprocessing.current_process()
    if not getattr(process, "_inheriting", False):
        return
    if process.name.startswith(PREFIX):  # the parent reports the error
        os._exit(UNGUARDED)
    raise unguarded("E205", "a program with processes")


def unguarded(code: str, who: str) -> LudusError:
    script = getattr(sys.modules.get("__main__"), "__file__", None) or "the script"
    return LudusError(
        code,
        f"{script} trains without a main guard",
        where=f"the line of {script} that calls ludus.train or the like",
        why=f"{who} starts processes, and each of them imports the script",
        fix="put such calls under  if __name__ == '__main__':",
    )
