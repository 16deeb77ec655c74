"""No process outlives the one that it works for, however that one ends."""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import signal
import sys
from multiprocessing import forkserver, util
from typing import Any

from ludus.process.modules import forget_safe_path

_registered: set[int] = set()  # processes that kill their children when they exit


def leave_with_parent() -> None:
    """Leave when the parent is gone, even from inside a step that never returns."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()  # not getppid(): that is the fork server, which lives as long as we do
    os._exit(1)


def die_with_parent() -> None:
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


def kill_children_at_exit() -> None:
    """Kill child processes that are still there when the interpreter exits. `multiprocessing` sends
    them SIGTERM, which ours ignore, and waits for them: a program that failed before it closed its
    fleet would never end."""
    if os.getpid() not in _registered:
        _registered.add(os.getpid())
        util.Finalize(None, _kill_children, exitpriority=100)


def _kill_children() -> None:
    for child in multiprocessing.active_children():
        if child.name.startswith("ludus-"):
            child.kill()
