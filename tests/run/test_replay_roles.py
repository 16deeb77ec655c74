"""Replay roles in whole runs: the weights of a replay with the learner, on every kind of replay."""

from __future__ import annotations

import json

import pytest
import torch

import ludus
from ludus import registry
from ludus.algos.impala import Impala
from ludus.cli.main import run as command
from ludus.contract import Feed, Plan, Prioritized, Sequence, Uniform, Unroll
from ludus.envs.make import probe_spec
from ludus.errors import LudusError
from ludus.learn.eager import EagerUpdates
from ludus.learn.staged import CapturedStaged
from ludus.run.build import build_loop
from ludus.run.compatibility import conflicting_settings
from ludus.track.metrics.writer import read_metrics
from ludus.track.run_dir.rundir import RunDir
from tests.contract.tiny import run, tiny

REPLAY = {"algo.warmup": 64, "algo.batch": 16, "algo.replay_ratio": 4.0, "algo.capacity": 2000}
SMALL = {"algo.torso": {"kind": "mlp", "hidden": [16]}, "env.num": 2, "run.steps": 100_000}
KINDS = {
    "dqn": {**SMALL, **REPLAY},
    "rainbow-iqn": {**SMALL, **REPLAY},
    "apex-dqn": {**SMALL, **REPLAY, "algo.chunk": 3},
    "impala": {**SMALL, "algo.unroll": 8, "algo.batch": 4},
    "impala lstm": {**SMALL, "algo.unroll": 8, "algo.batch": 4, "algo.recurrent": {"hidden": 8}},
}


class Unrolls(Impala):
    """Learns again and again from replayed unrolls."""

    def __init__(self, cfg=None) -> None:
        super().__init__(cfg)
        self.plan = Plan(
            Unroll(8), Uniform(), batch=4, capacity=800, chunk=8, warmup=64, replay_ratio=2.0,
            reduce="sum", schedules={"lr": self.cfg.lr},
        )  # fmt: skip


class Sequences(Impala):
    """Learns from prioritised sequences with a burn-in."""

    def __init__(self, cfg=None) -> None:
        super().__init__(cfg)
        self.plan = Plan(
            Sequence(6, 3, 2), Prioritized(normalize="buffer"), batch=4, capacity=800, chunk=4,
            warmup=64, replay_ratio=2.0, reduce="sum", schedules={"lr": self.cfg.lr},
        )  # fmt: skip

    def loss(self, net, batch, ctx):
        found = super().loss(net, batch, ctx)
        return found._replace(priority=found.value.detach().abs())


class Feeds(Impala):
    """Learns from new and old unrolls at once."""

    def __init__(self, cfg=None) -> None:
        super().__init__(cfg)
        new = Feed("new", Unroll(8), Uniform(), 80, 0.25)
        old = Feed("old", Unroll(8), Uniform(), 800, 0.75)
        self.plan = Plan(
            feeds=(new, old), batch=4, chunk=8, warmup=64, replay_ratio=2.0, reduce="sum",
            schedules={"lr": self.cfg.lr},
        )  # fmt: skip


PROBES = {"unrolls": Unrolls, "unrolls lstm": Unrolls, "sequences": Sequences, "feeds": Feeds}
BASE = {"unrolls lstm": "impala lstm"} | dict.fromkeys(("unrolls", "sequences", "feeds"), "impala")


def loop_of(path, name, replays, *, fleet="inline", actors=2, **more):
    base = BASE.get(name, name)
    settings = {
        **KINDS[base], "run.fleet": fleet, "run.actors": actors, "run.exact": "on",
        "run.replays": replays, **more,
    }  # fmt: skip
    cfg = ludus.config(base.split()[0], "CartPole-v1", **settings)
    algorithm = registry.make(cfg.algo)
    if name in PROBES:
        algorithm = PROBES[name](algorithm.cfg)
    loop, _ = build_loop(cfg, algorithm, RunDir(path))
    loop.barrier(0)
    return loop


def train(loop, updates):
    while loop.learner.updates < updates:
        loop.iterate()
    return torch.cat([p.detach().flatten() for p in loop.learner.net.parameters()]).clone()


