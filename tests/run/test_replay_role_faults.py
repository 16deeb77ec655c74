"""Replay roles that die, hang or fail, and a learner that is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from ludus.errors import LudusError
from ludus.replay.roles.client import RoleClient
from ludus.replay.roles.link import ADD
from tests.run.test_replay_roles import loop_of
from tests.run.test_replay_roles import train as train_to
from tests.started import kept, survivors


def free(path, replays=1, **more):
    settings = {"fleet": "processes", "run.exact": "off", **more}
    loop = loop_of(path, "rainbow-iqn", replays, **settings)
    loop.roles.warn = (said := []).append
    return loop, said


def train(loop, updates):
    train_to(loop, loop.learner.updates + updates)


@pytest.mark.parametrize("replays", [1, 2])
def test_a_killed_role_is_replaced_and_collects_its_warmup_again(tmp_path, replays):
    loop, said = free(tmp_path, replays)
    train(loop, 30)
    victim, inserted = loop.store.members[0], loop.store.steps_inserted
    os.kill(victim.process.pid, signal.SIGKILL)
    while loop.store.members[0] is victim:
        loop.iterate()
    fresh = loop.store.members[0]
    assert fresh.job.generation == 1 and fresh.job.counts[2] == 64 // replays
    (text,) = said
    assert "replay 0 is replaced" in text and "signal 9" in text
    assert f"after {64 // replays} more steps" in text
    train(loop, 30)
    while loop.store.missing:
        loop.iterate()
    assert loop.store.steps_inserted > inserted and fresh.report.size > 0
    metrics = loop.roles.metrics()
    assert metrics["role_restarts"] == 1 and metrics["roles"] == replays
    loop.close()
    assert not survivors([m.process.pid for m in (victim, fresh)], 5.0)


@pytest.mark.slow
def test_a_role_that_dies_again_and_again_ends_the_run(tmp_path):
    loop, said = free(tmp_path, **{"actor.restarts": 1})
    train(loop, 5)
    with pytest.raises(LudusError) as found:
        for _ in range(2):
            victim = loop.store.members[0]
            os.kill(victim.process.pid, signal.SIGKILL)
            while loop.store.members[0] is victim or not loop.store.members[0].ready:
                loop.iterate()
    loop.close()
    assert found.value.code == "E208" and "signal 9" in found.value.what and len(said) == 1


@pytest.mark.accept(75)
def test_orders_to_a_blocked_role_are_bounded_until_it_is_replaced(tmp_path, monkeypatch):
    """A stopped role takes nothing: the learner waits, and so do the actors behind it."""
    loop, said = free(tmp_path, **{"actor.hang_seconds": 3, "actor.buffers": 2})
    train(loop, 10)
    member, orders, full = loop.store.members[0], [], []
    send, wait = RoleClient.order, loop.store._wait

    def watched(client, *words):
        send(client, *words)
        if client is member:
            orders.append(len(client.under_way))

    def waiting():
        full.append([member.adds, *(m.mailbox.waiting for m in loop.fleet.members)])
        wait()

    monkeypatch.setattr(RoleClient, "order", watched)
    loop.store._wait = waiting
    os.kill(member.process.pid, signal.SIGSTOP)
    while loop.store.members[0] is member:
        loop.iterate()
    places = len(member.memory.inbox.memory), len(member.memory.outbox.memory)
    assert places[0] == 2 * 2, "two chunks of each actor"
    # Each place for a sample has at most priorities and a request under way.
    assert max(orders) <= places[0] + 2 * places[1]
    last = full[-1]
    assert last[0] <= places[0] and all(chunks <= 2 for chunks in last[1:])
    assert max(row[0] for row in full) == places[0], "the bound was reached"
    assert "no heartbeat" in said[0]
    train(loop, 5)
    loop.close()
    assert not member.process.is_alive()


def test_an_error_in_a_role_ends_the_run_with_its_cause(tmp_path):
    loop, _ = free(tmp_path)
    train(loop, 5)
    loop.store.members[0].order(ADD, 1000)  # there is no such place
    with pytest.raises(LudusError) as found:
        while True:
            loop.iterate()
    loop.close()
    assert found.value.code == "E208" and "IndexError" in found.value.what
    assert "take_chunk" in found.value.__notes__[0]


ORPHANS = """
import sys
from pathlib import Path
from tests.run.test_replay_role_faults import free, train
if __name__ == "__main__":
    loop, _ = free(Path(sys.argv[1]), 2)
    train(loop, 3)
    print(*loop.roles.pids(), flush=True)
    while True:
        loop.iterate()
"""


@pytest.mark.slow
def test_a_killed_learner_leaves_no_role(tmp_path):
    script = tmp_path / "orphans.py"
    script.write_text(ORPHANS)
    parent = subprocess.Popen(
        [sys.executable, str(script), str(tmp_path)], stdout=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )  # fmt: skip
    kept(parent)
    assert parent.stdout is not None
    roles = [int(word) for word in parent.stdout.readline().split()]
    family = [p.pid for p in psutil.Process(parent.pid).children(recursive=True)]
    assert len(roles) == 2 and set(roles) <= set(family)
    os.kill(roles[0], signal.SIGSTOP)  # one that cannot see its parent go
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    assert not survivors(family)


def test_a_role_that_is_busy_is_not_taken_for_hung(tmp_path):
    """Only heartbeats count: a learner that pauses for longer than the limit finds it alive."""
    loop, said = free(tmp_path, **{"actor.hang_seconds": 1})
    train(loop, 5)
    time.sleep(2.5)
    train(loop, 5)
    loop.close()
    assert not [text for text in said if "replaced" in text]
