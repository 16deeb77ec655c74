"""What every registered algorithm must do, whoever wrote it. Driven by the registry."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

from ludus import registry, seeding
from ludus.envs.config import EnvConfig
from ludus.envs.make import make_envs
from ludus.evals.agent import load_agent
from ludus.run.collector import Collector
from ludus.run.learner import Learner
from ludus.run.values import Values
from ludus.types import Transition
from tests.contract.same import same_checkpoints, same_metrics
from tests.contract.tiny import NAMES, run, tiny

every = pytest.mark.parametrize("name", NAMES)


@every
def test_picklable_and_stateless(name) -> None:
    algorithm = registry.make(tiny(name, "CartPole-v1").algo)
    again = pickle.loads(pickle.dumps(algorithm))
    assert again.plan == algorithm.plan
    before = pickle.dumps(vars(algorithm))
    envs = make_envs(EnvConfig(id="CartPole-v1", num=3), seed=0)
    learner = Learner(algorithm, envs.spec, seed=0)
    collector = Collector(algorithm, envs, seed=0)
    collector.barrier(0)
    collector.collect(learner.net, 4, Values(algorithm.plan, 100).at(0))
    assert pickle.dumps(vars(algorithm)) == before, "an algorithm holds no mutable state"


@every
def test_shapes_of_act_and_loss(name) -> None:
    cfg = tiny(name, "CartPole-v1")
    algorithm = registry.make(cfg.algo)
    plan = algorithm.plan.for_columns(3)
    envs = make_envs(EnvConfig(id="CartPole-v1", num=3), seed=0)
    learner = Learner(algorithm, envs.spec, seed=0)
    collector = Collector(algorithm, envs, seed=0)
    collector.barrier(0)
    values = Values(plan, 1000).at(500)
    rows = collector.collect(learner.net, 7, values).chunk.rows
    assert rows.action.shape == (7, 3) and rows.obs.shape == (8, 3, 4)
    assert rows.action.dtype == torch.int64
    for extra in rows.extras.values():
        assert extra.shape[:2] == (7, 3)
    if plan.capacity:  # single transitions
        flat = rows.obs[:-1].reshape(-1, 4)
        ones = torch.ones(21)
        batch = Transition(flat, rows.action.flatten(), ones, 0.9 * ones, flat)
        learner.ctx.values = values
        loss = algorithm.loss(learner.net, batch, learner.ctx)
        assert loss.value.shape == (21,)
        assert loss.priority is None or loss.priority.shape == (21,)
        assert all(m.dim() == 0 and not m.requires_grad for m in loss.metrics.values())


@every
@pytest.mark.accept(85)
def test_two_equal_runs_give_equal_weights_and_metrics(name, tmp_path) -> None:
    cfg = tiny(name, "CartPole-v1", "steps=700", "checkpoint_every=300")
    one, two = (run(cfg, tmp_path) for _ in range(2))
    assert one.updates > 20
    same_checkpoints(one.path, two.path)
    same_metrics(one.path, two.path)


@every
@pytest.mark.accept(67)
def test_nothing_draws_from_the_global_generators(name, tmp_path) -> None:
    torch.manual_seed(5)
    np.random.seed(5)
    before = torch.get_rng_state(), np.random.get_state()[1].tolist()
    run(tiny(name, "CartPole-v1", "steps=300"), tmp_path)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert np.random.get_state()[1].tolist() == before[1]


def learned_values(name: str, path: Path) -> list[float]:
    """The value the trained agent gives to observations 0..9 of the probe."""
    agent = load_agent(path)
    obs = torch.eye(10)  # a Discrete observation is one-hot
    with torch.no_grad():
        net = agent.net["online"]
        if hasattr(net, "values"):
            return net.values(obs).tolist()
        return net(obs, seeding.generator(0, "probe"), noise=False).q[:, 0].tolist()


PROBE = {
    "dqn": (
        "steps=2000",
        "replay_ratio=16",
        "lr=3e-3->3e-4",
        "gamma=0.9",
        "target_period=30",
        "env.num=4",
    ),
    "ppo": ("steps=4000", "rollout=20", "epochs=6", "lr=1e-2->1e-3", "gamma=0.9", "env.num=4"),
}


@every
@pytest.mark.accept(109)
@pytest.mark.parametrize("end", ["Truncation", "Termination"])
def test_truncation_is_not_termination(name, end, tmp_path) -> None:
    """Reward 1 a step, ten steps, gamma 0.9: worth 10 if merely cut, 1 .. 6.513 if it ends."""
    env = f"ludus/{end}-v0"
    result = run(tiny(name, env, *PROBE[registry.find(name).family]), tmp_path)
    got = learned_values(name, result.path)
    if end == "Truncation":
        assert got == pytest.approx([10.0] * 10, abs=1.0)
    else:
        want = [sum(0.9**k for k in range(10 - t)) for t in range(10)]
        assert got == pytest.approx(want, abs=0.8)


@every
@pytest.mark.accept(150)
def test_the_identity_environment_is_learned(name, tmp_path) -> None:
    cfg = tiny(name, "ludus/Identity-v0", "steps=2500", "lr=3e-3", "gamma=0.5", "env.num=4")
    result = run(cfg, tmp_path)
    evaluation = load_agent(result.path).evaluate(20)
    ideal = load_agent(result.path).spec.max_episode_steps or max(evaluation.lengths)
    assert evaluation.mean >= 0.9 * ideal, json.dumps(evaluation.scores)
