"""Actors in processes of their own: equal to one process in lockstep, and alive when free."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
import torch

import ludus
from ludus import registry
from ludus.cli.main import run as command
from ludus.run.build import build_loop
from ludus.track.run_dir.rundir import RunDir
from tests.started import kept, survivors

REPLAY = {"algo.warmup": 64, "algo.batch": 16, "algo.replay_ratio": 4.0, "algo.capacity": 2000}
SMALL = {"algo.torso": {"kind": "mlp", "hidden": [16]}, "env.num": 2, "run.steps": 100_000}
KINDS = {
    "dqn": {**SMALL, **REPLAY},
    "rainbow": {**SMALL, **REPLAY},
    "apex-dqn": {**SMALL, **REPLAY, "algo.chunk": 3},
    "ppo": {**SMALL, "algo.rollout": 16, "algo.epochs": 2, "algo.minibatches": 2},
    "pqn": {**SMALL, "algo.torso.layer_norm": True, "algo.rollout": 16, "algo.minibatches": 2},
    "recurrent-ppo": {
        **SMALL,
        "algo.rollout": 16,
        "algo.epochs": 2,
        "algo.minibatches": 2,
        "algo.core_size": 8,
    },
    "impala": {**SMALL, "algo.unroll": 8, "algo.batch": 4},
    "impala lstm": {**SMALL, "algo.unroll": 8, "algo.batch": 4, "algo.recurrent": {"hidden": 8}},
    "a2c": SMALL,
    "actor-critic": SMALL,
    "reinforce": {**SMALL, "env.max_episode_steps": 12},
    "reinforce-baseline": {**SMALL, "env.max_episode_steps": 12},
}


def loop_of(tmp_path, name, fleet, *, env="CartPole-v1", kind=None, **more):
    settings = {**KINDS[name], "run.fleet": fleet, "run.actors": 2, "run.exact": "on", **more}
    cfg = ludus.config(name.split()[0], env, **settings)
    algorithm = registry.make(cfg.algo)
    loop, _ = build_loop(cfg, kind(algorithm.cfg) if kind else algorithm, RunDir(tmp_path))
    loop.barrier(0)
    return loop


def train(loop, updates=200):
    """The weights, and the processes that the rows came from."""
    poll, processes = loop.fleet.poll, set()

    def watched(*words):
        got = poll(*words)
        processes.update(g.process for g in got)
        return got

    loop.fleet.poll = watched
    members = getattr(loop.fleet, "members", [])
    while loop.learner.updates < updates or not all(m.worked or m.job.generation for m in members):
        loop.iterate()
    weights = torch.cat([p.detach().flatten() for p in loop.learner.net.parameters()])
    return weights, processes


def free(tmp_path, **more):
    return loop_of(tmp_path, "dqn", "processes", **{"run.exact": "off", **more})


@pytest.mark.parametrize("overlap", ["off", "on"])
@pytest.mark.parametrize("name", KINDS)
def test_lockstep_processes_equal_one_process_bit_for_bit(tmp_path, name, overlap):
    """Rows in two processes, normalised observations and rewards."""
    options = {"run.overlap": overlap}
    if overlap == "off":
        options |= {"env.normalize.obs": True, "env.normalize.reward": True}
    updates = 10 if name.startswith("reinforce") else 40  # which waits for whole episodes
    weights = []
    for fleet in ("inline", "processes"):
        loop = loop_of(tmp_path / fleet, name, fleet, **options)
        got, processes = train(loop, updates)
        weights.append(got)
        loop.close()
        if fleet == "processes":
            assert len(processes) == 2 and os.getpid() not in processes
        else:
            assert processes == {os.getpid()}
    assert torch.equal(*weights)


def test_a_barrier_cuts_and_reseeds_as_in_one_process(tmp_path):
    weights = []
    for fleet in ("inline", "processes"):
        loop = loop_of(tmp_path / fleet, "dqn", fleet)
        train(loop, 40)
        loop.flush()
        loop.barrier(1)
        weights.append(train(loop, 80)[0])
        loop.close()
    assert torch.equal(*weights)


def test_free_actors_are_learned_from_at_the_configured_pace(tmp_path):
    loop = free(tmp_path)
    train(loop, 200)
    drawn, inserted = loop.store.samples_drawn, loop.store.steps_inserted
    assert drawn == loop.learner.updates * 16 and drawn <= 4.0 * (inserted - 64) + 16
    result = loop.fleet.metrics()
    assert result["alive"] == 2 and result["restarts"] == 0
    assert result["policy_lag"] >= 0
    loop.close()


@pytest.mark.accept(86)
def test_a_killed_actor_is_replaced_and_nothing_half_written_arrives(tmp_path):
    loop = free(tmp_path)
    result = []
    loop.fleet.warn = result.append
    train(loop, 50)
    for round_ in range(3):
        victim = loop.fleet.members[round_ % 2]
        os.kill(victim.process.pid, signal.SIGKILL)
        before = loop.learner.updates
        while loop.fleet.members[round_ % 2] is victim or not all(
            m.ready for m in loop.fleet.members
        ):
            loop.iterate()
        fresh = loop.fleet.members[round_ % 2].job
        assert (fresh.index, fresh.generation) == (round_ % 2, victim.job.generation + 1)
        train(loop, before + 20)
    assert loop.fleet.restarts.count == 3 and len(result) == 3
    assert "signal 9" in result[0]
    _, processes = train(loop, loop.learner.updates + 200)
    assert processes == {m.process.pid for m in loop.fleet.members}, "rows of both replacements"
    assert torch.isfinite(loop.store.ring.tensors["reward"]).all()
    loop.close()


@pytest.mark.parametrize("when", ["before a barrier", "while a chunk is due"])
def test_lockstep_goes_on_after_a_kill(tmp_path, when):
    loop = loop_of(tmp_path, "dqn", "processes")
    train(loop, 20)
    for number in (1, 2, 3):
        os.kill(loop.fleet.members[number % 2].process.pid, signal.SIGKILL)
        if when == "before a barrier":
            loop.barrier(number)
        _, processes = train(loop, loop.learner.updates + 20)
        assert len(processes) >= 2
    loop.barrier(4)
    assert all(not m.answer for m in loop.fleet.members), "every answer was to its question"
    assert loop.fleet.restarts.count == 3
    loop.close()


# How an actor falls silent, and in which environment.
SILENT = {
    "stopped": {"env": "CartPole-v1", "env.native": True},
    "sleeping": {"env": "tests.run.sleepers:Sleeper", "env.args": {"after": 300}},
}


@pytest.mark.parametrize("how", SILENT)
def test_an_actor_without_a_heartbeat_is_replaced(tmp_path, how):
    loop = free(tmp_path, **{"actor.hang_seconds": 2, **SILENT[how]})
    train(loop, 5)
    first = list(loop.fleet.members)
    if how == "stopped":
        os.kill(first[0].process.pid, signal.SIGSTOP)
    while loop.fleet.restarts.count == 0:  # the time limit of every test ends it
        loop.iterate()
    failure = loop.fleet.restarts.failures[0]
    assert "no heartbeat" in failure.cause
    fresh = loop.fleet.members[failure.actor]
    assert fresh.process.pid not in {m.process.pid for m in first}
    goal = loop.learner.updates + 5
    while fresh.process.pid not in train(loop, goal)[1]:  # it delivers rows, which are learned from
        goal += 5
    if how == "sleeping":
        stack = (tmp_path / "crash" / f"actor-{failure.actor}-0.stack").read_text()
        assert "sleepers.py" in stack and "in step" in stack
    loop.close()
    assert not any(m.process.is_alive() for m in first)


def test_the_first_traceback_is_what_the_user_sees(tmp_path):
    with pytest.raises(ludus.LudusError) as caught:
        free(tmp_path, env="tests.run.sleepers:Broken")
    assert "the wheel came off" in str(caught.value.__cause__)


def test_too_many_failures_end_the_run_with_a_table_and_a_checkpoint(tmp_path, capsys):
    words = ["train", "dqn", "tests.run.sleepers:Dying", "steps=100k", "warmup=64", "batch=16",
             "fleet=processes", "actors=2", "actor.restarts=2", "tensorboard=off",
             "checkpoint_every=1M", "--quiet", "--runs-dir", str(tmp_path),
             "--run", "x"]  # fmt: skip
    assert command(words) == 3
    said = capsys.readouterr().err
    assert "E206" in said and "3 actors failed within 10 minutes" in said
    assert "3 x  " in said and "a tooth broke" in said
    assert list((tmp_path / "x" / "checkpoints").glob("*")), "nothing learned is lost"
    assert "a tooth broke" in next((tmp_path / "x" / "crash").glob("actor-*.txt")).read_text()


@pytest.mark.accept(68)
@pytest.mark.accept(76)
def test_a_whole_run_by_command_and_its_resume(tmp_path, capsys):
    words = ["train", "dqn", "CartPole-v1", "steps=3000", "fleet=processes", "actors=2",
             "env.num=2", "tensorboard=off", "--quiet", "--runs-dir", str(tmp_path),
             "--run", "x"]  # fmt: skip
    assert command(words) == 0
    assert command(["resume", str(tmp_path / "x"), "steps=+1k", "--quiet"]) == 0
    lines = (tmp_path / "x" / "metrics.jsonl").read_text()
    assert "actors/policy_lag" in lines and "actors/alive" in lines
    assert "learner/policy_lag" in lines
    games = (tmp_path / "x" / "episodes.csv").read_text().splitlines()
    slots = {line.split(",")[games[0].split(",").index("slot")] for line in games[1:]}
    assert slots == {"0", "1", "2", "3"}, "episodes of both actors"


ORPHANS = """
import sys, time
from pathlib import Path
import ludus
from tests.fleets.test_processes import free
if __name__ == "__main__":
    loop = free(Path(sys.argv[1]), **{"actor.overflow": sys.argv[2]})
    print(*[m.process.pid for m in loop.fleet.members], flush=True)
    while True:
        loop.iterate()
