"""All processes of a run stopped for a while, and going on: nobody is late, nothing is lost."""

from __future__ import annotations

from collections import deque
from multiprocessing import Pipe
from types import SimpleNamespace

import numpy as np
import pytest

from ludus.envs.config import EnvConfig
from ludus.envs.make import make_envs
from ludus.errors import LudusError
from ludus.fleets.health import Restarts
from ludus.fleets.hogwild import fleet as hogwild
from ludus.fleets.processes import fleet as processes
from ludus.process import supervisor
from ludus.process.supervisor import ActiveClock, Supervisor


@pytest.fixture
def clock(monkeypatch):
    """Seconds, and seconds of work, to be moved by the test."""
    now = [1000.0, 10.0]
    fake = SimpleNamespace(monotonic=lambda: now[0], process_time=lambda: now[1])
    monkeypatch.setattr(supervisor, "time", fake)
    return now


def test_a_clock_that_was_stopped_goes_on_where_it_was(clock):
    it = ActiveClock(2.0)
    clock[0] += 1.5
    assert it.read() == 1.5
    clock[0] += 3600
    assert it.read() == 3.5
    clock[0] += 3600
    clock[1] += 3500
    assert it.read() == 3503.5, "it was busy"
    clock[0] += 10
    clock[1] += 40  # of several threads
    assert it.read() == 3513.5


def stepping_after(monkeypatch, clock, pauses):
    """Environments whose answer to a step comes after such looks, each as long as it says."""
    envs = make_envs(EnvConfig(id="CartPole-v1", num=2, workers=1, timeout=5.0), seed=1)
    envs.reset()
    real, left = supervisor.wait, list(pauses)

    def wait(pipes, seconds):
        if left:
            clock[0] += left.pop(0)
            return []
        return real(pipes, 60)

    monkeypatch.setattr(supervisor, "wait", wait)
    return envs


def test_a_worker_that_was_stopped_with_the_run_is_not_late(monkeypatch, clock):
    envs = stepping_after(monkeypatch, clock, [1000.0, 1.0, 5000.0])
    envs.send(np.zeros(2, np.int64))
    got = envs.recv()
    assert got.reward.tolist() == [1.0, 1.0]
    envs.close()


def test_a_worker_that_does_not_answer_a_running_run_is_late(monkeypatch, clock):
    envs = stepping_after(monkeypatch, clock, [1.0] * 20)
    envs.send(np.zeros(2, np.int64))
    with pytest.raises(LudusError, match="no answer to step within 10 s"):
        envs.recv()
    envs.close()


class Puppet:
    """A process that is there, and no more."""

    exitcode = None
    pid = None

    def is_alive(self):
        return True

    def kill(self): ...


def members_of(kind, hang=20.0):
    """Two actors that are not there, and the heartbeats they would send."""
    it, signs = object.__new__(kind), np.zeros(2)
    members = []
    for index in range(2):
        job = SimpleNamespace(index=index, generation=0, device="cpu", stacks=None)
        words = {"process": Puppet(), "pipe": Pipe()[0], "index": index, "job": job, "ready": True}
        if kind is hogwild.HogwildFleet:
            members.append(hogwild.Member(**words))
        else:
            members.append(processes.ProcessMember(**words, mailbox=None, reset=True, worked=True))
    Supervisor.__init__(it, hang, 300.0, "actor")
    it.__dict__.update(
        beats=signs, board=SimpleNamespace(beats=signs),
        actors=2, workers=2, over=False, restarts=Restarts(20, 10.0),
        members=dict(enumerate(members)) if kind is hogwild.HogwildFleet else members,
    )  # fmt: skip
    dead = []
    it._replace = lambda member, *_: dead.append(member.index)
    it._died = lambda index, *_: dead.append(index)
    it.look = it._check_health
    return it, signs, members, dead


@pytest.mark.parametrize("kind", [processes.ProcessFleet, hogwild.HogwildFleet])
def test_actors_that_were_stopped_with_the_run_are_not_asked(clock, kind):
    it, signs, members, dead = members_of(kind)
    for _ in range(10):
        signs += 1.0
        it.look()
        clock[0] += 0.25
    for _ in range(3):  # thrice, with some work in between
        clock[0] += 3600.0
        it.look()
        assert [m.dump_asked for m in members] == [None, None]
        clock[0] += 1.4
        signs += 1.0
        it.look()
    assert not dead


@pytest.mark.parametrize("busy", [0.0, 1.0])
@pytest.mark.parametrize("gap", [0.25, 4.0, 60.0])
@pytest.mark.parametrize("kind", [processes.ProcessFleet, hogwild.HogwildFleet])
def test_who_is_silent_is_found_however_rarely_the_learner_looks(clock, kind, gap, busy):
    it, signs, _, dead = members_of(kind)
    looks = 0
    while not dead:
        signs[0] += 1.0
        it.look()
        clock[0] += gap
        clock[1] += busy * gap
        looks += 1
    assert dead == [1]
    if busy or gap < 5.0:
        assert looks * gap <= 21.0 + 3 * gap, "asked at the first look after 20 s, then a second"
    else:
        assert looks <= 8


def test_a_replacement_is_asked_to_collect_once(clock):
    """It was hired after its predecessor had delivered, and gets ready while the next chunk is
    due."""
    fleet = object.__new__(processes.ProcessFleet)
    pipes, members = [], []
    for index in range(2):
        ours, theirs = Pipe()
        job = SimpleNamespace(index=index, generation=index, device="cpu", stacks=None)
        member = processes.ProcessMember(
            process=Puppet(), pipe=ours, index=index, job=job, mailbox=None, ready=index == 0
        )
        members.append(member)
        pipes.append(theirs)
    Supervisor.__init__(fleet, 20.0, 300.0, "actor")
    fleet.__dict__.update(
        members=members, actors=2,
        names=("lr",), values=np.zeros(1), orders=np.zeros(1), beats=np.zeros(2),
        notices=deque(), over=False,
    )  # fmt: skip
    fleet._take = lambda: [notice[0].index for notice in fleet.notices]
    pipes[1].send(("ready", None))
    for pipe in pipes:
        pipe.send(("chunk", (0, 0, [], None)))
    assert fleet._together({"lr": 0.0}, lambda: False) == [0, 1]
    for pipe in pipes:
        commands = []
        while pipe.poll(0):
            commands.append(pipe.recv()[0])
        assert commands == ["collect"]


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_stop_while_actors_start_gives_their_replacements_no_longer(clock, device):
    it, _, (member, _), _ = members_of(processes.ProcessFleet)
    member.job.device, member.worked, it.notices = device, False, deque()
    clock[0] += 3600.0
    it._handle(member, "ready", None)
    assert it.slowest == 5.0
    clock[0] += 4.0
    it._handle(member, "chunk", (0, 0, [], None))
    assert it.slowest == (5.0 if device == "cpu" else 9.0), "captures come before the first rows"
