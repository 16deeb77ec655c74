"""The start of Python's fork server. What it imports and who uses it is said in workers.py."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import forkserver, resource_tracker

LEAVE = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Signals to leave wait until this is done: a process whose start is cut off has only half of
    what it is told, and says so with a traceback. A mask would not do: another thread of ours may
    get the signal, and the interrupt still comes here."""
    came: list[int] = []
    known = [s for s in LEAVE if signal.getsignal(s) is not None]  # else somebody else's, in C
    if threading.current_thread() is not threading.main_thread():
        known = []  # nothing interrupts it
    old = {s: signal.signal(s, lambda number, _: came.append(number)) for s in known}
    try:
        yield
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)
        for heard in came:
            signal.raise_signal(heard)


def start_server() -> None:
    """Out of reach of signals to the whole group, which Ctrl-C and `timeout` send: when everybody
    leaves is the decision of the process that saves, and a fork server that dies takes all along.
    Signals that are blocked stay so in whatever it starts."""
    resource_tracker.ensure_running()  # first: starting it unblocks what we block
    old = signal.pthread_sigmask(signal.SIG_BLOCK, LEAVE)
    try:
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, old)