"""


def test_a_killed_parent_leaves_no_process_and_no_memory(tmp_path):
    script = tmp_path / "orphans.py"
    script.write_text(ORPHANS)
    root = str(Path(__file__).parents[2])
    before = set(os.listdir("/dev/shm"))
    parent = subprocess.Popen(
        [sys.executable, str(script), str(tmp_path), "wait"], stdout=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": root},
    )  # fmt: skip
    kept(parent)
    assert parent.stdout is not None
    actors = [int(word) for word in parent.stdout.readline().split()]
    family = [p.pid for p in psutil.Process(parent.pid).children(recursive=True)]
    assert len(actors) == 2 and set(actors) <= set(family)
    os.kill(actors[0], signal.SIGSTOP)  # one that cannot see its parent go
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    assert not survivors(family)
    assert set(os.listdir("/dev/shm")) - before <= names_in_use()


def names_in_use() -> set[str]:
    """Of files in /dev/shm that some process has mapped: other runs on this machine make theirs."""
    names = set()
    for pid in psutil.pids():
        with suppress(OSError):
            lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
            names |= {Path(line.split()[5]).name for line in lines if "/dev/shm/" in line}
    return names


@pytest.mark.accept(73)
def test_the_ladder_goes_over_the_slots_of_all_actors(tmp_path):
    ladder = {"algo.ladder": {"base": 0.4, "alpha": 7.0}}
    loop = loop_of(tmp_path, "apex-dqn", "processes", **ladder)
    result = {}
    for _ in range(60):
        loop.fleet.publish(loop.learner.net)
        for got in loop.fleet.poll(loop.values.at(0)):
            result |= {e.env: e.info["epsilon"] for e in got.episodes}
    loop.close()
    assert result == pytest.approx({i: 0.4 ** (1 + 7 * i / 3) for i in range(4)})
