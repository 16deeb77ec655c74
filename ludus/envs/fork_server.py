"""The start of Python's fork server. What it imports and who uses it is said in workers.py."""

from __future__ import annotations

import signal
from multiprocessing import forkserver, resource_tracker


def start_server() -> None:
    """Out of reach of signals to the whole group, which Ctrl-C and `timeout` send: when everybody
    leaves is the decision of the process that saves, and a fork server that dies takes all along.
    Signals that are blocked stay so in whatever it starts."""
    resource_tracker.ensure_running()  # first: starting it unblocks what we block
    old = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, old)
