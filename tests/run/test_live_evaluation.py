"""A process that follows the learner's weights: its own curve, and nobody waits for it."""

from __future__ import annotations

import csv
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import psutil
import pytest
import torch

import ludus
from ludus import registry
from ludus.envs.make import probe_spec
from ludus.evals.evaluate import EvalResult, evaluate_policy
from ludus.fleets.processes.transport import weights_of
from ludus.process.supervisor import Child
from ludus.process.yield_cpu import REST, CpuYielder
from ludus.run import live_evaluation as live_eval
from ludus.run.build import build_loop
from ludus.run.live_evaluation import LiveEvaluator
from ludus.run.recording.recorder import Recorder
from ludus.track.run_dir.rundir import RunDir
from ludus.units import show_count
from tests.contract.tiny import run, tiny
from tests.started import survivors


def lines(path):
    with (path / "evals.csv").open() as file:
        return list(csv.DictReader(file))


@pytest.fixture
def unhurried(monkeypatch):
    """Training that waits for two evaluations: on a busy machine it may be over before the second
    has begun."""
    tend, write, written = LiveEvaluator.tend, Recorder.write_evaluation, []

    def count(*words, **more):
        write(*words, **more)
        written.append(words)

    def wait(self, step, updates):
        deadline = time.monotonic() + 100
        tend(self, step, updates)
        while len(written) < min(2, step // 1000):
            assert time.monotonic() < deadline
            time.sleep(0.01)
            tend(self, step, updates)

    monkeypatch.setattr(Recorder, "write_evaluation", count)
    monkeypatch.setattr(LiveEvaluator, "tend", wait)


@pytest.mark.accept(147)
@pytest.mark.usefixtures("unhurried")
@pytest.mark.parametrize("fleet", ["inline", "processes"])
def test_new_weights_are_evaluated_during_training(tmp_path, fleet):
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


@pytest.mark.accept(147)
def test_weights_that_hogwild_workers_share_are_evaluated_too(tmp_path, monkeypatch):
    tend = LiveEvaluator.tend

    def until_asked(self, step, updates):
        """On a busy machine training may be over before the evaluator has started."""
        deadline = time.monotonic() + 100
        tend(self, step, updates)
        while step >= 100 and self.last_evaluated_update < 0:
            assert time.monotonic() < deadline
            time.sleep(0.01)
            tend(self, step, updates)

    monkeypatch.setattr(LiveEvaluator, "tend", until_asked)
    monkeypatch.setattr(live_eval, "LAST_SECONDS", 100.0)
    settings = ("steps=1000", "eval.live=true", "eval.episodes=2", "eval.every=100",
                "fleet=hogwild", "actors=2", "env.num=1")  # fmt: skip
    done = run(tiny("async-q", "CartPole-v1", *settings), tmp_path)
    live = [r for r in lines(done.path) if r["checkpoint"] == "live"]
    assert live and all(0 < int(r["updates"]) <= done.updates for r in live)
    assert all(100 <= int(r["step"]) <= done.step and int(r["episodes"]) == 2 for r in live)


def test_it_asks_for_one_core_however_many_training_has():
    """Emulator threads in addition to those of training would take turns with them."""
    for threads in ("auto", 8):
        env = ludus.config("dqn", "pong", **{"env.threads": threads}).env
        assert env.threads == threads and live_eval.one_core(env).threads == 1
    plain = tiny("dqn", "CartPole-v1").env
    assert live_eval.one_core(plain) is plain
    for workers in (1, 4):
        env = tiny("dqn", "CartPole-v1", "env.num=4", f"env.workers={workers}").env
        assert live_eval.one_core(env).workers == 1


def test_one_that_rests_gives_signs_of_life(monkeypatch):
    """Rests may be longer than actor.hang_seconds."""
    now, signs, beats = [10.0], np.zeros(2), []

    def sleep(seconds):
        beats.append(float(signs[0]))
        now[0] += seconds

    clock = SimpleNamespace(monotonic=lambda: now[0], sleep=sleep)
    monkeypatch.setattr(live_eval, "time", clock)
    live_eval.rest(signs, 1.0)
    assert now[0] == pytest.approx(11.0) and beats[0] == 10.0
    assert all(0 < b - a < 0.21 for a, b in pairwise([*beats, 11.0 + 1e-9]))


def test_a_rest_ends_when_training_does():
    signs = np.zeros(2)
    resting = threading.Thread(target=live_eval.rest, args=(signs, 1e6), daemon=True)
    resting.start()
    while not signs[0]:
        time.sleep(0.01)
    assert resting.is_alive()
    signs[1] = 1
    resting.join(30.0)
    assert not resting.is_alive()


class Asking:
    """Stands for the learner's end of the pipe: weights come after a thousand seconds."""

    def __init__(self, times: int) -> None:
        self.now, self.left, self.sent = 0.0, times, []

    def recv(self):
        self.now += 1000.0
        self.left -= 1
        if self.left < 0:
            raise EOFError
        return 7

    def send(self, message):
        self.sent.append(message[0])


@pytest.mark.parametrize("over", [False, True])
def test_it_rests_for_its_work_and_not_for_the_wait_for_weights(monkeypatch, over):
    """Nor at all once training is over."""
    cfg = tiny("dqn", "CartPole-v1", "eval.live=true")
    algorithm, pipe, slept, signs = registry.make(cfg.algo), Asking(2), [], np.zeros(2)
    board = live_eval.WeightsBoard(algorithm.build(probe_spec(cfg.env)), multiprocessing)
    board.publish(algorithm.build(probe_spec(cfg.env)), 3)
    monkeypatch.setattr("ludus.process.yield_cpu.LOOK", 0.0)
    yielder = CpuYielder(lambda busy, own: True, slept.append, lambda: pipe.now)

    def play(*_, stopping, **__):
        pipe.now += 2.0  # environments are made, and a row is played
        assert stopping() is False and signs[0] > 0
        return EvalResult([1.0], [1], [1], settings={}, ends=["terminal"], marks={})

    monkeypatch.setattr(live_eval, "evaluate_policy", play)
    signs[1] = over
    job = live_eval.Job(algorithm, cfg.env, 2, 2, 1, 1, 0.0, None, "cpu")
    with pytest.raises(EOFError):
        live_eval.evaluate(pipe, job, board, signs, yielder)
    assert pipe.sent == ["ready", "result", "ready", "result", "ready"]
    assert slept == ([] if over else [REST * 2.0, REST * 2.0])


def numbers(net):
    return torch.cat([w.detach().flatten().double() for w in weights_of(net)])


@pytest.mark.usefixtures("unhurried")
def test_the_weights_are_those_of_the_step(tmp_path, monkeypatch):
    """What the evaluator plays with is what the learner had at that moment, number for number."""
    cfg = tiny("dqn", "CartPole-v1", "steps=3000", "eval.live=true", "eval.episodes=2",
               "eval.every=200")  # fmt: skip
    algorithm, given = registry.make(cfg.algo), {}
    publish = live_eval.WeightsBoard.publish

    def watched(self, net, updates):
        publish(self, net, updates)
        on_the_board = algorithm.build(probe_spec(cfg.env))
        assert self.pull(on_the_board)[1] == updates
        assert torch.equal(numbers(on_the_board), numbers(net))
        given[updates] = on_the_board

    monkeypatch.setattr(live_eval.WeightsBoard, "publish", watched)
    live = [r for r in lines(run(cfg, tmp_path).path) if r["checkpoint"] == "live"]
    assert [int(r["updates"]) for r in live] == list(given)[: len(live)] and len(live) >= 2
    first, second = list(given.values())[:2]
    assert not torch.equal(numbers(first), numbers(second)), "the learner went on"
    for row in live:
        again = evaluate_policy(
            algorithm, given[int(row["updates"])], cfg.env, episodes=2, seed=cfg.run.seed,
            epsilon=cfg.eval.epsilon,
        )  # fmt: skip
        assert np.mean(again.scores) == pytest.approx(float(row["mean"]))


class Reports:
    """Stands for a recorder."""

    def __init__(self) -> None:
        self.said = []
        self.writer = self.board = self
        self.cfg = tiny("dqn", "CartPole-v1")

    write_evaluation = Recorder.write_evaluation

    def say(self, text):
        self.said.append(text)

    def evaluation(self, *_, **__):
        return {"mean": 0.0, "std": 0.0}

    def event(self, *_, **__): ...

    def write(self, *_): ...


def test_a_dead_evaluator_is_replaced_and_then_given_up():
    cfg = tiny("dqn", "CartPole-v1", "eval.live=true")
    algorithm = registry.make(cfg.algo)
    result = Reports()
    evaluator = LiveEvaluator(cfg, algorithm, algorithm.build(probe_spec(cfg.env)), result)
    killed = []
    for count in range(1, 4):
        killed.append(evaluator.child.process)
        os.kill(evaluator.child.process.pid, signal.SIGKILL)
        evaluator.child.process.join()
        deadline = time.monotonic() + 120
        while evaluator.failures < count:
            evaluator.tend(1, 0)
            assert time.monotonic() < deadline
    assert len({p.pid for p in killed}) == 3
    assert "a new one starts" in result.said[0] and "goes on without one" in result.said[2]
    evaluator.tend(1, 5)  # nobody is there to mind
    evaluator.close()
    assert not any(p.is_alive() for p in killed)


class Nobody:
    """Stands for a process."""

    exitcode = 1

    def is_alive(self):
        return False

    def join(self, seconds):
        return None


@pytest.fixture
def puppet(monkeypatch):
    """An evaluator whose process is whoever holds `theirs`, the other end of its pipe."""

    def start(self):
        ours, self.theirs = multiprocessing.Pipe()
        self.child, self.asked = Child(Nobody(), ours), time.monotonic()
        self.started = getattr(self, "started", 0) + 1

    monkeypatch.setattr(LiveEvaluator, "_start", start)
    cfg = tiny("dqn", "CartPole-v1", "eval.live=true")
    algorithm = registry.make(cfg.algo)
    return LiveEvaluator(cfg, algorithm, algorithm.build(probe_spec(cfg.env)), Reports())


def test_each_failure_is_reported_once(puppet):
    for count in (1, 2, 3):
        puppet.theirs.send(("error", (None, f"number {count}", "")))
        puppet.tend(1, 0)
        assert puppet.failures == count == len(puppet.written.said)
        assert f"number {count}" in puppet.written.said[-1]
    assert puppet.started == 3 and "goes on without one" in puppet.written.said[-1]
    puppet.close()


@pytest.mark.parametrize("how", ["it is gone", "it fails"])
def test_one_that_fails_after_training_is_reported_and_not_replaced(puppet, how):
    puppet.theirs.send(("ready", None))
    puppet.tend(7, 3)
    assert puppet.busy
    if how == "it is gone":
        puppet.theirs.close()
    else:
        puppet.theirs.send(("error", (None, how, "")))
    puppet.finish()
    (said,) = puppet.written.said
    cause = how if how == "it fails" else "process exited without an error message"
    assert cause in said and "the evaluation of step 7 is lost" in said
    assert puppet.started == 1 and not puppet.busy
    puppet.close()


def test_it_learns_that_training_is_over(puppet):
    assert puppet.signs.array()[1] == 0
    puppet.finish()
    assert puppet.signs.array()[1] == 1
    puppet.close()


def test_it_rests_but_has_the_priority_of_everybody():
    """Both at once left it nothing of a small machine."""
    before = os.sched_getscheduler(0) if hasattr(os, "SCHED_BATCH") else None
    cfg = tiny("dqn", "CartPole-v1", "eval.live=true")
    algorithm, result = registry.make(cfg.algo), Reports()
    evaluator = LiveEvaluator(cfg, algorithm, algorithm.build(probe_spec(cfg.env)), result)
    deadline = time.monotonic() + 120
    while not evaluator.ready:
        evaluator.tend(0, -1)
        assert time.monotonic() < deadline
    priority, policy = os.getpriority(os.PRIO_PROCESS, evaluator.child.process.pid), None
    if hasattr(os, "SCHED_BATCH"):  # Linux
        policy = os.sched_getscheduler(evaluator.child.process.pid)
    evaluator.close()
    assert priority == os.getpriority(os.PRIO_PROCESS, 0)
    assert policy == giving_way(), "it takes no core from a thread that has one"
    assert not hasattr(os, "SCHED_BATCH") or os.sched_getscheduler(0) == before, "as it was"


def giving_way():
    """The policy of a thread that asks to give way: SCHED_BATCH, unless a sandbox forbids it; None
    where there are no policies."""
    if not hasattr(os, "SCHED_BATCH"):
        return None
    got = []

    def ask():
        try:
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))  # of this thread
        except OSError:
            got.append(os.sched_getscheduler(0))
        else:
            got.append(os.SCHED_BATCH)

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    return got[0]


