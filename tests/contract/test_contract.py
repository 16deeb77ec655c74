"""What every registered algorithm must do, whoever wrote it. Driven by the registry."""

from __future__ import annotations

import csv
import json
import math
import pickle
from multiprocessing.process import BaseProcess

import numpy as np
import pytest
import torch

from ludus import registry
from ludus.collect.collector import Collector
from ludus.contract import Episode, Values, stored_state
from ludus.envs.config import EnvConfig
from ludus.envs.make import make_envs
from ludus.evals.agent import load_agent
from ludus.learn.learner import Learner
from ludus.learn.minibatches import Split
from ludus.replay.store import build_store
from ludus.types import tree_leaves, tree_map
from tests.contract.same import same_checkpoints, same_metrics
from tests.contract.tiny import (
    NAMES,
    ONE_OF_EACH_FAMILY,
    ONE_OF_EACH_HEAD,
    ONE_OF_EACH_VALUED,
    fitting,
    known,
    learned_values,
    probe_settings,
    run,
    tiny,
)

every = pytest.mark.parametrize("name", NAMES)
# Longer runs. Lines 85 and 109 of the acceptance trace are about what a family and its head share;
# all algorithms of the registry prove them with `make test-slow`.
one_of_each_head = pytest.mark.parametrize("name", ONE_OF_EACH_HEAD)
one_of_each_family = pytest.mark.parametrize("name", ONE_OF_EACH_FAMILY)


@one_of_each_family
def test_trains_on_two_actors_in_processes(name, tmp_path) -> None:
    """Free-running, from rows of both, and the last checkpoint can be loaded and played."""
    settings = ("fleet=processes", "actors=2", "steps=600", "env.max_episode_steps=8")
    cfg = tiny(name, "CartPole-v1", *settings)
    result = run(cfg, tmp_path)
    assert result.exit_code == 0 and result.step >= 600 and result.updates > 0
    with (result.path / "episodes.csv").open() as file:
        slots = {int(row["slot"]) for row in csv.DictReader(file)}
    assert slots & {0, 1} and slots & {2, 3}, "both actors played"
    lines = (result.path / "metrics.jsonl").read_text().splitlines()
    assert json.loads(lines[-1])["actors/restarts"] == 0
    assert load_agent(result.path).net is not None


@every
def test_picklable_and_stateless(name) -> None:
    algorithm = registry.make(tiny(name, "CartPole-v1").algo)
    again = pickle.loads(pickle.dumps(algorithm))
    assert again.plan == algorithm.plan
    before = pickle.dumps(vars(algorithm))
    envs = make_envs(EnvConfig(id=fitting(name, "CartPole-v1")[0], num=3), seed=0)
    learner = Learner(algorithm, envs.spec, seed=0)
    collector = Collector(algorithm, envs, seed=0)
    collector.barrier(0)
    collector.collect(learner.net, 4, Values(algorithm.plan, 100).at(0))
    assert pickle.dumps(vars(algorithm)) == before, "an algorithm holds no mutable state"


@every
def test_shapes_of_act_and_loss(name) -> None:
    cfg = tiny(name, "CartPole-v1")
    algorithm = registry.make(cfg.algo)
    plan = algorithm.plan.for_envs(3)
    envs = make_envs(EnvConfig(id=fitting(name, "CartPole-v1")[0], num=3), seed=0)
    learner = Learner(algorithm, envs.spec, seed=0)
    collector = Collector(algorithm, envs, seed=0)
    collector.barrier(0)
    values = Values(plan, 1000).at(500)
    steps = max(plan.chunk, 8)
    chunk = collector.collect(learner.net, steps, values).chunk
    rows = chunk.rows
    spec = envs.spec
    assert rows.action.shape == (steps, 3, *spec.action_shape)
    assert rows.obs.shape == (steps + 1, 3, *spec.obs.shape)
    assert rows.action.dtype == spec.action_dtype
    for extra in rows.extras.values():
        assert extra.shape[:2] == (steps, 3)
    store = build_store(plan, envs.spec, 3, seed=0, horizon=1000)
    store.add(chunk)
    while isinstance(plan.view, Episode) and not store.ready():
        store.add(collector.collect(learner.net, steps, values).chunk)
    sample = store.sample()
    learner.ctx.values = values
    with torch.no_grad():
        data = algorithm.prepare(learner.net, sample.batch, learner.ctx)
    items = (len(sample.ids),)
    if learner.splits:  # rows in any order, or environments in time, as the Learner cuts them
        split = Split(plan, data)
        data = split.part(torch.arange(split.count))
        items = data.mask.shape
    learner.ctx.stepping = learner.periods.names
    loss = algorithm.loss(learner.net, data, learner.ctx)
    assert loss.value.shape in (items, getattr(data, "mask", loss.value).shape)
    assert loss.value.requires_grad
    assert loss.priority is None or loss.priority.shape == items
    assert all(m.dim() == 0 and not m.requires_grad for m in loss.metrics.values())


@every
def test_periods_name_groups_of_the_optimizer(name) -> None:
    algorithm = registry.make(tiny(name, "CartPole-v1").algo)
    envs = make_envs(EnvConfig(id=fitting(name, "CartPole-v1")[0], num=3), seed=0)
    learner = Learner(algorithm, envs.spec, seed=0)  # refuses others (E104)
    names = {group.get("name") for group in learner.optimizer.param_groups}
    assert set(algorithm.plan.periods) <= names
    assert learner.periods.at(math.lcm(*algorithm.plan.periods.values())) == names - {None}