def weights_of(path, *words, updates=120, **more):
    loop = loop_of(path, *words, **more)
    try:
        first = train(loop, updates // 2)
        loop.flush()
        loop.barrier(1)
        counts = loop.store.steps_inserted, loop.store.samples_drawn, loop.store.size
        return first, train(loop, updates), counts
    finally:
        loop.close()


@pytest.mark.parametrize("name", ["dqn", "rainbow-iqn", "apex-dqn", *PROBES])
def test_one_role_learns_the_weights_of_a_replay_with_the_learner(tmp_path, name):
    """Lockstep, no sample ahead: bit for bit, also after a barrier."""
    alone = weights_of(tmp_path / "a", name, 0)
    apart = weights_of(tmp_path / "b", name, 1)
    assert torch.equal(alone[0], apart[0]) and torch.equal(alone[1], apart[1])
    assert alone[2] == apart[2] and not torch.equal(alone[0], alone[1])


@pytest.mark.parametrize("name", ["apex-dqn", "sequences"])
def test_overlap_and_actor_processes_change_nothing_either(tmp_path, name):
    more = {"fleet": "inline" if name in PROBES else "processes", "run.overlap": "on"}
    alone = weights_of(tmp_path / "a", name, 0, **more)
    apart = weights_of(tmp_path / "b", name, 1, **more)
    assert torch.equal(alone[1], apart[1]) and alone[2] == apart[2]


@pytest.mark.parametrize("name", ["dqn", "sequences"])
def test_captured_updates_learn_the_same_from_staged_samples(tmp_path, name):
    found = []
    for capture in ("off", "on"):
        loop = loop_of(tmp_path / capture, name, 1, **{"run.capture": capture})
        try:
            found.append(train(loop, 60))
            assert isinstance(loop.updates, CapturedStaged if capture == "on" else EagerUpdates)
        finally:
            loop.close()
    assert torch.equal(*found)


@pytest.mark.parametrize("name", ["rainbow-iqn", "unrolls"])
@pytest.mark.parametrize(("replays", "ahead"), [(1, 3), (2, 0), (2, 2)])
def test_lockstep_is_deterministic_with_samples_ahead_and_several_roles(
    tmp_path, name, replays, ahead
):
    more = {"run.prefetch": ahead, "updates": 80}
    one = weights_of(tmp_path / "a", name, replays, **more)
    two = weights_of(tmp_path / "b", name, replays, **more)
    assert torch.equal(one[0], two[0]) and torch.equal(one[1], two[1])
    assert one[2] == two[2]


def test_the_pace_is_that_of_the_replay_ratio(tmp_path):
    loop = loop_of(tmp_path, "dqn", 2, fleet="processes", **{"run.exact": "off"})
    try:
        train(loop, 200)
        drawn, inserted = loop.store.samples_drawn, loop.store.steps_inserted
        assert drawn == loop.learner.updates * 16
        # Each role may be one batch early; chunks and samples on their way may be missing.
        assert drawn <= 4.0 * (inserted - 64) + 2 * 16
        assert loop.step >= inserted, "chunks may be on their way"
        find, loop.store._find = loop.store._find, lambda: False
        while loop.store.steps_inserted < inserted + 100:
            loop.iterate()  # no sample has arrived yet
        loop.store._find = find
        loop.flush()  # as before a checkpoint: nothing is left to do
        drawn, inserted = loop.store.samples_drawn, loop.store.steps_inserted
        assert inserted == loop.step and drawn == loop.learner.updates * 16
        assert 4.0 * (inserted - 64) < drawn <= 4.0 * (inserted - 64) + 2 * 16
    finally:
        loop.close()


def test_items_name_their_environment_and_version(tmp_path):
    loop = loop_of(tmp_path, "dqn", 2, actors=4)
    seen, versions = [set(), set()], set()
    learn = loop.learner.learn

    def watched(sample, values):
        versions.update(sample.batch.version.tolist())
        seen[int(sample.ids[0]) % 2].update(sample.batch.env.tolist())
        return learn(sample, values)

    loop.learner.learn = watched
    try:
        train(loop, 60)
    finally:
        loop.close()
    assert seen == [{0, 1, 2, 3}, {4, 5, 6, 7}] and len(versions) > 10
    assert loop.learner.lag is not None and loop.learner.lag >= 0


@pytest.mark.parametrize(
    ("name", "settings", "what"),
    [
        ("impala", {"run.replays": 1}, "learns from a queue"),
        ("dqn", {"run.replays": 3, "run.actors": 2}, "run.replays=3 with run.actors=2"),
    ],
)
def test_what_roles_cannot_serve_is_refused(tmp_path, name, settings, what):
    cfg = ludus.config(name, "CartPole-v1", **settings)
    with pytest.raises(LudusError, match=what) as found:
        build_loop(cfg, registry.make(cfg.algo), RunDir(tmp_path))
    assert found.value.code == "E104" and "run.replays=" in found.value.fix


def test_metrics_status_and_report_show_the_roles(tmp_path, capsys):
    words = ("run.replays=2", "run.actors=2", "run.prefetch=1", "steps=300", "log.report=true")
    path = run(tiny("dqn", "CartPole-v1", *words), tmp_path).path
    last = read_metrics(path / "metrics.jsonl")[-1]
    assert (last["replay/roles"], last["replay/role_restarts"]) == (2, 0)
    assert last["replay/waiting_samples"] == 0, "none is left where updates are due"
    assert last["replay/role_bytes"] > 1e7 and 0 <= last["time/replay_wait"] <= last["time/learn"]
    shown = json.loads((path / "status.json").read_text())["replay_roles"]
    assert len(shown["pids"].split()) == 2 and shown["roles"] == 2
    assert "waited for replay" in (path / "report.html").read_text()
    assert command(["status", str(path)]) == 0
    assert "replay" in capsys.readouterr().out


def test_settings_of_roles_without_effect_are_named():
    cfg = ludus.config("dqn", "CartPole-v1", **{"run.prefetch": 3, "actor.buffers": 5})
    spec = probe_spec(cfg.env)
    said = conflicting_settings(cfg, registry.make(cfg.algo), spec)
    assert any("run.prefetch=3 has no effect with run.replays=0" in text for text in said)
    cfg = ludus.config(
        "dqn", "CartPole-v1", **{"run.prefetch": 3, "actor.buffers": 5, "run.replays": 1}
    )
    said = conflicting_settings(cfg, registry.make(cfg.algo), spec)
    assert not any("no effect" in text for text in said)
