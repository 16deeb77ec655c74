"""spec.num_envs: a net that keeps one thing per environment of the run can be built, trained by any
fleet, saved, loaded and evaluated. And queues that respect a warm-up, counted."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from ludus import registry
from ludus.algos import ppo
from ludus.contract import Episode
from ludus.envs.config import EnvConfig
from ludus.envs.make import probe_spec
from ludus.evals.agent import _trained_envs, load_agent
from ludus.learn.learner import Learner
from ludus.run.build import build_loop
from ludus.run.session import train_run
from ludus.track.checkpoint.reader import load
from ludus.track.run_dir.rundir import RunDir
from tests.contract.tiny import tiny


class Statistics(nn.Module):
    """One number for each environment."""

    def __init__(self, num_envs: int) -> None:
        super().__init__()
        self.register_buffer("per_env", torch.zeros(num_envs))


class Counting(ppo.PPO):
    """PPO with one number per environment; `act` checks that it is told the same number."""

    def build(self, spec):
        net = super().build(spec)
        net["statistics"] = Statistics(spec.num_envs)
        return net

    def act(self, net, step, state, ctx):
        if not ctx.evaluating:
            assert len(net["statistics"].per_env) == ctx.spec.num_envs
        return super().act(net, step, state, ctx)


@pytest.mark.parametrize("fleet", ["inline", "processes", "hogwild"])
def test_a_net_with_one_thing_per_environment(fleet, tmp_path, monkeypatch) -> None:
    settings = ("steps=120", "rollout=8", f"fleet={fleet}", "actors=2", "env.num=3")
    more = ("env.normalize.reward=true",) if fleet != "hogwild" else ()
    cfg = tiny("ppo", "CartPole-v1", *settings, *more)
    place = RunDir.create(tmp_path, cfg.env.id, "ppo", 0)
    result = train_run(cfg, Counting(cfg.algo), path=place.path, quiet=True)
    assert result.exit_code == 0 and result.updates
    saved = load(result.path, "last", replay=False)
    assert saved.state["spec"]["num_envs"] == 6
    assert saved.tensors["model"]["statistics.per_env"].shape == (6,)
    monkeypatch.setattr(registry, "make", lambda algo: Counting(algo))
    agent = load_agent(result.path)
    assert agent.spec.num_envs == 6 and agent.net["statistics"].per_env.shape == (6,)
    assert len(agent.evaluate(2).scores) == 2


def test_a_file_without_the_number_uses_the_settings(tmp_path) -> None:
    cfg = tiny("ppo", "CartPole-v1", "steps=60", "rollout=8", "env.num=3")
    place = RunDir.create(tmp_path, cfg.env.id, "ppo", 0)
    result = train_run(cfg, registry.make(cfg.algo), path=place.path, quiet=True)
    saved = load(result.path, "last", replay=False)
    for odd in (None, 0, "x", True):
        saved.state["spec"]["num_envs"] = odd
        assert _trained_envs(saved, cfg) == 3
    saved.state["spec"]["num_envs"] = 5
    assert _trained_envs(saved, cfg) == 5


def test_alone_a_spec_has_one() -> None:
    spec = probe_spec(EnvConfig(id="CartPole-v1", num=4))
    assert spec.num_envs == 1 and replace(spec, num_envs=9) == spec, "not part of its identity"
    net = Learner(Counting(), replace(spec, num_envs=9), seed=0).net
    assert net["statistics"].per_env.numel() == 9


def warming(tmp_path, warmup: int, view=None):
    """A loop of 2 environments and 8 rows a chunk, with every row that is learned from or seen."""
    cfg = tiny("ppo", "CartPole-v1", "rollout=8", "epochs=1", "minibatches=1",
               "env.normalize.obs=true", "env.max_episode_steps=6")  # fmt: skip
    algorithm = registry.make(cfg.algo)
    plan = replace(algorithm.plan, warmup=warmup)
    algorithm.plan = plan if view is None else replace(plan, view=view, chunk=8)
    loop, _ = build_loop(cfg, algorithm, RunDir(tmp_path))
    loop.barrier(0)
    return loop


def test_a_queue_drops_the_unrolls_of_the_warm_up(tmp_path) -> None:
    loop = warming(tmp_path, 40)
    inserted, learned = [], []
    for _ in range(8):
        before = loop.store.steps_inserted
        loop.iterate()
        inserted.append(before)
        learned.append(loop.learner.updates)
    first = next(i for i, n in enumerate(inserted) if n >= 40)
    assert first >= 2
    assert learned == [max(0, i - first + 1) for i in range(8)], (
        "one update for each chunk after it"
    )
    assert loop.store.samples_drawn == loop.store.steps_inserted - inserted[first]
    assert loop.store.columns == 0, "nothing waits that will never be learned from"
    assert int(loop.learner.normalizer.count_0) == loop.store.steps_inserted, "normalisers saw all"
    loop.close()


def test_a_resumed_queue_does_not_warm_up_again(tmp_path) -> None:
    loop, again = warming(tmp_path, 40), warming(tmp_path, 40)
    while not loop.learner.updates:
        loop.iterate()
    again.store.load(*loop.store.state())
    again.iterate()
    assert again.learner.updates == 1
    loop.close()
    again.close()


def test_episodes_of_the_warm_up_are_dropped(tmp_path) -> None:
    loop = warming(tmp_path, 40, Episode(per_env=1))
    queue = loop.store
    while queue.steps_inserted < 40:
        before = queue.steps_inserted
        loop.iterate()
        assert loop.learner.updates == 0 and queue.size == 0
    dropped = queue.dropped
    assert dropped >= 2 and before < 40
    while not loop.learner.updates:
        loop.iterate()
    assert queue.dropped == dropped and queue.samples_drawn <= queue.steps_inserted - before
    loop.close()
