"""What is foretold: nothing before updates run, then what the pace of learning makes of it."""

from __future__ import annotations

import re
from types import SimpleNamespace

import pytest

from ludus import registry
from ludus.run.recording import recorder as recorder_module
from ludus.run.recording import timing as clock_module
from ludus.run.recording.episode_stats import Scores
from ludus.run.recording.progress import Progress
from ludus.run.recording.timing import Clock
from ludus.run.session import train_run
from tests.contract.tiny import run, tiny

DAY = 86_400


class Fake:
    """A loop of which time, steps and updates are what the test says."""

    def __init__(self, monkeypatch, steps: int, *, warmup: int = 0, missing: int = 0) -> None:
        self.now, self.steps, self.scores, self.stop_reason = 0.0, steps, Scores(), None
        self.step = steps if missing else 0
        monkeypatch.setattr(clock_module.time, "perf_counter", lambda: self.now)
        self.clock = Clock(started=0.0)
        self.learner = SimpleNamespace(updates=0, plan=SimpleNamespace(warmup=warmup))
        self.refill = missing
        self.checkpoint_every = SimpleNamespace(period=1000)
        cfg = SimpleNamespace(run=SimpleNamespace(checkpoint_every=1000))
        self.progress = Progress(cfg, self)
        self.progress.begin()

    def go(self, seconds: float, steps: int = 0, updates: int = 0, refilled: int = 0) -> None:
        for _ in range(10):
            self.now += seconds / 10
            self.step += steps // 10
            self.learner.updates += updates // 10
            self.refill -= refilled // 10
            self.progress.tick()
            self.progress.measure()


def test_nothing_is_foretold_before_updates_run(monkeypatch):
    loop = Fake(monkeypatch, 50_000_000, warmup=50_000)
    loop.go(10, steps=20_000)  # as fast as the environment
    assert loop.progress.waiting == "warming up 20k / 50k steps"
    loop.go(20, steps=40_000)
    assert loop.progress.waiting == "warming up"
    assert loop.progress.takes_long() == ""


def test_the_pace_is_that_of_learning(monkeypatch):
    loop = Fake(monkeypatch, 1_000_000, warmup=10_000)
    loop.go(10, steps=20_000)
    loop.go(20, steps=100, updates=100)
    assert loop.progress.waiting == ""
    assert loop.progress.speed == pytest.approx((5.0, 5.0), rel=0.2)
    loop.go(1000, steps=50_000, updates=50_000)
    assert loop.progress.speed == pytest.approx((50.0, 50.0)), "of the last two minutes"


def test_more_than_two_days_are_warned_of_once(monkeypatch):
    loop = Fake(monkeypatch, 50_000_000)
    loop.go(20, steps=100, updates=100)
    assert loop.progress.takes_long() == "", "measured for too short a time"
    loop.go(40, steps=200, updates=200)
    said = loop.progress.takes_long()
    assert re.match(r"at \S+ steps/s this run takes 11\d more days; in two it comes to step", said)
    assert loop.progress.takes_long() == ""


def test_a_run_of_an_hour_is_not_warned_of(monkeypatch):
    loop = Fake(monkeypatch, 20_000)
    loop.go(60, steps=300, updates=300)
    assert loop.progress.takes_long() == ""


def test_a_refill_shows_its_own_progress(monkeypatch):
    loop = Fake(monkeypatch, 1000, missing=50_000)
    loop.go(10, refilled=20_000)
    assert loop.progress.waiting == "refilling replay 20k / 50k rows"
    assert loop.progress.speed[0] == pytest.approx(2000)


def test_cut_episodes_are_warned_of_once(monkeypatch):
    loop = Fake(monkeypatch, 1000)
    loop.scores.episodes, loop.scores.cut = 171, 398
    said = loop.progress.cuts_many()
    assert "have cut 398 of 569 episodes (70%)" in said and "checkpoint_every=14k" in said
    assert loop.progress.cuts_many() == ""
    few = Fake(monkeypatch, 1000)
    few.scores.episodes, few.scores.cut = 400, 20
    assert few.progress.cuts_many() == ""
    end = Fake(monkeypatch, 1000)
    end.scores.episodes, end.scores.cut, end.step = 171, 398, 1000
    assert end.progress.cuts_many() == "", "the last checkpoint cuts what nobody would finish"


def test_a_run_that_warms_up_or_refills_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(recorder_module.Recorder, "_tick", every_time(recorder_module.Recorder))
    cfg = tiny("dqn", "CartPole-v1", "steps=120", "warmup=80", "save_replay=off")
    path = run(cfg, tmp_path).path
    text = (path / "log.txt").read_text()
    before, _, after = text.rpartition("warming up")
    assert re.search(r"warming up \d\d / 80 steps", text)
    assert "ETA" not in before and "ETA" in after
    more = cfg.model_copy(update={"run": cfg.run.model_copy(update={"steps": 140, "horizon": 120})})
    train_run(more, registry.make(cfg.algo), path=path, resume=True, quiet=True)
    again = (path / "log.txt").read_text().removeprefix(text)
    assert re.search(r"refilling replay \d+ / 1\d\d rows", again)
    assert not re.search(r"(?<![\d.])0 steps/s", again)


def every_time(kind):
    """Progress into the log at every iteration."""
    tick = kind._tick

    def ticked(self):
        self._progress_logged = float("-inf")
        tick(self)

    return ticked