def test_a_hung_evaluator_is_noticed_and_replaced():
    """Its environment sleeps for ever in a step: first said, then given up."""
    settings = ("eval.live=true", "eval.episodes=40", "env.args={after: 50}",
                "actor.hang_seconds=1")  # fmt: skip
    cfg = tiny("dqn", "tests.run.sleepers:Sleeper", *settings)
    algorithm, result = registry.make(cfg.algo), Reports()
    evaluator = LiveEvaluator(cfg, algorithm, algorithm.build(probe_spec(cfg.env)), result)
    first, deadline = evaluator.child.process, time.monotonic() + 120
    while evaluator.failures < 2:
        evaluator.tend(int(time.monotonic()), time.monotonic_ns())
        time.sleep(0.01)
        assert time.monotonic() < deadline
    assert "no heartbeat for 1 s" in result.said[0] and "a new one starts" in result.said[0]
    assert not first.is_alive()
    evaluator.close()


class Counting(Reports):
    def __init__(self) -> None:
        super().__init__()
        self.results = []

    def evaluation(self, step, updates, *_, **__):
        self.results.append((step, updates))
        return {"mean": 0.0, "std": 0.0}


@pytest.mark.accept(147)
def test_updates_go_on_while_the_evaluator_stands_still(tmp_path):
    """It is stopped before it is asked, and continues after 100 more updates."""
    words = ("eval.live=true", "eval.episodes=2", "eval.every=10", "actor.hang_seconds=600")
    cfg = tiny("dqn", "CartPole-v1", "steps=1M", *words)
    algorithm, reports = registry.make(cfg.algo), Counting()
    loop, _ = build_loop(cfg, algorithm, RunDir(tmp_path))
    loop.barrier(0)
    live = LiveEvaluator(cfg, algorithm, loop.learner.net, reports)
    pid = live.child.process.pid
    # Training that waits for it is let go in the end, and is found to have waited.
    release = threading.Timer(60.0, os.kill, (pid, signal.SIGCONT))
    while not live.ready:
        live._read_messages()
    os.kill(pid, signal.SIGSTOP)
    release.start()

    def iterate():
        loop.iterate()
        live.tend(loop.step, loop.learner.updates)

    while not live.busy:
        iterate()
    asked = (live.since, live.last_evaluated_update)
    while loop.learner.updates < asked[1] + 100:
        iterate()
    assert live.busy and not reports.results, "nobody waited for it"
    release.cancel()
    os.kill(pid, signal.SIGCONT)
    while not reports.results:
        iterate()
    assert reports.results[0] == asked, "the weights of then"
    live.close()
    loop.close()


