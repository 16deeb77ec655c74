"""Replay roles on Ray: the weights of a replay with the learner, losses, and bounded work."""

from __future__ import annotations

import os
import signal
import time

import pytest
import ray
import torch
from ray import exceptions

import ludus
from ludus import registry
from ludus.cli.main import run as command
from ludus.errors import LudusError
from ludus.fleets.ray.replay import client as ray_client
from ludus.fleets.ray.replay import launcher as ray_launcher
from ludus.fleets.ray.replay.role import Answer
from ludus.replay.roles.link import BREAK, FEEDBACK
from ludus.run.build import build_loop
from ludus.track.run_dir.rundir import RunDir
from tests.contract.same import same_checkpoints
from tests.run.test_replay_roles import loop_of, weights_of
from tests.run.test_replay_roles import train as train_to
from tests.started import survivors

pytestmark = pytest.mark.usefixtures("ray_here")


def free(path, replays=1, **more):
    settings = {"fleet": "ray", "run.exact": "off", **more}
    loop = loop_of(path, "rainbow-iqn", replays, **settings)
    loop.roles.warn = (said := []).append
    return loop, said


def train(loop, updates):
    train_to(loop, loop.learner.updates + updates)


@pytest.mark.parametrize("name", ["dqn", "rainbow-iqn"])
def test_one_role_learns_the_weights_of_a_replay_with_the_learner(tmp_path, name):
    """Lockstep, no sample ahead: bit for bit, also after a barrier."""
    alone = weights_of(tmp_path / "a", name, 0)
    apart = weights_of(tmp_path / "b", name, 1, fleet="ray")
    assert torch.equal(alone[0], apart[0]) and torch.equal(alone[1], apart[1])
    assert alone[2] == apart[2] and not torch.equal(alone[0], alone[1])


def test_two_roles_with_samples_ahead_equal_those_in_processes(tmp_path):
    more = {"run.prefetch": 2, "updates": 80}
    one = weights_of(tmp_path / "a", "rainbow-iqn", 2, fleet="processes", **more)
    two = weights_of(tmp_path / "b", "rainbow-iqn", 2, fleet="ray", **more)
    assert torch.equal(one[0], two[0]) and torch.equal(one[1], two[1])
    assert one[2] == two[2]


def test_a_killed_role_is_replaced_and_collects_its_warmup_again(tmp_path):
    loop, said = free(tmp_path, 2)
    train(loop, 30)
    victim, inserted = loop.store.members[0], loop.store.steps_inserted
    assert victim.pid != loop.store.members[1].pid
    os.kill(victim.pid, signal.SIGKILL)
    while loop.store.members[0] is victim:
        loop.iterate()
    fresh = loop.store.members[0]
    assert fresh.job.generation == 1 and fresh.job.counts[2] == 32
    (text,) = said
    assert "replay 0 is replaced" in text and "after 32 more steps" in text
    train(loop, 30)
    while loop.store.missing or not loop.roles.metrics()["role_bytes"]:
        loop.iterate()
    assert loop.store.steps_inserted > inserted and fresh.report.size > 0
    metrics = loop.roles.metrics()
    assert metrics["role_restarts"] == 1 and metrics["roles"] == 2
    pids = [victim.pid, *loop.roles.pids()]
    loop.close()
    assert len(pids) == 3 and not survivors(pids, 5.0)


def test_orders_to_a_stopped_role_are_bounded_until_it_is_replaced(tmp_path):
    loop, said = free(tmp_path, **{"actor.hang_seconds": 3, "actor.buffers": 2})
    train(loop, 10)
    member, most, wait = loop.store.members[0], [], loop.store._wait

    def waiting():
        held = len(member.calls) + len(member.held)
        most.append((held, member.adds, *(m.flying for m in loop.fleet.members)))
        wait()

    loop.store._wait = waiting
    os.kill(member.pid, signal.SIGSTOP)
    while loop.store.members[0] is member:
        loop.iterate()
    places = 2 * 2, loop.roles.made.sample_places
    assert max(row[0] for row in most) <= places[0] + 2 * places[1]
    assert max(row[1] for row in most) == places[0], "the bound was reached"
    assert all(chunks <= 2 for row in most for chunks in row[2:])
    assert "no heartbeat" in said[0]
    train(loop, 5)
    loop.close()
    assert not survivors([member.pid], 5.0)


