"""EagerUpdates: sample, learn, feed priorities back, one update after the other; captured.py does
the same by CUDA graphs."""

from __future__ import annotations

import threading
from typing import Protocol

from torch import Tensor

from ludus.learn.learner import Learner
from ludus.replay.store import Store


class Updates(Protocol):
    """`start` begins the updates that are due and `finish` waits for them; the caller must not
    touch nets, store or optimizer in between. Which updates are due, on which rows and with which
    weights never depends on how fast anything is.
    """

    mode: str  # "captured", or "eager" and why
    capture_seconds: float  # spent on graphs so far

    def start(self, values: dict[str, Tensor]) -> None: ...

    def finish(self) -> None: ...


class EagerUpdates:
    """`background`: in a thread, with the same result."""

    def __init__(
        self, store: Store, learner: Learner, *, background: bool = False, why: str = ""
    ) -> None:
        self.store, self.learner, self.background = store, learner, background
        self.mode = f"eager: {why}" if why else "eager"
        self.capture_seconds = 0.0
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def start(self, values: dict[str, Tensor]) -> None:
        # A callback on updates is user code, which expects that nothing else runs.
        if not self.background or self.learner.on_update is not None or not self.store.ready():
            self._learn(values)
            return
        self._thread = threading.Thread(
            target=self._learn_in_thread, args=(values,), name="learner"
        )
        self._thread.start()

    def finish(self) -> None:
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def _learn_in_thread(self, values: dict[str, Tensor]) -> None:
        try:
            self._learn(values)
        except BaseException as error:
            self._error = error

    def _due(self) -> bool:
        """Whether an update is due. In a group all learners update together, or none does."""
        group, ready = self.learner.ctx.group, self.store.ready()
        return ready if group is None else group.all(ready)

    def _learn(self, values: dict[str, Tensor]) -> None:
        while self._due():
            sample = self.store.sample()
            priority = self.learner.learn(sample, values)
            if priority is not None:
                self.store.feedback(sample.ids, priority)
            if self.learner.plan.needs_features:
                self.store.rank(sample.ids, self.learner.features(sample.batch))
