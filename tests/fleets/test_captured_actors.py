"""run.capture in actor processes: what they are sent, and what they report."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from ludus import registry
from ludus.algos.dqn import DQN
from ludus.collect.device_runner import DeviceRunner
from ludus.collect.policy_runner import HostRunner
from ludus.contract import Values
from ludus.envs.make import probe_spec
from ludus.errors import LudusError
from ludus.fleets import actor_core
from ludus.fleets.actor_core import ActorCore, explain_failure
from ludus.fleets.processes import fleet as processes
from ludus.fleets.processes.actor import Actor, Job, Shared
from ludus.fleets.processes.fleet import ProcessMember
from ludus.fleets.processes.transport import Mailbox
from ludus.learn import autotune as measured
from ludus.learn.autotune import Choice, Way
from ludus.nets.inputs import ImageInput
from ludus.run.build import build_loop
from ludus.track.run_dir.rundir import RunDir
from tests.contract.tiny import tiny
from tests.fleets.test_processes import loop_of, train

WORDS = ("fleet=processes", "actors=2", "env.num=2")


class Waits(DQN):
    """Cannot be captured: without a GPU, the second call stands for that. A step of one slot is
    the fleet's, to see what `act` gives."""

    calls = 0

    def act(self, net, step, *words):
        Waits.calls += len(step.first) > 1
        if len(step.first) > 1 and Waits.calls == 2:
            raise RuntimeError("not permitted when stream is capturing\nand more")
        return super().act(net, step, *words)


def fleet_of(monkeypatch, *settings, **options):
    """A fleet whose actors are not started, and their jobs."""
    jobs = []
    monkeypatch.setattr(processes.ProcessFleet, "start", lambda self, all_: jobs.extend(all_))
    cfg = tiny("dqn", "CartPole-v1", *WORDS, *settings)
    algorithm, spec = Waits(registry.make(cfg.algo).cfg), probe_spec(cfg.env)
    plan = algorithm.plan.for_envs(4)
    net = algorithm.build(spec)
    fleet = processes.ProcessFleet(algorithm, spec, plan, net, cfg, **options)
    fleet.publish(net)
    return fleet, jobs


