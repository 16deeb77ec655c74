"""Actors on Ray that are killed, hang, raise, find no node or lose a call."""

from __future__ import annotations

import os
import signal

import pytest
import ray
import torch
from ray import exceptions

import ludus
from ludus.fleets.ray import fleet as ray_fleet
from ludus.fleets.ray import member as ray_member
from tests.fleets.ray.test_ray import free
from tests.fleets.test_processes import SILENT, loop_of, train
from tests.started import survivors

pytestmark = pytest.mark.usefixtures("ray_here")


def watch_streams(loop):
    """Assert that no chunk of an actor's stream comes twice or late. Return what came."""
    add, newest, seen = loop.store.add, {}, []

    def watched(chunk):
        source = chunk.source
        last = newest.get(source, -1)
        if chunk.sequence <= last:
            assert chunk.sequence == 0 and chunk.breaks, "a stream begins anew, or goes on"
        newest[source] = chunk.sequence
        seen.append((source, chunk.sequence))
        add(chunk)

    loop.store.add = watched
    return seen


def iterate_until(loop, done):
    while not done():  # the time limit of every test ends it
        loop.iterate()


def test_a_killed_actor_returns_with_its_index_and_no_row_comes_twice_or_half(tmp_path):
    loop = free(tmp_path)
    warnings = []
    loop.fleet.warn = warnings.append
    seen = watch_streams(loop)
    train(loop, 30)
    for index in (0, 1):
        victim = loop.fleet.members[index]
        os.kill(victim.pid, signal.SIGKILL)
        iterate_until(loop, lambda v=victim, i=index: loop.fleet.members[i] is not v)
        fresh = loop.fleet.members[index]
        assert (fresh.job.index, fresh.job.generation) == (index, victim.job.generation + 1)
        iterate_until(loop, lambda f=fresh: f.worked)
        assert fresh.pid != victim.pid
    assert loop.fleet.restarts.count == 2 and len(warnings) == 2
    assert "actor 0 is replaced" in warnings[0]
    assert {source for source, _ in seen} == {0, 1}
    assert torch.isfinite(loop.store.ring.tensors["reward"]).all()
    loop.close()


@pytest.mark.parametrize("when", ["before a barrier", "while a chunk is due"])
def test_lockstep_goes_on_after_a_kill(tmp_path, when):
    loop = loop_of(tmp_path, "dqn", "ray")
    watch_streams(loop)
    train(loop, 5)
    os.kill(loop.fleet.members[1].pid, signal.SIGKILL)
    if when == "before a barrier":
        loop.barrier(1)
    _, processes = train(loop, loop.learner.updates + 5)
    assert len(processes) >= 2 and loop.fleet.restarts.count == 1
    loop.barrier(2)
    assert all(not m.answer for m in loop.fleet.members), "every answer was to its question"
    loop.close()


@pytest.mark.parametrize("how", SILENT)
def test_an_actor_without_a_heartbeat_is_replaced(tmp_path, how):
    loop = free(tmp_path, **{"actor.hang_seconds": 2, **SILENT[how]})
    train(loop, 5)
    first = list(loop.fleet.members)
    if how == "stopped":
        os.kill(first[0].pid, signal.SIGSTOP)
    iterate_until(loop, lambda: loop.fleet.restarts.count)
    failure = loop.fleet.restarts.failures[0]
    assert "no heartbeat" in failure.cause
    fresh = loop.fleet.members[failure.actor]
    iterate_until(loop, lambda: fresh.worked)
    assert fresh.pid not in {m.pid for m in first}
    if how == "sleeping":
        assert "sleepers.py" in failure.cause and "in step" in failure.cause
        assert "in step" in (tmp_path / "crash" / f"actor-{failure.actor}-0.stack").read_text()
    loop.close()
    assert not survivors(m.pid for m in first)


def test_the_first_traceback_is_what_the_user_sees(tmp_path):
    with pytest.raises(ludus.LudusError) as caught:
        free(tmp_path, env="tests.run.sleepers:Broken")
    assert "the wheel came off" in str(caught.value.__cause__)


def test_an_actor_that_raises_is_replaced(tmp_path):
    loop = free(tmp_path, env="tests.run.sleepers:Dying")
    iterate_until(loop, lambda: loop.fleet.restarts.count)
    failure = loop.fleet.restarts.failures[0]
    assert "a tooth broke" in failure.cause and "sleepers.py" in failure.traceback
    fresh = loop.fleet.members[failure.actor]
    assert fresh.job.generation == 1
    iterate_until(loop, lambda: fresh.worked)
    loop.close()


@pytest.mark.accept(88)
def test_an_actor_that_finds_no_room_joins_late(tmp_path, monkeypatch):
    """Training begins with the others and without an evaluator, and goes on with all."""
    monkeypatch.setattr(ray_fleet, "PLACE_SECONDS", 1.0)
    other = ray.remote(num_cpus=3)(Other).remote()
    ray.get(other.here.remote())
    loop = free(tmp_path)
    seen = watch_streams(loop)
    alone = next(m.index for m in loop.fleet.members if m.ready)
    for _ in range(5):
        loop.iterate()
    assert {source for source, _ in seen} == {alone} and loop.fleet.metrics()["alive"] == 1
    loop.barrier(1)
    ray.kill(other)
    iterate_until(loop, lambda: all(m.worked for m in loop.fleet.members))
    assert {source for source, _ in seen} == {0, 1} and loop.fleet.metrics()["alive"] == 2
    loop.barrier(2)
    assert loop.fleet.restarts.count == 0
    loop.close()


class Other:
    """Takes cores from the fleet."""

    def here(self):
        return True


@pytest.mark.parametrize("mode", ["lockstep", "free"])
def test_a_call_that_was_lost_on_the_way_is_repeated(tmp_path, monkeypatch, mode):
    """Ray cannot know whether it was executed: its chunk is counted as lost, none comes twice."""
    loop = free(tmp_path) if mode == "free" else loop_of(tmp_path, "dqn", "ray")
    watch_streams(loop)
    train(loop, 5)
    victim, get, lost = loop.fleet.members[0], ray.get, []

    def unreliable(reference):
        answer = get(reference)
        if not lost and isinstance(answer, list) and answer[-1][0] == "chunk":
            lost.append(answer[-1][1][1])
            raise exceptions.ActorUnavailableError("the connection broke", None)
        return answer

    monkeypatch.setattr(ray_member.ray, "get", unreliable)
    before = loop.fleet.lost
    train(loop, loop.learner.updates + 20)
    assert len(lost) == 1 and loop.fleet.lost == before + 1
    assert loop.fleet.restarts.count == 0 and loop.fleet.members[0] is victim
    loop.close()


def test_a_chunk_that_comes_again_is_refused(tmp_path):
    loop = free(tmp_path)
    train(loop, 5)
    fleet, heard = loop.fleet, []
    handle = fleet._handle

    def twice(member, kind, value):
        handle(member, kind, value)
        if kind == "chunk" and not heard:
            heard.append(value)
            handle(member, kind, value)

    fleet._handle = twice
    seen, before = watch_streams(loop), fleet.lost
    iterate_until(loop, lambda: heard)
    train(loop, loop.learner.updates + 5)
    assert fleet.lost == before + 1 and len(seen) == len(set(seen))
    loop.close()