@pytest.mark.parametrize("executed", [True, False])
def test_orders_that_were_lost_on_the_way_are_executed_once(tmp_path, monkeypatch, executed):
    """Their answers, or the orders themselves: the weights are those without a loss."""
    whole = weights_of(tmp_path / "a", "rainbow-iqn", 1, fleet="ray", updates=60)
    get, lost, client = ray.get, [], ray_client.RayRoleClient

    def losing(reference, **more):
        answer = get(reference, **more)
        if len(lost) < 5 and of_an_order(answer) and answer[-1][1][1][0] > 70:
            lost.append(answer)
            raise exceptions.ActorUnavailableError("the connection broke", None)
        return answer

    def of_an_order(answer):
        return isinstance(answer, list) and answer[-1][0] == "done" and is_state(answer[-1][1])

    def is_state(value):
        return isinstance(value, tuple) and len(value) == len(Answer._fields)

    flush = client._flush

    def dropping(member):
        """Send another order with the number of the next one, before this one."""
        orders = [call for call in member.held if call.name == "execute"]
        able = member.open and time.monotonic() >= member.resend_at and len(lost) < 5
        if able and len(orders) == 1 and orders[0].value.number > 60:
            (order,) = orders
            lost.append(order)
            # It would do harm, were it not refused.
            early = order.value._replace(number=order.value.number + 1, kind=BREAK, place=7)
            member.held[0] = order._replace(value=early)
            flush(member)
            member.calls[-1] = member.calls[-1]._replace(value=order.value)
        flush(member)

    if executed:
        monkeypatch.setattr(ray_client.ray, "get", losing)
    else:
        monkeypatch.setattr(client, "_flush", dropping)
    again = weights_of(tmp_path / "b", "rainbow-iqn", 1, fleet="ray", updates=60)
    assert len(lost) == 5
    assert torch.equal(whole[0], again[0]) and torch.equal(whole[1], again[1])
    assert whole[2] == again[2]


def test_an_error_in_a_role_ends_the_run_with_its_cause(tmp_path):
    loop, _ = free(tmp_path)
    train(loop, 5)
    loop.store.members[0].order(FEEDBACK, 1000)  # there is no such place
    with pytest.raises(LudusError) as found:
        while True:
            loop.iterate()
    loop.close()
    assert found.value.code == "E208" and "KeyError" in found.value.what
    assert "feedback" in found.value.__notes__[0]


WORDS = ("train", "prioritized-dqn", "CartPole-v1", "fleet=ray", "actors=2", "env.num=2",
         "exact=on", "checkpoint_every=400", "horizon=800", "warmup=64", "batch=16",
         "run.replays=2", "run.prefetch=1", "tensorboard=off", "report=off",
         "--quiet")  # fmt: skip


def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path):
    where = ("--runs-dir", str(tmp_path))
    assert command([*WORDS, "steps=800", *where, "--run", "whole"]) == 0
    assert command([*WORDS, "steps=400", *where, "--run", "cut"]) == 0
    assert command(["resume", str(tmp_path / "cut"), "steps=800", "--quiet"]) == 0
    same_checkpoints(tmp_path / "whole", tmp_path / "cut")


def test_a_role_that_no_node_takes_is_one_error(tmp_path, monkeypatch):
    from ludus.replay.roles import supervisor

    monkeypatch.setattr(supervisor, "START_SECONDS", 3.0)
    words = {"ray.replay_resource": "nowhere", "actor.hang_seconds": 1}
    with pytest.raises(LudusError) as found:
        free(tmp_path, **words)
    assert found.value.code == "E208" and "no node offers nowhere" in found.value.what


def test_a_resource_needs_a_cluster_of_its_own(tmp_path, monkeypatch):
    class Started:
        node, closed = object(), False

        def close(self):
            self.closed = True

    made = Started()
    monkeypatch.setattr(ray_launcher, "connect", lambda *_: made)
    cfg = ludus.config(
        "dqn", "CartPole-v1",
        **{"run.fleet": "ray", "run.replays": 1, "ray.replay_resource": "ludus-replay"},
    )  # fmt: skip
    with pytest.raises(LudusError, match=r"without ray\.address") as found:
        build_loop(cfg, registry.make(cfg.algo), RunDir(tmp_path))
    assert found.value.code == "E104" and made.closed
