"""What each learner gets, and what several learners refuse."""

from __future__ import annotations

import pytest
import torch

from ludus import registry
from ludus.contract import Feed, Fifo, NStep, Plan, Uniform, Unroll
from ludus.envs.make import probe_spec
from ludus.errors import LudusError
from ludus.learn import placement
from ludus.precheck import precheck
from ludus.run.compatibility import conflicting_settings
from ludus.run.learners.share import Share, check_learners
from tests.contract.tiny import tiny


@pytest.mark.parametrize(
    ("name", "words", "what", "fix"),
    [
        ("dqn", ("actors=3",), "run.actors=3 cannot be divided", "run.actors=4"),
        ("dqn", (), "run.actors=1 cannot be divided", "run.actors=2"),
        ("dqn", ("actors=2", "batch=15"), "a batch of 15", "algo.batch=14"),
        ("dqn", ("actors=2", "overlap=on"), "run.overlap=on", "run.overlap=off"),
        ("dqn", ("actors=2", "capture=on"), "run.capture=on", "run.capture=off"),
        ("a3c", ("actors=2", "fleet=hogwild"), "run.fleet=hogwild", "run.fleet=inline"),
        ("dqn", ("actors=2", "fleet=ray"), "run.fleet=ray", "run.fleet=inline"),
        ("ppo", ("actors=2", "minibatches=48"), "48 minibatches", "minibatches=32"),
    ],
)
def test_what_cannot_work_is_refused_before_a_run(name, words, what, fix) -> None:
    with pytest.raises(LudusError, match=what) as caught:
        precheck(tiny(name, "CartPole-v1", "learners=2", *words))
    assert caught.value.code == "E104" and fix in caught.value.fix


@pytest.mark.parametrize(
    ("device", "gpus", "refused"),
    [("cuda:0", 2, "run.device=cuda:0"), ("cuda", 1, "2 learners on 1 GPUs"), ("cuda", 2, "")],
)
def test_every_learner_needs_a_gpu_of_its_own(device, gpus, refused, monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: True)
    cfg = tiny("dqn", "CartPole-v1", "learners=2", "actors=2", f"run.device={device}")
    placement.check_devices(cfg)
    spec, algorithm = probe_spec(cfg.env), registry.make(cfg.algo)
    if refused:
        with pytest.raises(LudusError, match=refused):
            check_learners(cfg, algorithm, spec)
        return
    check_learners(cfg, algorithm, spec)
    assert [Share(cfg, rank).settings(spec).run.device for rank in (0, 1)] == ["cuda:0", "cuda:1"]


def test_an_algorithm_that_changes_nets_after_a_sample_is_refused() -> None:
    cfg = tiny("dqn", "CartPole-v1", "learners=2", "actors=2")

    class Filters(type(registry.make(cfg.algo))):
        def after_sample(self, net, batch, ctx):
            pass

    with pytest.raises(LudusError, match="after_sample"):
        check_learners(cfg, Filters(cfg.algo), probe_spec(cfg.env))


def test_learners_share_actors_batch_capacity_and_warm_up() -> None:
    cfg = tiny("dqn", "CartPole-v1", "learners=2", "actors=4", "warmup=65", "capacity=3001")
    whole, second = registry.make(cfg.algo).plan.for_envs(8), Share(cfg, 1)
    part = second.plan(whole)
    assert (part.batch, part.capacity, part.warmup) == (8, 1501, 33)
    assert part.chunk == whole.chunk and part.replay_ratio == whole.replay_ratio
    assert (second.actors, second.first_actor, second.first_env, second.num_envs) == (2, 2, 4, 4)
    assert Share(cfg, 0).settings().run.actors == 2 and second.settings().run.horizon == 50_000


def test_more_learners_than_cores_are_warned_of(monkeypatch) -> None:
    monkeypatch.setattr("ludus.run.compatibility.available_cores", lambda: 2)
    for learners, warned in ((2, False), (4, True)):
        cfg = tiny("dqn", "CartPole-v1", f"learners={learners}", "actors=4")
        found = conflicting_settings(cfg, registry.make(cfg.algo), probe_spec(cfg.env))
        assert any("learners share 2 cores" in text for text in found) == warned


def test_each_feed_is_shared() -> None:
    cfg = tiny("dqn", "CartPole-v1", "learners=2", "actors=2")
    feeds = (Feed("new", Unroll(4), Fifo(), 64, 0.5), Feed("old", Unroll(4), Uniform(), 512, 0.5))
    part = Share(cfg).plan(Plan(feeds=feeds, batch=4).for_envs(4))
    assert [feed.capacity for feed in part.feeds] == [32, 256] and part.batch == 2
    assert part.capacity == 32


def test_one_learner_has_everything() -> None:
    cfg = tiny("dqn", "CartPole-v1", "actors=2", "compress=bf16")
    plan = Plan(view=NStep(1, 0.9), sampler=Uniform(), batch=3, capacity=10).for_envs(4)
    assert Share(cfg).plan(plan) is plan and Share(cfg).settings() is cfg
    found = conflicting_settings(cfg, registry.make(cfg.algo), probe_spec(cfg.env))
    assert "run.compress=bf16 has no effect with run.learners=1" in found
