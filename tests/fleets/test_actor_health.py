"""What befalls actors while they wait, hang or start again, and what their learner makes of it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import deque
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import psutil
import pytest

from ludus import config as ludus_config
from ludus import registry
from ludus.cli.main import run as command
from ludus.errors import LudusError
from ludus.fleets.processes import actor
from ludus.run.build import build_loop
from ludus.run.state import pack
from ludus.track.checkpoint.reader import load
from ludus.track.metrics.writer import read_metrics
from ludus.track.run_dir.rundir import RunDir
from tests.fleets.test_hogwild_faults import begun
from tests.fleets.test_processes import KINDS, ORPHANS, free, train
from tests.run.test_faults import ludus, wait_for_updates
from tests.started import kept, survivors


def listen(loop, done, seconds=45.0):
    """Iterate until something has happened."""
    deadline = time.monotonic() + seconds
    while not done():
        loop.iterate()
        assert time.monotonic() < deadline


def test_nothing_is_lost_at_checkpoints(tmp_path):
    """Actors that wait for a place answer what a checkpoint asks, and go on waiting."""
    # The learner is what all wait for.
    loop = free(tmp_path, **{"algo.replay_ratio": 16.0, "actor.rows": 4})
    arrived, add = [], loop.store.add
    loop.store.add = lambda chunk: (arrived.append((chunk.source, chunk.sequence)), add(chunk))
    train(loop, 20)
    for _ in range(6):
        listen(loop, lambda: loop.fleet.metrics()["waiting_chunks"] >= 4)
        time.sleep(0.05)  # every place is full, and the next chunks are waiting
        pack(loop)
        loop.iterate()
    upto = len(arrived)
    listen(loop, lambda: len(arrived) > upto + 8)
    result = loop.fleet.metrics()
    loop.close()
    assert result["dropped_chunks"] == 0 and result["restarts"] == 0
    for source in (0, 1):
        sequence = [s for who, s in arrived if who == source]
        assert sequence == list(range(len(sequence))), "not one is missing"


def test_actors_that_wait_sleep_longer_and_longer(monkeypatch):
    """They would take the cores that the learner needs."""
    slept = []
    monkeypatch.setattr(actor.time, "sleep", slept.append)
    one = actor.Actor.__new__(actor.Actor)
    one.nap, one.pending, one.orders = actor.SHORTEST_NAP, deque(), np.zeros(2)
    one.beats, one.job = np.zeros(1), SimpleNamespace(index=0)
    one.pipe = SimpleNamespace(poll=lambda seconds: False)
    assert not any(one._pause() for _ in range(40))
    assert slept[0] == actor.SHORTEST_NAP and slept == sorted(slept)
    assert slept[-1] == actor.LONGEST_NAP >= 0.005


def test_the_stack_of_a_hung_actor_outlives_its_replacement(tmp_path):
    more = {"actor.hang_seconds": 2, "env.args": {"after": 300}}
    loop = free(tmp_path, env="tests.run.sleepers:Sleeper", **more)
    listen(loop, lambda: loop.fleet.restarts.count > 0)
    index = loop.fleet.restarts.failures[0].actor
    listen(loop, lambda: loop.fleet.members[index].ready)
    loop.close()
    stack = (tmp_path / "crash" / f"actor-{index}-0.stack").read_text()
    assert "sleepers.py" in stack and "in step" in stack
    cause = loop.fleet.restarts.failures[0].cause
    assert "no heartbeat for 2 s in sleepers.py:" in cause and " in step; " in cause
    assert cause.endswith(f"its stack is in {tmp_path / 'crash'}")
    assert all(p.stat().st_size for p in (tmp_path / "crash").iterdir()), "no empty files are left"


def test_an_actor_that_was_only_slow_is_spared(tmp_path, monkeypatch):
    """The heartbeat comes between the verdict and the execution."""
    monkeypatch.setattr(
        "ludus.process.supervisor.DUMP_SECONDS", 20.0
    )  # a busy machine may wake it late
    loop = free(tmp_path, **{"actor.hang_seconds": 1})
    result, member = [], loop.fleet.members[0]
    loop.fleet.warn = result.append
    train(loop, 5)
    os.kill(member.process.pid, signal.SIGSTOP)
    listen(loop, lambda: member.dump_asked is not None)
    os.kill(member.process.pid, signal.SIGCONT)
    listen(loop, lambda: member.dump_asked is None)
    train(loop, loop.learner.updates + 50)
    assert loop.fleet.members[0] is member and loop.fleet.restarts.count == 0
    assert "then continued" in result[0]
    loop.close()


@pytest.mark.parametrize("overflow", ["oldest", "latest"])
def test_a_learner_that_is_away_finds_its_actors_alive(tmp_path, overflow):
    """They announce every chunk until the pipe is full, and send heartbeats while they wait."""
    loop = free(tmp_path, **{"actor.hang_seconds": 1, "actor.overflow": overflow, "actor.rows": 1})
    train(loop, 5)
    members = list(loop.fleet.members)
    beats = loop.fleet.beats
    for _ in range(8):  # longer than the pipe takes to fill
        before, deadline = beats.copy(), time.monotonic() + 30
        time.sleep(0.5)
        while (beats == before).any():
            time.sleep(0.01)
            assert time.monotonic() < deadline
    train(loop, loop.learner.updates + 50)
    assert loop.fleet.members == members and loop.fleet.restarts.count == 0
    loop.close()


def test_a_replacement_that_hangs_before_it_is_ready_is_replaced_too(tmp_path):
    marker = tmp_path / "hang"
    more = {"actor.hang_seconds": 3, "env.args": {"marker": str(marker)}}
    loop = free(tmp_path, env="tests.run.sleepers:Stuck", **more)
    train(loop, 5)
    marker.touch()
    os.kill(loop.fleet.members[0].process.pid, signal.SIGKILL)
    listen(loop, lambda: loop.fleet.restarts.count == 2, seconds=120.0)
    assert "no heartbeat" in loop.fleet.restarts.failures[1].cause
    marker.unlink()
    listen(loop, lambda: all(m.ready for m in loop.fleet.members))
    loop.close()


@pytest.mark.parametrize("overflow", ["wait", pytest.param("latest", marks=pytest.mark.slow)])
def test_a_killed_group_leaves_no_process_and_no_memory(tmp_path, overflow):
    """Nobody is left to clean up: not even the process that Python has for it."""
    script = tmp_path / "orphans.py"
    script.write_text(ORPHANS)
    parent = subprocess.Popen(
        [sys.executable, str(script), str(tmp_path), overflow], stdout=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}, start_new_session=True,
    )  # fmt: skip
    kept(parent)
    assert parent.stdout is not None
    actors = [int(word) for word in parent.stdout.readline().split()]
    assert len(actors) == 2
    named = set().union(*map(shared_files, [parent.pid, *actors]))
    os.killpg(parent.pid, signal.SIGKILL)
    parent.wait()
    assert not survivors(actors)
    assert not [name for name in named if Path(name).exists()]


def shared_files(pid):
    """What a process has mapped of /dev/shm under a name; others use it at the same time."""
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    words = [line.split() for line in lines if "/dev/shm/" in line]
    return {w[5] for w in words if w[-1] != "(deleted)"}


@pytest.mark.slow  # a whole run in a process, killed and resumed
def test_a_killed_learner_goes_on_from_its_newest_checkpoint(tmp_path):
    """Its actors end with it; the resumed run has new ones and the replay, and loses no more than
    one interval."""
    path, interval = tmp_path / "x", 400
    process = ludus(
        "train", "dqn", "CartPole-v1", "steps=100M", "warmup=64", "batch=8", "fleet=processes",
        "actors=2", "env.num=2", "tensorboard=off", "log.every=20", "capacity=50k",
        f"checkpoint_every={interval}", "--runs-dir", tmp_path, "--run", "x",
    )  # fmt: skip
    try:
        wait_for_updates(process, path)
        deadline = time.monotonic() + 60
        while len(list((path / "checkpoints").glob("0*"))) < 3:
            time.sleep(0.02)
            assert time.monotonic() < deadline
        actors = psutil.Process(process.pid).children(recursive=True)
        assert len(actors) >= 2
    finally:
        process.kill()
        process.communicate(timeout=30)
    assert not survivors(p.pid for p in actors)
    reached = read_metrics(path / "metrics.jsonl")[-1]["step"]
    saved = load(path)
    chunks = 2 * 2 * 16 * 4  # rows arrive by chunks: 16 of 2 slots of 2 actors, a few at once
    assert 0 <= reached - saved.step <= interval + chunks
    assert command(["resume", str(path), f"steps={saved.step + 400}", "-q"]) == 0
    after = load(path)
    assert after.step >= saved.step + 400 and after.state["updates"] > saved.state["updates"]
    assert after.state["replay"]["size"] > saved.state["replay"]["size"] > 0, "so did the replay"
    assert read_metrics(path / "metrics.jsonl")[-1]["actors/alive"] == 2


def test_first_episodes_may_take_as_long_as_environments_take_to_be_made(tmp_path):
    """One slot alone takes longer than the silence that is borne later."""
    more = {"actor.hang_seconds": 1, "env.args": {"seconds": 2.5}}
    loop = free(tmp_path, env="tests.run.sleepers:LateRiser", **more)
    result = loop.fleet.metrics()
    loop.close()
    assert result["restarts"] == 0 and result["alive"] == 2


def made(tmp_path, **more):
    """A loop whose actors have their environments, and no episode yet."""
    settings = {**KINDS["dqn"], "run.fleet": "processes", "run.actors": 2, "actor.hang_seconds": 1}
    env = more.pop("env", "CartPole-v1")
    cfg = ludus_config("dqn", env, **{**settings, **more})
    return build_loop(cfg, registry.make(cfg.algo), RunDir(tmp_path))[0]


def test_the_limit_of_the_start_is_for_each_environment(tmp_path):
    """Four first episodes, one after the other, take twice as long as one of them may."""
    more = {"env.num": 4, "env.args": {"seconds": 1.0}}
    loop = made(tmp_path, env="tests.run.sleepers:LateRiser", **more)
    loop.fleet.start_timeout = 1.5
    loop.barrier(0)
    result = loop.fleet.metrics()
    loop.close()
    assert result["restarts"] == 0 and result["alive"] == 2


def test_who_is_late_at_the_start_is_named(tmp_path):
    loop = made(tmp_path, **{"run.actors": 3})
    loop.fleet.start_timeout = 3.0
    for index in (1, 2):
        os.kill(loop.fleet.members[index].process.pid, signal.SIGSTOP)
    loop.fleet.beats[:] = time.monotonic()  # both are missed at the same look
    with pytest.raises(LudusError) as caught:
        loop.barrier(0)
    loop.close()
    assert caught.value.code == "E206" and caught.value.where == "actors 1, 2"
    assert "before its first rows: no heartbeat for 3 s" in caught.value.what


@pytest.mark.parametrize(
    ("env", "said"),
    [("Quitter", "exit code 7"), ("Sleeper", "no heartbeat"), ("Raiser", "a tooth broke")],
)
def test_an_actor_that_fails_in_its_first_step_ends_the_run_at_once(tmp_path, env, said):
    more = {"actor.hang_seconds": 1.5, "env.args": {"after": -1}}
    loop = free(tmp_path, env=f"tests.run.sleepers:{env}", **more)
    with pytest.raises(LudusError) as caught:
        listen(loop, lambda: False)
    result = loop.fleet.restarts.count
    loop.close()
    assert said in caught.value.what and result == 0
    assert caught.value.where in ("actor 0", "actor 1", "actors 0, 1") or env == "Raiser"


@pytest.mark.parametrize("fleet", ["processes", "hogwild"])
def test_who_has_no_file_for_its_stack_yet_is_not_asked_for_it(tmp_path, monkeypatch, fleet):
    """The signal would end a replacement that has only just been started."""
    loop = free(tmp_path) if fleet == "processes" else begun(tmp_path)[0]
    members = loop.fleet.members
    first, second = members if fleet == "processes" else members.values()
    asked = []
    with monkeypatch.context() as patch:
        patch.setattr("ludus.process.supervisor.verdict", lambda *_: "ask")
        patch.setattr(os, "kill", lambda *words: asked.append(words))
        first.stacks.unlink()
        loop.fleet._check_health()
    loop.close()
    assert asked == [(second.process.pid, signal.SIGUSR1)]


def test_actors_that_are_spared_all_the_time_do_not_flood_the_screen(tmp_path, monkeypatch):
    loop = free(tmp_path)
    result = []
    loop.fleet.warn = result.append
    monkeypatch.setattr("ludus.process.supervisor.verdict", lambda *_: "spare")
    for _ in range(20):
        loop.fleet._check_health()
    loop.close()
    assert result == [f"actor {i} sent no heartbeat for 20 s, then continued" for i in (0, 1)]