@pytest.mark.accept(80)
@pytest.mark.accept(81)
def test_an_actor_acts_on_the_device_that_is_its_own(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    for asked, devices in (
        ("cuda", ["cuda:0", "cuda:1", "cuda:2", "cuda:0"]), ("cpu", ["cpu"] * 4),
        ("auto", ["cpu"] * 4), ("cuda:1", ["cuda:1"] * 4),
    ):  # fmt: skip
        _, jobs = fleet_of(monkeypatch, "actors=4", f"actor.device={asked}")
        assert [job.device for job in jobs] == devices
        for job in jobs:
            assert collector_of(monkeypatch, job)["device"] == job.device


def test_an_actor_makes_its_device_the_current_one(monkeypatch):
    """What waits for "the" stream without naming one would otherwise wait for the first GPU's."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    fleet, jobs = fleet_of(monkeypatch, "actors=4", "actor.device=cuda")

    def chosen(device):
        raise InterruptedError(device)

    monkeypatch.setattr(torch.cuda, "set_device", chosen)
    shared = Shared(fleet.board, None, fleet.control)
    with pytest.raises(InterruptedError, match="cuda:1"):
        Actor(Job(jobs[1], False, 0), shared, None)


def test_its_first_captures_are_not_taken_for_a_hang(monkeypatch):
    fleet, (job, _) = fleet_of(monkeypatch, "actor.device=cuda")
    member = ProcessMember(None, None, job=job, mailbox=None, ready=True, reset=True)
    assert fleet._timeout(member) > 100
    member.worked = True
    assert fleet._timeout(member) == fleet.hang
    assert fleet._timeout(replace(member, job=replace(job, device="cpu"), worked=False)) == 20


def test_an_actor_that_runs_out_of_gpu_memory_says_what_to_do():
    error = explain_failure(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate"))
    assert error.code == "E311" and "fewer run.actors" in error.fix


@pytest.mark.parametrize("order", ["channels_last", "contiguous"])
def test_images_lie_in_an_actors_net_as_in_the_learners(tmp_path, monkeypatch, order):
    """As was measured: in another order sums are rounded otherwise, and lockstep is not equal."""
    new = Choice(Way("fp32", order), "just measured")
    monkeypatch.setattr(measured, "measure", lambda *_: new)
    with monkeypatch.context() as patch:
        jobs = []
        patch.setattr(processes.ProcessFleet, "start", lambda self, all_: jobs.extend(all_))
        words = (*WORDS, "run.device=cpu", "run.precision=auto")
        cfg = tiny("dqn", "ludus/IdentityPixels-v0", *words)
        loop, _ = build_loop(cfg, registry.make(cfg.algo), RunDir(tmp_path))
    fleet, job = loop.fleet, jobs[1]
    box = Mailbox(fleet.layout, 2, "wait", fleet.context)
    made = Actor(Job(job, False, 0), Shared(fleet.board, box, fleet.control), None)
    for net in (loop.learner.net, made.core.net):
        inputs = [m for m in net.modules() if isinstance(m, ImageInput)]
        assert inputs and all(m.channels_last == (order == "channels_last") for m in inputs)
    made.core.close()


def collector_of(monkeypatch, job):
    """What an actor asks of its collector; nothing is made."""
    asked = {}
    with monkeypatch.context() as patch:

        def made(_, __, **options):
            asked.update(options)
            return SimpleNamespace(ctx=SimpleNamespace(), runner=SimpleNamespace())

        patch.setattr(actor_core, "Collector", made)
        unborn = ActorCore.__new__(ActorCore)
        unborn.job = job
        unborn._collector(None)
    return asked


@pytest.mark.parametrize(
    ("device", "capture", "captured", "must"),
    [
        ("cuda", "auto", True, False),
        ("cuda", "on", True, True),
        ("cuda", "off", False, False),
        ("cpu", "on", True, True),
        ("cpu", "auto", None, None),
        ("cpu", "off", None, None),
    ],
)
def test_the_setting_reaches_the_collector(monkeypatch, device, capture, captured, must):
    _, (job, _) = fleet_of(monkeypatch, f"actor.device={device}", capture=capture)
    runner = collector_of(monkeypatch, job)["runner"]
    if captured is None:
        assert runner is HostRunner
    else:
        assert runner.func is DeviceRunner
        assert runner.keywords == {"captured": captured, "must_capture": must}


@pytest.mark.parametrize(
    ("device", "capture", "said"),
    [("cuda", "auto", ", captured"), ("cuda", "off", ", eager"), ("cpu", "auto", ""),
     ("cpu", "on", ", emulated: no GPU")],
)  # fmt: skip
def test_the_status_says_how_actors_act(monkeypatch, device, capture, said):
    fleet, _ = fleet_of(monkeypatch, f"actor.device={device}", capture=capture)
    assert fleet.acting == f"in 2 processes, free{said}"


def test_what_actors_fall_back_to_is_said_once_for_each_reason(monkeypatch):
    fleet, _ = fleet_of(monkeypatch, "actor.device=cuda")
    said = [fleet.acting]
    for mode, seconds in (
        ("captured", 1.5), ("eager: no", 0.5), ("eager: no", 0.4), ("eager: never", 0.0),
        ("eager: no", 2.0),
    ):  # fmt: skip
        fleet._handle(None, "acting", (mode, seconds))
        if fleet.acting != said[-1]:
            said.append(fleet.acting)
    assert [text.removeprefix("in 2 processes, free, ") for text in said] == [
        "captured", "some eager: no", "some eager: no, some eager: never",
    ]  # fmt: skip
    assert fleet.capture_seconds == 2.0, "of the slowest: they capture in parallel"


def test_an_actor_tells_once_that_it_fell_back(monkeypatch):
    fleet, (job, _) = fleet_of(monkeypatch)
    monkeypatch.setattr(Waits, "calls", 0)
    # Captured where possible.
    monkeypatch.setattr(actor_core, "choose_runner", lambda *_, **__: DeviceRunner)
    mailbox = Mailbox(fleet.layout, 9, "wait", fleet.context)
    ours, theirs = fleet.context.Pipe()
    made = Actor(Job(job, False, 0), Shared(fleet.board, mailbox, fleet.control), theirs)
    made.core.barrier(0)
    values = Values(made.job.algorithm.plan, 1000).at(0)
    for _ in range(3):
        made._collect({name: float(values[name]) for name in job.names})
    heard = []
    while ours.poll(0):
        heard.append(ours.recv())
    made.core.close()
    assert [kind for kind, _ in heard] == ["acting", "chunk", "chunk", "chunk"]
    mode, _ = heard[0][1]
    assert mode == "eager: RuntimeError: not permitted when stream is capturing"


def test_on_means_it_in_actors_too(tmp_path):
    """In a process of its own: E104 with the reason, not some failure of an actor."""
    cfg = tiny("dqn", "CartPole-v1", *WORDS, "run.capture=on")
    loop, _ = build_loop(cfg, Waits(registry.make(cfg.algo).cfg), RunDir(tmp_path))
    loop.barrier(0)
    with pytest.raises(LudusError, match="E104") as caught:
        for _ in range(100):
            loop.iterate()
    loop.close()
    assert "acting cannot be captured: RuntimeError: not permitted" in caught.value.what


def test_captured_actors_give_the_rows_of_one_process(tmp_path):
    weights = []
    for fleet in ("inline", "processes"):
        loop = loop_of(tmp_path / fleet, "apex-dqn", fleet, **{"run.capture": "on"})
        before = dict(loop.compute_info)
        weights.append(train(loop, 60)[0])
        loop._report_mode_changes()
        seconds = loop.fleet.capture_seconds
        loop.close()
        assert seconds > 0 and loop.compute_info == before, "nothing fell back, nothing is said"
    assert loop.compute_info["acting"] == "in 2 processes, lockstep, emulated: no GPU"
    assert torch.equal(*weights)