@every
def test_actor_state_keeps_its_shape_and_describes_its_environment(name) -> None:
    algorithm = registry.make(tiny(name, "CartPole-v1").algo)
    envs = make_envs(
        EnvConfig(id=fitting(name, "CartPole-v1")[0], num=3, max_episode_steps=4), seed=0
    )
    learner = Learner(algorithm, envs.spec, seed=0)
    collector = Collector(algorithm, envs, seed=0)
    collector.barrier(0)
    begun = collector.runner.state(0)
    got = collector.collect(learner.net, 12, Values(algorithm.plan, 100).at(0))
    after = collector.runner.state(0)
    envs.close()
    shapes = [[(x.shape, x.dtype) for x in tree_leaves(state)] for state in (begun, after)]
    assert shapes[0] == shapes[1] and all(shape[0] == 3 for shape, _ in shapes[0])
    stored = got.chunk.rows.state
    for x, y in zip(tree_leaves(stored), tree_leaves(stored_state(begun)), strict=True):
        assert torch.equal(x, y), "a chunk has the stored state before its first row"
    info = algorithm.env_info(1, tree_map(lambda x: x[1], after), collector.ctx)
    assert all(isinstance(x, float) for x in info.values())
    infos = [e.info for e in got.episodes if e.env == 1]
    assert infos and all(x.items() >= dict(info).items() for x in infos)


@one_of_each_head
@pytest.mark.accept(85)
def test_two_equal_runs_give_equal_weights_and_metrics(name, tmp_path) -> None:
    cfg = tiny(name, "CartPole-v1", "steps=700", "checkpoint_every=300")
    one, two = (run(cfg, tmp_path) for _ in range(2))
    assert one.updates > 20
    same_checkpoints(one.path, two.path)
    same_metrics(one.path, two.path)


@every
@pytest.mark.accept(67)
def test_it_trains_in_one_process_and_leaves_the_global_generators_alone(
    name, tmp_path, monkeypatch
) -> None:
    def refuse(process) -> None:
        raise AssertionError(f"{name} starts the process {process.name}")

    monkeypatch.setattr(BaseProcess, "start", refuse)
    torch.manual_seed(5)
    np.random.seed(5)
    before = torch.get_rng_state(), np.random.get_state()[1].tolist()
    assert run(tiny(name, "CartPole-v1", "steps=300"), tmp_path).updates > 0
    assert torch.equal(torch.get_rng_state(), before[0])
    assert np.random.get_state()[1].tolist() == before[1]


@pytest.mark.parametrize("name", ONE_OF_EACH_VALUED)
@pytest.mark.accept(109)
@pytest.mark.parametrize("end", ["Truncation", "Termination"])
def test_truncation_is_not_termination(name, end, tmp_path) -> None:
    """Reward 1 a step, ten steps, gamma 0.9: worth 10 if merely cut, 1 .. 6.513 if it ends."""
    env = f"ludus/{end}-v0"
    result = run(tiny(name, env, *probe_settings(name)), tmp_path)
    got = learned_values(result.path, torch.eye(10))  # a Discrete observation is one-hot
    if end == "Truncation":
        assert got == pytest.approx([10.0] * 10, abs=1.0)
    else:
        want = [sum(0.9**k for k in range(10 - t)) for t in range(10)]
        assert got == pytest.approx(want, abs=0.8)


@one_of_each_family
def test_the_identity_environment_is_learned(name, tmp_path) -> None:
    # A warm-up long enough to have tried every action on every observation.
    settings = known(name, ("steps=2500", "lr=3e-3", "gamma=0.5", "warmup=300"))
    result = run(tiny(name, "ludus/Identity-v0", *settings, "env.num=4"), tmp_path)
    evaluation = load_agent(result.path).evaluate(20)
    ideal = load_agent(result.path).spec.max_episode_steps or max(evaluation.lengths)
    assert evaluation.mean >= 0.9 * ideal, json.dumps(evaluation.scores)


# Algorithms of both kinds of actions whose losses for the two differ.
@pytest.mark.parametrize("name", ["sac"])
class TestContinuous:
    def test_two_equal_runs(self, name, tmp_path) -> None:
        cfg = tiny(name, "CartPole-v1", "steps=500", "checkpoint_every=200", continuous=True)
        one, two = (run(cfg, tmp_path) for _ in range(2))
        assert cfg.env.id == "Pendulum-v1" and one.updates > 20
        same_checkpoints(one.path, two.path)

    @pytest.mark.parametrize("end", ["Truncation", "Termination"])
    def test_truncation_is_not_termination(self, name, end, tmp_path) -> None:
        cfg = tiny(name, f"ludus/{end}-v0", *probe_settings(name), continuous=True)
        got = learned_values(run(cfg, tmp_path).path, torch.eye(10))
        if end == "Truncation":
            assert got == pytest.approx([10.0] * 10, abs=1.0)
        else:
            want = [sum(0.9**k for k in range(10 - t)) for t in range(10)]
            assert got == pytest.approx(want, abs=0.8)

    def test_the_identity_environment_is_learned(self, name, tmp_path) -> None:
        settings = known(name, ("steps=2500", "lr=3e-3", "gamma=0.5", "warmup=300"))
        cfg = tiny(name, "ludus/Identity-v0", *settings, "env.num=4", continuous=True)
        evaluation = load_agent(run(cfg, tmp_path).path).evaluate(20)
        assert evaluation.mean >= 0.9 * 16, json.dumps(evaluation.scores)
