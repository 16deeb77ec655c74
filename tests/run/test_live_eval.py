"""A process that follows the learner's weights: its own curve, and nobody waits for it."""

from __future__ import annotations

import csv
import os
import signal
import time
from itertools import pairwise

import numpy as np
import pytest

import ludus
from ludus import registry
from ludus.envs.make import probe_spec
from ludus.run import live_eval
from ludus.run.live_eval import LiveEvaluator
from ludus.units import show_count
from tests.contract.tiny import run, tiny


def lines(path):
    with (path / "evals.csv").open() as file:
        return list(csv.DictReader(file))


@pytest.mark.accept(147)
@pytest.mark.parametrize("fleet", ["inline", "processes"])
def test_new_weights_are_evaluated_beside_training(tmp_path, fleet):
    settings = ("steps=4000", "eval.live=true", "eval.episodes=3", "eval.every=100",
                f"fleet={fleet}", "env.num=2")  # fmt: skip
    path = run(tiny("dqn", "CartPole-v1", *settings), tmp_path).path
    live = [r for r in lines(path) if r["checkpoint"] == "live"]
    assert len(live) >= 2, "a curve, not a point"
    steps = [int(r["step"]) for r in live]
    assert all(b - a >= 100 for a, b in pairwise(steps))
    assert all(int(r["episodes"]) == 3 for r in live)
    assert all(int(r["updates"]) > 0 for r in live)
    first, log = live[0], (path / "log.txt").read_text()
    mean, std = float(first["mean"]), float(first["std"])
    said = f"live evaluation at step {show_count(steps[0])}: {mean:.4g} ± {std:.3g} (3 episodes)"
    assert log.count("live evaluation at step") == len(live) and said in log
    others = [r for r in lines(path) if r["checkpoint"] != "live"]
    assert len(others) == 1, "and the one at the end"


def test_it_asks_for_one_core_however_many_training_has():
    """Emulator threads beside those of training would take turns with them."""
    for threads in ("auto", 8):
        env = ludus.config("dqn", "pong", **{"env.threads": threads}).env
        assert env.threads == threads and live_eval.one_core(env).threads == 1
    plain = tiny("dqn", "CartPole-v1").env
    assert live_eval.one_core(plain) is plain


def test_one_that_rests_gives_signs_of_life(monkeypatch):
    """Rests may be longer than actor.hang_seconds."""
    monkeypatch.setattr(live_eval, "BEAT_SECONDS", 0.05)
    beat, start = np.zeros(1), time.monotonic()
    live_eval.rest(beat, 0.2)
    end = time.monotonic()
    assert end - start >= 0.2 and beat[0] > start + 0.09


def test_the_weights_are_those_of_the_step(tmp_path, monkeypatch):
    """What the evaluator is given is what the learner had, number for number."""
    given = []
    publish = live_eval.WeightsBoard.publish

    def watched(self, net, updates):
        given.append(updates)
        publish(self, net, updates)

    monkeypatch.setattr(live_eval.WeightsBoard, "publish", watched)
    settings = ("steps=3000", "eval.live=true", "eval.episodes=2", "eval.every=200")
    path = run(tiny("dqn", "CartPole-v1", *settings), tmp_path).path
    told = [int(r["updates"]) for r in lines(path) if r["checkpoint"] == "live"]
    assert told and told == given[: len(told)]


class Told:
    """Stands for a recorder."""

    def __init__(self) -> None:
        self.said = []
        self.writer = self.board = self

    def say(self, text):
        self.said.append(text)

    def evaluation(self, *_, **__):
        return {"mean": 0.0, "std": 0.0}

    def event(self, *_, **__): ...

    def write(self, *_): ...


def test_a_dead_evaluator_is_replaced_and_then_given_up():
    cfg = tiny("dqn", "CartPole-v1", "eval.live=true")
    algorithm = registry.make(cfg.algo)
    told = Told()
    evaluator = LiveEvaluator(cfg, algorithm, algorithm.build(probe_spec(cfg.env)), told)
    killed = []
    for count in range(1, 4):
        killed.append(evaluator.process)
        os.kill(evaluator.process.pid, signal.SIGKILL)
        evaluator.process.join()
        deadline = time.monotonic() + 30
        while evaluator.failures < count:
            evaluator.tend(1, 0)
            assert time.monotonic() < deadline
    assert len({p.pid for p in killed}) == 3
    assert "a new one starts" in told.said[0] and "goes on without one" in told.said[2]
    evaluator.tend(1, 5)  # nobody is there to mind
    evaluator.close()
    assert not any(p.is_alive() for p in killed)


