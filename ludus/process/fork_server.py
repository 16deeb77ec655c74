"""The start of Python's fork server. What it imports and who uses it is said in workers.py."""

from __future__ import annotations

import codecs
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing import forkserver, resource_tracker

from ludus.process.child import kill_children_at_exit
from ludus.process.modules import without_this_folder
from ludus.process.signals import LEAVE
from ludus.process.temporary import mark_temporary

_UNBUFFERED = "PYTHONUNBUFFERED"
_pipes: dict[int, int] = {}  # the end that processes write to, by the descriptor it replaces


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
    """What processes print to a terminal, such as an emulator's greeting, would tear the panel that
    is drawn there. They get pipes; what arrives is printed here, where the panel knows of it. Only
    a process that starts meanwhile is concerned: what our own libraries print in their last moment
    must not need a thread of ours."""
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
