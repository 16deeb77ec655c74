"""What is foretold: nothing before updates run, then what the pace of learning makes of it."""

from __future__ import annotations

import re
from types import SimpleNamespace

import pytest

from ludus import registry
from ludus.run.recording import progress as progress_module
from ludus.run.recording import recorder as recorder_module
from ludus.run.recording import statistics as clock_module
from ludus.run.recording.progress import Progress
from ludus.run.recording.statistics import Clock, Lapse, Scores
from ludus.run.session import train_run
from ludus.track.metrics.writer import read_metrics
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
        self.checkpoint_time = Lapse(3600.0)
        self.cfg = SimpleNamespace(run=SimpleNamespace(checkpoint_every=1000))
        self.progress = Progress(self.cfg, self)
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


def test_the_default_interval_has_the_same_bound_and_is_noted_only(monkeypatch):
    """12 % of a README run were cut without a word."""
    loop = Fake(monkeypatch, 1000)
    loop.cfg.run.checkpoint_every = None
    loop.scores.episodes, loop.scores.cut = 300, 40
    assert loop.progress.interval_is_default
    assert "have cut 40 of 340 episodes (12%)" in loop.progress.cuts_many()


@pytest.mark.parametrize(("seconds", "wider"), [(0.3, "1.1s"), (600.0, "34m"), (3600.0, "3.4h")])
def test_the_setting_that_cuts_is_the_one_that_is_named(monkeypatch, seconds, wider):
    loop = Fake(monkeypatch, 100_000)
    loop.cfg.run.checkpoint_every = None
    loop.step, loop.scores.episodes, loop.scores.cut = 2500, 166, 34
    loop.checkpoint_time.seconds, loop.checkpoint_time.count = seconds, 3
    assert not loop.progress.interval_is_default
    said = loop.progress.cuts_many()
    assert f"checkpoint_time={wider} " in said and "checkpoint_every" not in said
    by_steps = Fake(monkeypatch, 100_000)
    by_steps.step, by_steps.scores.episodes, by_steps.scores.cut = 2500, 166, 34
    by_steps.checkpoint_time.count = 2
    assert "checkpoint_every=3.4k" in by_steps.progress.cuts_many()


def test_a_run_warns_of_what_its_checkpoints_cut(tmp_path):
    cfg = tiny("dqn", "CartPole-v1", "steps=600", "checkpoint_every=20")
    assert "checkpoint_every=" in reported_of_cuts(run(cfg, tmp_path).path, "warning")


def test_a_run_warns_of_what_checkpoints_by_time_cut(tmp_path):
    """One after every iteration, where the interval alone would have none before the end."""
    cfg = tiny("ppo", "CartPole-v1", "steps=1000", "checkpoint_time=1e-6")
    assert "checkpoint_time=" in reported_of_cuts(run(cfg, tmp_path).path, "warning")


def test_a_run_notes_what_its_default_interval_cuts(tmp_path):
    words = ("steps=4000", "env.max_episode_steps=40", "env.num=8")
    path = run(tiny("ppo", "CartPole-v1", *words), tmp_path).path
    result = reported_of_cuts(path, "note")
    assert "checkpoint_every=" in result
    assert "warning: checkpoints have cut" not in (path / "log.txt").read_text()


def reported_of_cuts(path, kind: str) -> str:
    """What log.txt says, which stands in events.jsonl, too."""
    found = re.findall(rf"{kind}: (checkpoints have cut .*)", (path / "log.txt").read_text())
    assert len(found) == 1
    events = [e["what"] for e in read_metrics(path / "events.jsonl") if e["kind"] == kind]
    assert found[0] in events
    return found[0]


def test_a_run_of_days_warns_while_it_runs(tmp_path, monkeypatch):
    monkeypatch.setattr(recorder_module.Recorder, "_tick", every_time(recorder_module.Recorder))
    monkeypatch.setattr(progress_module, "LONG", 0.0)
    monkeypatch.setattr(progress_module, "MEASURED", 0.0)
    path = run(tiny("dqn", "CartPole-v1", "steps=4000"), tmp_path).path
    assert re.search(r"warning: at \S+ steps/s this run takes", (path / "log.txt").read_text())


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