def test_it_rests_but_has_the_priority_of_everybody():
    """Both at once left it nothing of a small machine."""
    cfg = tiny("dqn", "CartPole-v1", "eval.live=true")
    algorithm, told = registry.make(cfg.algo), Told()
    evaluator = LiveEvaluator(cfg, algorithm, algorithm.build(probe_spec(cfg.env)), told)
    deadline = time.monotonic() + 60
    while not evaluator.ready:
        evaluator.tend(0, -1)
        assert time.monotonic() < deadline
    priority = os.getpriority(os.PRIO_PROCESS, evaluator.process.pid)
    policy = os.sched_getscheduler(evaluator.process.pid)
    evaluator.close()
    assert priority == os.getpriority(os.PRIO_PROCESS, 0)
    assert policy == os.SCHED_BATCH, "it takes no core from a thread that has one"
    assert os.sched_getscheduler(0) == os.SCHED_OTHER, "training is as it was"


def test_a_hung_evaluator_is_noticed_and_replaced():
    """Its environment sleeps for ever in a step: first said, then given up."""
    settings = ("eval.live=true", "eval.episodes=40", "env.args={after: 50}",
                "actor.hang_seconds=1")  # fmt: skip
    cfg = tiny("dqn", "tests.run.sleepers:Sleeper", *settings)
    algorithm, told = registry.make(cfg.algo), Told()
    evaluator = LiveEvaluator(cfg, algorithm, algorithm.build(probe_spec(cfg.env)), told)
    first, deadline = evaluator.process, time.monotonic() + 30
    while evaluator.failures < 2:
        evaluator.tend(int(time.monotonic()), time.monotonic_ns())
        time.sleep(0.01)
        assert time.monotonic() < deadline
    assert "no sign of life for 1 s" in told.said[0] and "a new one starts" in told.said[0]
    assert not first.is_alive()
    evaluator.close()


class Counting(Told):
    def __init__(self) -> None:
        super().__init__()
        self.results = []

    def evaluation(self, step, updates, *_, **__):
        self.results.append((step, updates))
        return {"mean": 0.0, "std": 0.0}


@pytest.mark.parametrize("patient", [True, False])
def test_the_evaluation_under_way_at_the_end_is_waited_for(monkeypatch, patient):
    endless = ("tests.run.sleepers:Sleeper", "env.args={after: 50}")
    env = ("CartPole-v1",) if patient else endless
    cfg = tiny("dqn", *env, "eval.live=true", "eval.episodes=200")
    algorithm, told = registry.make(cfg.algo), Counting()
    evaluator = LiveEvaluator(cfg, algorithm, algorithm.build(probe_spec(cfg.env)), told)
    deadline = time.monotonic() + 60
    while not evaluator.busy:
        evaluator.tend(7, 3)
        assert time.monotonic() < deadline
    assert not told.results
    if not patient:
        monkeypatch.setattr("ludus.run.live_eval.LAST_SECONDS", -1.0)
    evaluator.finish()
    evaluator.close()
    assert told.results == ([(7, 3)] if patient else [])
    assert "given up" in told.said[-1] or patient, "what is given up is said"
    assert "live evaluation at step 7: 0 ± 0" in told.said[-1] or not patient


def test_an_exception_in_an_evaluation_is_told():
    cfg = tiny("dqn", "tests.run.sleepers:Dying", "eval.live=true", "eval.episodes=200")
    algorithm = registry.make(cfg.algo)
    told = Told()
    evaluator = LiveEvaluator(cfg, algorithm, algorithm.build(probe_spec(cfg.env)), told)
    deadline = time.monotonic() + 60
    while not evaluator.failures:
        evaluator.tend(int(time.monotonic()), time.monotonic_ns())  # always newer weights
        assert time.monotonic() < deadline
    assert "a tooth broke" in told.said[0]
    evaluator.close()
