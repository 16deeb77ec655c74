"""An actor on Ray: an `ActorCore` whose calls return the messages of an actor process."""

from __future__ import annotations

import os
import threading
import time
from typing import Any

from ludus.envs.backends.workers import register_shipped
from ludus.errors import LudusError
from ludus.fleets.actor_core import ActorCore, ActorJob, explain_failure
from ludus.fleets.ray.process import HEALTH, Messages, RayProcess
from ludus.fleets.ray.weights import load_weights
from ludus.replay.chunk_layout import Bytes, ChunkLayout, Head

OWN_THREAD = (*HEALTH, "leave")  # the calls with a thread of their own


class RayActor(RayProcess):
    """Runs an `ActorCore`. For the messages see `ActorFleet._handle`."""

    def __init__(self, keep: float = 0.0) -> None:
        super().__init__()
        self.leaving = False
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

    def leave(self) -> None:
        """Give up the running chunk."""
        self.leaving = True

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

    @property
    def _core(self) -> ActorCore:
        assert self.core is not None, "setup comes first"
        return self.core

    def _stopping(self) -> bool:
        """Called after every row."""
        self.beats += 1
        return self.leaving

    def _explain(self, error: BaseException) -> LudusError:
        return explain_failure(error)
