"""Hogwild workers that die, hang or are stopped: what is noticed, reported and saved."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from pathlib import Path

import psutil
import pytest
import torch

from ludus import registry
from ludus.cli.main import run as command
from ludus.errors import LudusError
from ludus.fleets.health import start_seconds
from ludus.fleets.hogwild.fleet import HogwildFleet
from ludus.fleets.hogwild.shared_parameters import COUNTED, Board, TryLock, count_steps
from ludus.process.fork_server import process_context
from ludus.process.shared_tensors import SharedTensors
from ludus.run.build import build_loop
from ludus.track.callbacks import Callback
from ludus.track.checkpoint.reader import load
from ludus.track.metrics.writer import read_metrics
from ludus.track.run_dir.rundir import RunDir
from tests.contract.tiny import run, tiny
from tests.fleets.test_hogwild_processes import QUICK, family, hogwild, start
from tests.started import survivors


def begun(tmp_path: Path, *settings: str, actors: int = 2, env: str = "CartPole-v1"):
    """A loop whose workers wait for their first fragment, and what it told so far."""
    cfg = tiny("async-q", env, *QUICK, *hogwild(actors), "steps=10M", *settings)
    run_dir = RunDir.create(tmp_path, cfg.env.id, cfg.algo_name, cfg.run.seed)
    loop, _ = build_loop(cfg, registry.make(cfg.algo), run_dir)
    answer: list[str] = []
    loop.fleet.warn = answer.append
    loop.barrier(0)
    return loop, answer


def iterate_until(loop, done, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < deadline
        loop.iterate()


def trained(loop, more: int = 200):
    """Something to wait for: `more` steps from now, and some of every worker."""
    goal = loop.fleet.board.steps + more
    board = loop.fleet.board
    return lambda: board.steps >= goal and all(board.counts[:, 0])


@pytest.mark.slow  # it waits for a hang of 6 s
def test_a_stopped_worker_is_replaced_and_targets_are_copied_meanwhile(tmp_path) -> None:
    loop, answer = begun(tmp_path, "actor.hang_seconds=6", "target_period=50")
    try:
        iterate_until(loop, trained(loop))
        stop_between_turns(loop, 0)
        before, counted = _target(loop), int(loop.fleet.board.control[COUNTED])
        iterate_until(loop, trained(loop, 300))
        assert not torch.equal(before, _target(loop)), "worker 0 is not the only one who copies"
        assert loop.fleet.board.control[COUNTED] > counted + 100 and not replaced(answer)
        iterate_until(loop, lambda: replaced(answer))
        assert replaced(answer) == [
            "actor 0 is replaced: no heartbeat for 6 s; it wrote no stack, as a stopped "
            "process cannot"
        ]
        assert loop.fleet.metrics()["restarts"] == 1
        iterate_until(loop, lambda: loop.fleet.metrics()["alive"] == 2)
    finally:
        loop.close()


def stop_between_turns(loop, worker: int) -> None:
    """Stopped inside its lock, about once in a hundred, it would keep it until it is replaced."""
    while not loop.fleet.step_lock.acquire():
        time.sleep(0.001)
    os.kill(loop.fleet.members[worker].process.pid, signal.SIGSTOP)
    time.sleep(0.2)
    loop.fleet.step_lock.release()


def test_while_someone_keeps_the_turn_workers_train_and_their_steps_are_counted_later(
    tmp_path,
) -> None:
    loop, _ = begun(tmp_path, "target_period=50")
    try:
        iterate_until(loop, trained(loop))
        while not loop.fleet.step_lock.acquire():
            time.sleep(0.001)
        before, counted = _target(loop), int(loop.fleet.board.control[COUNTED])
        iterate_until(loop, trained(loop, 300))
        assert loop.fleet.board.control[COUNTED] == counted and torch.equal(before, _target(loop))
        loop.fleet.step_lock.release()
        iterate_until(loop, trained(loop))
        assert loop.fleet.board.control[COUNTED] > counted + 300
        assert not torch.equal(before, _target(loop))
    finally:
        loop.close()


def _target(loop) -> torch.Tensor:
    return torch.cat([p.flatten().clone() for p in loop.learner.net["target"].parameters()])


def test_a_lone_worker_whose_environment_sleeps_is_replaced_with_its_stack(tmp_path) -> None:
    env = "tests.run.sleepers:Sleeper"
    loop, answer = begun(
        tmp_path, "actor.hang_seconds=2", "env.args={after: 40}", actors=1, env=env
    )
    try:
        iterate_until(loop, lambda: replaced(answer))
        first = replaced(answer)[0]
        assert "no heartbeat for 2 s in sleepers.py:" in first
        assert " in step; its stack is in " in first and first.endswith("/crash")
        [stack] = tmp_path.glob("*/crash/actor-0-0.stack")
        assert "sleepers.py" in stack.read_text() and "in step" in stack.read_text()
    finally:
        loop.close()
    assert not list(tmp_path.glob("*/crash/actor-0-1.stack")), "empty files are not kept"


def test_a_worker_that_wakes_up_after_the_verdict_is_spared(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(
        "ludus.process.supervisor.DUMP_SECONDS", 20.0
    )  # a busy machine may wake it late
    loop, answer = begun(tmp_path, "actor.hang_seconds=1.5")
    try:
        iterate_until(loop, trained(loop))
        member = loop.fleet.members[1]
        os.kill(member.process.pid, signal.SIGSTOP)
        iterate_until(loop, lambda: member.dump_asked is not None)
        os.kill(member.process.pid, signal.SIGCONT)
        iterate_until(loop, lambda: member.dump_asked is None)
        iterate_until(loop, trained(loop))
        assert loop.fleet.members[1] is member
        assert "actor 1 sent no heartbeat for 1.5 s, then continued" in answer and not replaced(
            answer
        )
    finally:
        loop.close()


def replaced(answer: list[str]) -> list[str]:
    """Without those who were silent for a while: on a busy machine anybody may be."""
    return [line for line in answer if "is replaced" in line]


@pytest.mark.parametrize(
    "number", [signal.SIGKILL, pytest.param(signal.SIGSTOP, marks=pytest.mark.slow)]
)
def test_a_lone_worker_lost_around_a_barrier_is_replaced(number, tmp_path) -> None:
    loop, answer = begun(tmp_path, "actor.hang_seconds=3", actors=1)
    try:
        iterate_until(loop, trained(loop))
        loop.pause()
        os.kill(loop.fleet.members[0].process.pid, number)
        if number == signal.SIGKILL:
            loop.fleet.members[0].process.join(10)  # so that the pipe is broken when it is used
        loop.barrier(1)
        assert len(replaced(answer)) == 1 and loop.fleet.all_paused
        assert loop.fleet.members[0].job.barrier == 1
        iterate_until(loop, trained(loop))
        loop.pause()
        loop.barrier(2)
        assert len(replaced(answer)) == 1
    finally:
        loop.close()


class KillOne(Callback):
    """SIGKILL to a worker once training is under way."""

    def __init__(self) -> None:
        self.killed = 0

    def on_episode(self, run, episode):
        if not self.killed and run.loop.fleet.board.of(1, "steps"):
            members = run.loop.fleet.members
            self.killed = members[1].process.pid
            os.kill(self.killed, signal.SIGKILL)


def test_a_worker_that_dies_is_replaced_and_the_run_goes_on(tmp_path) -> None:
    killer = KillOne()
    cfg = tiny("a3c", "CartPole-v1", *QUICK, "steps=3000", *hogwild(2))
    result = run(cfg, tmp_path, callbacks=[killer])
    assert killer.killed and result.reason == "finished" and 3000 <= result.step <= 3010
    what = "actor 1 is replaced: process exited without an error message (signal 9, SIGKILL)"
    assert what in (result.path / "log.txt").read_text()
    events = [e for e in read_metrics(result.path / "events.jsonl") if e["kind"] == "actor"]
    assert [e["what"] for e in events] == [what]
    line = list(read_metrics(result.path / "metrics.jsonl"))[-1]
    assert line["actors/alive"] == 2 and line["actors/restarts"] == 1


@pytest.mark.parametrize("actors", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_the_same_fault_again_and_again_ends_the_run_with_a_checkpoint(
    actors, tmp_path, monkeypatch, capsys
) -> None:
    start, started = HogwildFleet._start_worker, Counter()

    def counted(self, index, generation):
        started[index] += 1
        start(self, index, generation)

    monkeypatch.setattr(HogwildFleet, "_start_worker", counted)
    words = [*QUICK, "env.args={fault: raise, after: 60, length: 20}", "steps=100k",
             "actor.restarts=2", "actor.restart_minutes=30", "tensorboard=off"]  # fmt: skip
    code = command(
        ["train", "a3c", "ludus/Faulty-v0", *words, *hogwild(actors), "--preset", "none", "--quiet",
         "--runs-dir", str(tmp_path), "--run", "x"]
    )  # fmt: skip
    said, path = capsys.readouterr().err, tmp_path / "x"
    assert code == 3 and "E206" in said and "3 actors failed within 30 minutes" in said
    assert "   3 x  ZeroDivisionError in step(): the test environment fails on request" in said
    assert "Traceback" in said and "test_envs.py" in said, "the first one's"
    assert sum(started.values()) == actors + 2, "nobody is started to write the last checkpoint"
    saved = load(path)
    numbers = saved.state["replay"]["numbers"]
    assert numbers["steps_inserted"] == saved.step > 100 and saved.state["updates"] > 20
    assert "test_envs.py" in (path / "crash" / "actor-0-0.txt").read_text()
    assert "test_envs.py" in (path / "log.txt").read_text()


@pytest.mark.slow  # a whole run in a process
def test_an_interrupt_does_not_wait_for_a_worker_that_hangs(tmp_path) -> None:
    parent = start(tmp_path, "actor.hang_seconds=1000")
    pids = family(parent, tmp_path)
    os.kill(_worker(pids), signal.SIGSTOP)
    time.sleep(0.5)
    parent.send_signal(signal.SIGINT)
    assert parent.wait(100) == 130
    assert not survivors(pids)
    saved = load(tmp_path / "it")
    assert saved.step > 0 and saved.state["replay"]["numbers"]["steps_inserted"] == saved.step
    assert "did not pause" in (tmp_path / "it" / "log.txt").read_text()


@pytest.mark.slow  # a whole run in a process
def test_a_killed_main_process_takes_a_stopped_worker_along(tmp_path) -> None:
    parent = start(tmp_path)
    pids = family(parent, tmp_path)
    os.kill(_worker(pids), signal.SIGSTOP)  # it cannot see its parent go
    parent.kill()
    parent.wait(60)
    assert not survivors(pids)


def _worker(pids: list[int]) -> int:
    return next(pid for pid in pids if psutil.Process(pid).name().startswith("ludus-worker"))


def raise_and_count(slab: SharedTensors, lock: TryLock, index: int, times: int) -> None:
    """Every period of 10 steps that is counted goes to `copies`, one after the other."""
    board, copies = Board(slab), slab.tensor("copies").numpy()

    def count(before: int, steps: int) -> None:
        periods = range(before // 10 + 1, steps // 10 + 1)
        copies[list(periods)] += 1

    for _ in range(times):
        board.add(index, "steps", 1)
        count_steps(board, lock, count)


def test_every_step_is_counted_exactly_once_under_concurrency() -> None:
    context, lock = process_context("ludus.fleets.hogwild.worker"), TryLock()
    rooms = Board.room(4) | {"copies": torch.zeros(4001, dtype=torch.int64)}
    slab = SharedTensors.like(rooms, context)
    procs = [
        context.Process(target=raise_and_count, args=(slab, lock, i, 10_000)) for i in range(4)
    ]
    for p in procs:
        p.start()
    for p in procs:
        p.join(120)
    board, copies = Board(slab), slab.tensor("copies")
    assert board.steps == 40_000
    last = int(board.control[COUNTED]) // 10
    assert last > 3990 and bool((copies[1 : last + 1] == 1).all())


def hold(lock: TryLock, pipe) -> None:
    pipe.send(lock.acquire())
    time.sleep(1e6)


def test_a_turn_is_given_back_by_whoever_is_killed() -> None:
    context, lock = process_context("ludus.fleets.hogwild.worker"), TryLock()
    ours, theirs = context.Pipe()
    holder = context.Process(target=hold, args=(lock, theirs), daemon=True)
    holder.start()
    assert ours.recv() and not lock.acquire()
    os.kill(holder.pid, signal.SIGKILL)
    holder.join(10)
    assert lock.acquire()
    lock.release()


def test_a_worker_that_fails_in_its_first_step_ends_the_run_at_once(tmp_path) -> None:
    loop, answer = begun(tmp_path, "env.args={after: -1}", env="tests.run.sleepers:Quitter")
    with pytest.raises(LudusError) as caught:
        iterate_until(loop, lambda: False)
    loop.close()
    assert "before its first rows" in caught.value.what and "exit code 7" in caught.value.what
    assert caught.value.where in ("actor 0", "actor 1")
    assert not replaced(answer)


def test_workers_have_the_time_to_start_that_other_actors_have(tmp_path) -> None:
    loop, _ = begun(tmp_path, "env.num=3")
    member = loop.fleet.members[0]
    ready = loop.fleet._timeout(member)
    member.ready = False
    starting = loop.fleet._timeout(member)
    loop.close()
    assert (ready, starting) == (20, start_seconds(2, 3))


def test_a_worker_that_never_worked_ends_the_start_with_its_traceback(tmp_path) -> None:
    with pytest.raises(LudusError) as caught:
        begun(tmp_path, env="tests.run.sleepers:Broken")
    assert "the wheel came off" in str(caught.value.__cause__)
