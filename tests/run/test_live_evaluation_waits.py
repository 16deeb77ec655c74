"""Whom the learner takes for dead, of evaluators: not one that was stopped together with it."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest

from ludus.process import supervisor
from ludus.run import live_evaluation as live_eval
from tests.run.test_live_evaluation import Counting, puppet

__all__ = ["puppet"]  # a fixture


@pytest.fixture
def clock(monkeypatch):
    """The learner's."""
    now = [time.monotonic()]
    for module in (live_eval, supervisor):
        fake = SimpleNamespace(monotonic=lambda: now[0], process_time=lambda: 0.0)
        monkeypatch.setattr(module, "time", fake)
    return now


@pytest.fixture
def busy(clock, puppet):
    """It has just played the first row of an evaluation."""
    puppet.theirs.send(("ready", None))
    puppet.tend(7, 3)
    clock[0] += 1.0
    puppet.signs.array()[0] = clock[0]
    puppet.tend(8, 4)
    assert puppet.busy and puppet.cfg.actor.hang_seconds == 20
    return puppet


def test_who_was_stopped_together_with_us_is_not_silent(clock, busy):
    for _ in range(5):  # Ctrl-Z, and an hour later fg
        clock[0] += 3600.0
        busy.tend(9, 5)
        assert not busy.failures
        clock[0] += 0.5
        busy.signs.array()[0] = clock[0]
        busy.tend(9, 5)
    assert busy.started == 1 and not busy.written.said


@pytest.mark.parametrize("between", [0.5, 4.0, 30.0])
def test_who_is_silent_though_we_look_is_replaced(clock, busy, between):
    """However long the learner's iterations are."""
    looks = 0
    while not busy.failures:
        clock[0] += between
        looks += 1
        busy.tend(9, 5)
        assert looks <= 41
    assert busy.started == 2 and "no heartbeat for 20 s" in busy.written.said[0]
    assert looks * min(between, 5.0) > 19.9


def test_before_its_first_row_it_has_the_time_to_start(clock, puppet):
    for _ in range(29):  # times 4 s
        clock[0] += 4.0
        puppet.tend(1, 0)
    assert not puppet.failures
    for _ in range(3):
        clock[0] += 4.0
        puppet.tend(1, 0)
    assert "no heartbeat for 120 s" in puppet.written.said[0]


def test_results_forgive_failures(puppet):
    """Three in a row are too many; three in a week are not."""
    result = puppet.written
    result.writer = results = Counting()
    for count in range(1, 6):
        puppet.theirs.send(("error", (None, "a tooth broke", "")))
        puppet.tend(10 * count, 10 * count)
        assert puppet.failures == 1 and puppet.started == count + 1
        puppet.theirs.send(("ready", None))
        puppet.tend(10 * count + 1, 10 * count + 1)
        assert puppet.busy
        puppet.theirs.send(("result", (10 * count + 1, 1, [1.0], [1], 0.1)))
        puppet.theirs.send(("ready", None))
        puppet.tend(10 * count + 1, 10 * count + 1)
        assert puppet.failures == 0 and puppet.ready and len(results.results) == count
    for count in range(live_eval.ATTEMPTS):
        assert puppet.failures == count
        puppet.theirs.send(("error", (None, "a tooth broke", "")))
        puppet.tend(100, 1)
    assert "goes on without one" in result.said[-1]
    puppet.close()