@pytest.mark.parametrize("patient", [True, False])
def test_the_evaluation_under_way_at_the_end_is_waited_for(monkeypatch, patient):
    endless = ("tests.run.sleepers:Sleeper", "env.args={after: 50}")
    env = ("CartPole-v1",) if patient else endless
    cfg = tiny("dqn", *env, "eval.live=true", "eval.episodes=200")
    algorithm, result = registry.make(cfg.algo), Counting()
    evaluator = LiveEvaluator(cfg, algorithm, algorithm.build(probe_spec(cfg.env)), result)
    deadline = time.monotonic() + 120
    while not evaluator.busy:
        evaluator.tend(7, 3)
        assert time.monotonic() < deadline
    assert not result.results
    monkeypatch.setattr(live_eval, "LAST_SECONDS", 200.0 if patient else -1.0)
    if not patient:
        evaluator.finish(lambda: True)
        assert "step 7 was given up: the run was stopped" in result.said[-1]
    evaluator.finish()
    evaluator.close()
    assert result.results == ([(7, 3)] if patient else [])
    assert "was given up: no result after" in result.said[-1] or patient, "it is reported"
    assert "live evaluation at step 7: 0 ± 0" in result.said[-1] or not patient


def test_an_exception_in_an_evaluation_is_reported():
    cfg = tiny("dqn", "tests.run.sleepers:Dying", "eval.live=true", "eval.episodes=200")
    algorithm = registry.make(cfg.algo)
    result = Reports()
    evaluator = LiveEvaluator(cfg, algorithm, algorithm.build(probe_spec(cfg.env)), result)
    deadline = time.monotonic() + 120
    while not evaluator.failures:
        evaluator.tend(int(time.monotonic()), time.monotonic_ns())  # always newer weights
        assert time.monotonic() < deadline
    assert "a tooth broke" in result.said[0]
    evaluator.close()


