"""Where the time goes when several processes spend it."""

from __future__ import annotations

import time

import pytest

from ludus.run.recording import statistics as clock_module
from ludus.run.recording.statistics import Clock
from ludus.track.metrics.writer import read_metrics
from tests.contract.tiny import run, tiny
from tests.fleets.test_hogwild_faults import begun, iterate_until, trained
from tests.fleets.test_processes import free, train


def test_what_others_did_is_divided_by_what_they_did():
    clock = Clock(elsewhere=True)
    assert clock.split() == {"env": 0.0, "act": 0.0, "learn": 0.0, "other": 0.0}
    for part, seconds in {"env": 30.0, "act": 10.0, "learn": 50.0, "other": 10.0}.items():
        clock.add(part, seconds)
    assert clock.split() == {"env": 0.3, "act": 0.1, "learn": 0.5, "other": 0.1}


def test_speed_leaves_out_what_is_no_training(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(clock_module.time, "perf_counter", lambda: now[0])
    clock = Clock(started=100.0)
    clock.mark(0, 0)
    now[0] += 10
    with clock.outside():
        now[0] += 70
    assert clock.mark(1000, 50) == (100.0, 5.0)
    assert clock.session_seconds == 80.0, "it is part of the run's age all the same"


@pytest.mark.parametrize("overflow", ["wait", "latest"])
def test_shares_of_actors_are_those_of_one_of_them(tmp_path, overflow):
    """And chunks that are dropped mean that the learner is the slower one."""
    loop = free(
        tmp_path, **{"algo.replay_ratio": 16.0, "actor.rows": 4, "actor.overflow": overflow}
    )
    before = loop.fleet.learner_bound
    train(loop, 20)
    if overflow == "latest":
        iterate_until_dropped(loop)
    behind, split = loop.fleet.learner_bound, loop.clock.split()
    loop.close()
    assert before is False and behind is (overflow == "latest")
    assert 0 < split["env"] <= 1 and 0 < split["act"] <= 1


def iterate_until_dropped(loop):
    for _ in range(200):
        if loop.fleet.metrics()["dropped_chunks"]:
            return
        time.sleep(0.05)  # a learner that is away
        loop.iterate()
    raise AssertionError("nothing was dropped")


def test_the_time_and_the_schedules_of_hogwild_workers_are_known(tmp_path):
    loop, _ = begun(tmp_path)
    try:
        iterate_until(loop, trained(loop))
        loop.pause()
        split = loop.clock.split()
    finally:
        loop.close()
    assert loop.values.numbers["lr"] > 0 and loop.values.numbers["epsilon"] > 0
    assert sum(split.values()) == pytest.approx(1) and min(split.values()) > 0


def test_a_clock_that_jumps_changes_no_speed(tmp_path, monkeypatch):
    """As in a night of daylight saving, or when a wrong clock is set right: an hour back."""
    now = time.time()
    hours = iter(range(10**9))
    monkeypatch.setattr(time, "time", lambda: now - 3600 * next(hours))
    cfg = tiny("dqn", "CartPole-v1", "steps=300", "log.every=50", "run.time=1h")
    done = run(cfg, tmp_path)
    lines = read_metrics(done.path / "metrics.jsonl")
    assert next(hours) > 2, "somebody has looked at that clock"
    assert done.reason == "finished" and len(lines) >= 6
    speeds = [v for line in lines for k, v in line.items() if k.endswith("_per_second")]
    assert speeds and min(speeds) >= 0
    ages = [line["seconds"] for line in lines]
    assert ages == sorted(ages) and ages[0] >= 0
