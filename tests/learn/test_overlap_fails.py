"""An iteration that fails while its updates run in parallel: what is saved is of one moment."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace

import pytest
import torch

from ludus.errors import LudusError
from ludus.learn.eager import EagerUpdates
from ludus.run.loop import Loop
from ludus.run.recording.statistics import Clock, Scores


class Batches:
    """A store with three updates due."""

    drawn = 0

    def ready(self):
        return self.drawn < 3

    def sample(self):
        self.drawn += 1
        return SimpleNamespace(ids=None)


class Halves:
    """A learner whose every update has a first half and a second one."""

    net, on_update, device, updates = None, None, torch.device("cpu"), 0
    plan, ctx = SimpleNamespace(needs_features=False), SimpleNamespace(group=None)

    def __init__(self, polled: threading.Event, error: Exception | None) -> None:
        self.polled, self.error = polled, error
        self.first = self.second = 0

    def learn(self, sample, values):
        self.first += 1
        assert self.polled.wait(30)
        time.sleep(0.05)  # whoever does not wait for us sees one half only
        if self.error is not None:
            raise self.error
        self.second += 1
        self.updates += 1


class Failing:
    def __init__(self, polled: threading.Event) -> None:
        self.polled = polled

    def publish(self, *_):
        pass

    def poll(self, *_):
        self.polled.set()
        raise LudusError("E206", "21 actors failed")


def failed(error: Exception | None = None) -> tuple[Halves, LudusError]:
    """An iteration whose actors fail while it learns."""
    polled, store = threading.Event(), Batches()
    learner = Halves(polled, error)
    updates = EagerUpdates(store, learner, background=True)
    values = SimpleNamespace(at=lambda step: {})
    fleet = Failing(polled)
    loop = Loop(fleet, store, learner, values, 100, Scores(), Clock(), updates, overlap=True)
    with pytest.raises(LudusError) as caught:
        loop.iterate()
    return learner, caught.value


def test_actors_that_fail_wait_for_the_updates_under_way() -> None:
    learner, error = failed()
    assert error.code == "E206"
    assert (learner.first, learner.second, learner.updates) == (3, 3, 3), "no half of an update"
    assert "learner" not in [t.name for t in threading.enumerate()]


def test_the_first_error_is_reported_though_the_update_fails_too() -> None:
    learner, error = failed(RuntimeError("a matrix came loose"))
    assert error.code == "E206" and learner.first == 1
    assert error.__notes__ == ["the updates under way failed, too: a matrix came loose"]
    assert "learner" not in [t.name for t in threading.enumerate()]
