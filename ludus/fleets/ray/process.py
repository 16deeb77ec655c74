"""A process on Ray that works for the learner: its heartbeats, its stack and its errors.

Ray runs the calls of the learner in their order, in one thread. The calls in `HEALTH` have a thread
of their own.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any, NamedTuple, TypeAlias

import torch

from ludus import __version__
from ludus.errors import LudusError
from ludus.process.child import report
from ludus.process.modules import import_modules

HEALTH = ("beat", "stack")
Messages: TypeAlias = list[tuple[str, Any]]


class Placed(NamedTuple):
    """Where an actor runs."""

    pid: int
    host: str  # the machine, by a name that only its own processes know
    version: str  # of Ludus
    node: str  # the id of the Ray node


def host() -> str:
    """A name of this machine: containers may share a host name."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            boot = file.read().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"  # pids of another namespace mean others
    except OSError:
        return os.uname().nodename


class RayProcess:
    """Every call but those in `HEALTH` returns messages for the learner."""

    def __init__(self) -> None:
        self.beats, self.busy = 0, False
        self.asked = time.monotonic()  # when the learner last asked for a heartbeat
        self.thread = 0  # that runs the calls

    # Calls with a thread of their own.
    def beat(self) -> int:
        """Return a number that changes unless a call hangs."""
        self.asked = time.monotonic()
        if not self.busy:
            self.beats += 1
        return self.beats

    def stack(self) -> str:
        """Return the stack of the thread that runs the calls."""
        frame = sys._current_frames().get(self.thread)
        return dump(frame) if frame is not None else ""

    def prepare(self, imports: tuple[str, ...]) -> Messages:
        """The first call: import what later arguments may refer to."""

        def body() -> Messages:
            torch.set_num_threads(1)
            import_modules(imports)
            return [("placed", Placed(os.getpid(), host(), __version__, self._node()))]

        return self._guarded(body)

    def _node(self) -> str:
        import ray

        node: str = ray.get_runtime_context().get_node_id()
        return node

    def _work(self) -> None:
        self.beats += 1

    def _explain(self, error: BaseException) -> LudusError | None:
        return error if isinstance(error, LudusError) else None

    def _guarded(self, body: Callable[[], Messages]) -> Messages:
        """Run a call. An error is a message, too: Ray could not send every exception."""
        self.thread, self.busy = threading.get_ident(), True
        try:
            return body()
        except BaseException as error:
            return [("error", report(error, self._explain(error)))]
        finally:
            self.busy = False


def dump(frame: FrameType | None) -> str:
    """Format a stack as faulthandler does, innermost frame first."""
    lines = ["Current thread (most recent call first):"]
    while frame is not None:
        code = frame.f_code
        lines.append(f'  File "{code.co_filename}", line {frame.f_lineno} in {code.co_name}')
        frame = frame.f_back
    return "\n".join(lines) + "\n"
