"""Counting without the host: refused updates are heard of however late the device is, callbacks
get each update's own metrics, and a checkpoint counts only what was applied."""

from __future__ import annotations

import pytest
import torch

from ludus.errors import LudusError
from ludus.learn.captured import DeviceMetrics
from ludus.learn.eager import EagerUpdates
from tests.learn.test_captured import loop_of

CPU = torch.device("cpu")


class Late:
    """An event that happened once the clock has moved on; waiting makes it happen."""

    clock = 0

    def __init__(self) -> None:
        self.at = Late.clock

    def query(self) -> bool:
        return Late.clock > self.at

    def synchronize(self) -> None:
        Late.clock += 1


def test_one_question_at_a_time(monkeypatch) -> None:
    """A device that answers an iteration late is heard, though it is asked in every iteration."""
    monkeypatch.setattr(DeviceMetrics, "_mark", lambda self: Late())
    metrics = DeviceMetrics(CPU)
    heard = []
    for _ in range(6):
        metrics.check_finite(torch.tensor(float("nan")))
        metrics.send_counts()
        heard.append(metrics.read_counts())  # at once: never there yet, unless an older one is
        Late.clock += 1
    assert heard[0] is None and heard[1] == (1, 1)
    assert [h for h in heard if h is not None][-1] == (5, 5)
    metrics.send_counts()
    assert metrics.read_counts(wait=True) == (6, 6)


def test_the_longest_row_counts_even_if_it_is_over(monkeypatch) -> None:
    """Several updates happen between two questions: three bad ones and a good one are three."""
    metrics = DeviceMetrics(CPU)
    for bad in (1, 1, 1, 0):
        metrics.check_finite(torch.tensor(float("nan") if bad else 1.0))
    metrics.send_counts()
    assert metrics.read_counts() == (3, 3) and int(metrics.bad_in_a_row) == 0


@pytest.mark.parametrize("name", ["prioritized-dqn", "ppo"])
def test_a_run_ends_though_the_device_is_always_behind(tmp_path, monkeypatch, name) -> None:
    monkeypatch.setattr(DeviceMetrics, "_mark", lambda self: Late())
    loop = loop_of(tmp_path, name)
    poll = loop.fleet.poll

    def later(*arguments):
        Late.clock += 1  # acting waits for the weights, so by then all updates are done
        return poll(*arguments)

    loop.fleet.poll = later
    while loop.learner.updates < 5:
        loop.iterate()
    check = loop.learner.device_metrics.check_finite
    monkeypatch.setattr(
        loop.learner.device_metrics, "check_finite", lambda *_: check(torch.tensor(torch.inf))
    )
    with pytest.raises(LudusError) as caught:
        for _ in range(20):
            loop.iterate()
    assert caught.value.code == "E401"
    loop.fleet.close()


@pytest.mark.parametrize("name", ["prioritized-dqn", "ppo"])
def test_callbacks_get_each_updates_own_metrics(tmp_path, name) -> None:
    """Not the sums of all updates since the last line."""
    seen = {}
    for kind in ("captured", "eager"):
        loop = loop_of(tmp_path, name)
        if kind == "eager":
            loop.updates = EagerUpdates(loop.store, loop.learner)
        losses = seen[kind] = []
        loop.learner.on_update = lambda m, losses=losses: losses.append(
            (float(m["loss"]), float(m["grad_norm"]))
        )
        while loop.learner.updates < 8:
            loop.iterate()
            if loop.learner.updates == 4:
                loop.learner.take_metrics()
        loop.fleet.close()
    assert len(seen["captured"]) == len(seen["eager"]) >= 8
    for a, b in zip(seen["captured"], seen["eager"], strict=True):
        assert a == pytest.approx(b, rel=1e-3, abs=1e-5)


def test_a_checkpoint_counts_what_was_applied(tmp_path, monkeypatch) -> None:
    """Refused updates that nobody has heard of yet are in no count that is saved."""
    monkeypatch.setattr(DeviceMetrics, "_mark", lambda self: Late())
    loop = loop_of(tmp_path, "dqn", **{"run.nan_limit": 1000})
    while loop.learner.updates < 5:
        loop.iterate()
    loop.flush()
    applied, check = loop.learner.updates, loop.learner.device_metrics.check_finite
    monkeypatch.setattr(
        loop.learner.device_metrics, "check_finite", lambda *_: check(torch.tensor(torch.inf))
    )
    for _ in range(4):
        loop.iterate()
    assert loop.learner.updates > applied
    loop.flush()
    assert loop.learner.updates == applied and loop.learner.skipped > 0
    loop.fleet.close()


def test_a_refused_update_leaves_priorities_alone(tmp_path) -> None:
    """As the eager learner, which returns none."""
    loop = loop_of(tmp_path, "prioritized-dqn", **{"run.nan_limit": 1000})
    while loop.learner.updates < 5:
        loop.iterate()
    leaves, check = loop.store.sampler.tree.leaves, loop.learner.device_metrics.check_finite
    before, largest = leaves.clone(), loop.store.sampler.max_priority
    loop.learner.device_metrics.check_finite = lambda *_: check(torch.tensor(torch.inf))
    loop.updates.graph.launch()
    assert torch.equal(leaves, before) and loop.store.sampler.max_priority == largest
    loop.learner.device_metrics.check_finite = check
    loop.updates.graph.launch()
    assert not torch.equal(leaves, before)
    loop.fleet.close()
