"""An actor on Ray: an `ActorCore` whose calls return the messages of an actor process.

Ray runs the calls of the learner in their order, in one thread. Heartbeats, stacks and the request
to leave have a thread of their own.
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
from ludus.envs.backends.workers import register_shipped
from ludus.fleets.actor_core import ActorCore, ActorJob, explain_failure
from ludus.fleets.ray.weights import load_weights
from ludus.process.child import report
from ludus.process.modules import import_modules
from ludus.replay.chunk_layout import Bytes, ChunkLayout, Head

HEALTH = ("beat", "stack", "leave")  # the calls with a thread of their own
Messages: TypeAlias = list[tuple[str, Any]]  # see ActorFleet._handle


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


class RayActor:
    """Runs an `ActorCore`. Every call but those in `HEALTH` returns messages for the learner."""

    def __init__(self, keep: float = 0.0) -> None:
        self.beats, self.busy, self.leaving = 0, False, False
        self.asked = time.monotonic()  # when the learner last asked for a heartbeat
        self.thread = 0  # that runs the calls
        self.core: ActorCore | None = None
        self.updates = -1  # of the learner, for the newest weights
        self.reported_mode: tuple[str, float] = ("", 0.0)
        if keep:
            threading.Thread(target=self._exit_alone, args=(keep,), daemon=True).start()

    def _exit_alone(self, seconds: float) -> None:
        """Exit once no learner has asked for so long: an actor that outlives its learner belongs to
        nobody else."""
        while (left := self.asked + seconds - time.monotonic()) > 0:
            time.sleep(left)
        os._exit(0)

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

    def leave(self) -> None:
        """Give up the running chunk."""
        self.leaving = True

    # Calls in their order.
    def prepare(self, imports: tuple[str, ...]) -> Messages:
        """The first call: import what later arguments may refer to."""

        def body() -> Messages:
            torch.set_num_threads(1)
            import_modules(imports)
            return [("placed", Placed(os.getpid(), host(), __version__, self._node()))]

        return self._guarded(body)

    def setup(self, job: ActorJob, layout: ChunkLayout) -> Messages:
        def body() -> Messages:
            register_shipped(job.registered)
            self.close()  # the work of an earlier learner
            self.leaving, self.updates = False, -1
            self.layout, self.core = layout, ActorCore(job, self._work)
            self.reported_mode = self.core.mode
            return [("ready", None)]

        return self._guarded(body)

    def collect(self, weights: Bytes | None, updates: int, values: dict[str, float]) -> Messages:
        """Collect one chunk, with new weights unless they are None."""

        def body() -> Messages:
            core = self._core
            if weights is not None:
                load_weights(core.net, weights)
                self.updates = updates
            got = core.collect(values, self.updates, self._stopping)
            messages: Messages = []
            if core.mode != self.reported_mode:
                self.reported_mode = core.mode
                messages.append(("acting", core.mode))
            if got is None:
                return [*messages, ("nothing", None)]
            if core.lasts:
                messages.append(("kept", core.state()))
            chunk = got.chunk
            packed = self.layout.pack(chunk), Head(chunk.sequence, chunk.version, chunk.breaks)
            spent = (got.env_seconds, got.act_seconds, got.process)
            return [*messages, ("chunk", (packed, chunk.sequence, list(got.episodes), spent))]

        return self._guarded(body)

    def barrier(self, number: int) -> Messages:
        return self._guarded(lambda: [("done", self._core.barrier(number))])

    def state(self, _: None) -> Messages:
        return self._guarded(lambda: [("done", self._core.state())])

    def load(self, state: Any) -> Messages:
        def body() -> Messages:
            self._core.load_state(state)
            return [("done", None)]

        return self._guarded(body)

    def close(self) -> None:
        core, self.core = self.core, None
        if core is not None:
            core.close()

    def _node(self) -> str:
        import ray

        node: str = ray.get_runtime_context().get_node_id()
        return node

    @property
    def _core(self) -> ActorCore:
        assert self.core is not None, "setup comes first"
        return self.core

    def _work(self) -> None:
        self.beats += 1

    def _stopping(self) -> bool:
        """Called after every row."""
        self.beats += 1
        return self.leaving

    def _guarded(self, body: Callable[[], Messages]) -> Messages:
        """Run a call. An error is a message, too: Ray could not send every exception."""
        self.thread, self.busy = threading.get_ident(), True
        try:
            return body()
        except BaseException as error:
            return [("error", report(error, explain_failure(error)))]
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
