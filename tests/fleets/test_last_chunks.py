"""What becomes of the chunks of an actor that has died: they are learned from, or counted."""

from __future__ import annotations

import os
import signal
import time

import pytest

from tests.fleets.test_processes import free, loop_of, train


def end(member):
    os.kill(member.process.pid, signal.SIGKILL)
    member.process.join()


def listen_until(fleet, done):
    deadline = time.monotonic() + 60
    while not done():
        fleet._listen(0.1)
        assert time.monotonic() < deadline


def emptied(loop):
    """Its fleet, once it has learned a little and taken all that was announced."""
    train(loop, 5)
    loop.flush()
    loop.fleet._take()
    loop.fleet.release()
    loop.fleet.late_episodes.clear()
    return loop.fleet


@pytest.mark.accept(63)
@pytest.mark.parametrize("overflow", ["wait", "latest", "oldest"])
def test_announced_chunks_outlive_their_actor_or_are_counted(tmp_path, overflow):
    """And the episodes that ended in them are told either way."""
    loop = free(tmp_path, **{"actor.overflow": overflow, "actor.rows": 40})
    fleet = emptied(loop)
    member, hear, announced = fleet.members[0], fleet._handle, []

    def noted(who, kind, value):
        if kind == "chunk":
            announced.append(value)
        hear(who, kind, value)

    fleet._handle, before = noted, fleet.lost
    listen_until(fleet, lambda: any(n[0] is member and n[3] for n in fleet.notices))
    end(member)
    listen_until(fleet, lambda: fleet.restarts.count)
    taken = fleet._take()
    result = [e for g in taken for e in g.episodes] + fleet.late_episodes
    unannounced = member.mailbox.waiting_after(member.last_sequence)
    lost = fleet.lost - before
    loop.close()
    assert sorted(result) == sorted(e for _, _, episodes, _ in announced for e in episodes)
    assert len(taken) + lost - unannounced == len(announced)
    if overflow == "wait":
        assert 0 in [g.chunk.source for g in taken] and lost == unannounced


def test_chunks_that_an_actor_could_not_announce_any_more_are_counted(tmp_path):
    loop = free(tmp_path, **{"actor.buffers": 2})
    fleet = emptied(loop)
    member, hear, before = fleet.members[0], fleet._handle, fleet.lost
    fleet._handle = lambda who, kind, value: who is member or hear(who, kind, value)
    listen_until(fleet, lambda: member.mailbox.waiting == 2)
    end(member)
    listen_until(fleet, lambda: fleet.restarts.count)
    result = fleet.metrics()
    loop.close()
    assert result["dropped_chunks"] == before + 2


def test_in_lockstep_a_chunk_that_was_announced_is_not_missed(tmp_path):
    """Every iteration has one of each actor, whoever dies meanwhile."""
    loop = loop_of(tmp_path, "dqn", "processes")
    fleet = emptied(loop)
    hear, first, values = fleet._handle, fleet.members[0], loop.values.at(0)

    def then_dies(member, kind, value):
        hear(member, kind, value)
        if member is first and kind == "chunk":
            end(first)

    fleet._handle = then_dies
    sources = [[g.chunk.source for g in fleet.poll(values)] for _ in range(2)]
    result = fleet.metrics()
    loop.close()
    assert sources == [[0, 1], [0, 1]]
    assert result["restarts"] == 1 and result["dropped_chunks"] == 0