def test_with_workers_one_of_them_steps_its_environments(monkeypatch):
    """Training has as many as are configured; the evaluator takes turns with its one."""
    monkeypatch.setattr(live_eval, "LAST_SECONDS", 200.0)
    slow = ("ludus/Slow-v0", "env.args={seconds: 0.05, length: 10}")  # else it is over too soon
    cfg = tiny("dqn", *slow, "eval.live=true", "eval.episodes=4", "env.workers=2")
    algorithm, result = registry.make(cfg.algo), Counting()
    evaluator = LiveEvaluator(cfg, algorithm, algorithm.build(probe_spec(cfg.env)), result)
    deadline = time.monotonic() + 120
    while not evaluator.signs.array()[0]:  # its first row
        evaluator.tend(7, 3)
        time.sleep(0.01)
        assert time.monotonic() < deadline and not evaluator.failures
    process = psutil.Process(evaluator.child.process.pid)
    below = process.children(recursive=True)
    workers = [p for p in below if p.ppid() != process.pid]  # the fork server is between
    evaluator.finish()
    evaluator.close()
    assert result.results == [(7, 3)] and len(workers) == 1


ORPHANS = """
import psutil, sys, time
from ludus import registry
from ludus.envs.make import probe_spec
from ludus.run.live_evaluation import LiveEvaluator
from tests.contract.tiny import tiny
from tests.run.test_live_evaluation import Reports
if __name__ == "__main__":
    cfg = tiny("dqn", "tests.run.sleepers:Sleeper", "eval.live=true", "env.args={after: 50}",
               "env.workers=2")
    algorithm = registry.make(cfg.algo)
    evaluator = LiveEvaluator(cfg, algorithm, algorithm.build(probe_spec(cfg.env)), Reports())
    process, below = psutil.Process(evaluator.child.process.pid), []
    while not evaluator.signs.array()[0] or not below:
        evaluator.tend(7, 3)
        below = [p.pid for p in process.children(recursive=True) if p.ppid() != process.pid]
        time.sleep(0.01)
    print(process.pid, *below, flush=True)
    time.sleep(1e6)
"""


@pytest.mark.slow  # a whole run in a process
def test_a_killed_parent_leaves_no_evaluator_and_no_worker_of_it(tmp_path):
    script = tmp_path / "orphans.py"
    script.write_text(ORPHANS)
    parent = subprocess.Popen(
        [sys.executable, str(script)], stdout=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )  # fmt: skip
    try:
        assert parent.stdout is not None
        stopped = [int(word) for word in parent.stdout.readline().split()]
        family = [p.pid for p in psutil.Process(parent.pid).children(recursive=True)]
        assert len(stopped) == 2 and set(stopped) < set(family)
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)  # they cannot see their parent go
    finally:
        parent.kill()
        parent.wait()
    assert not survivors(family)
