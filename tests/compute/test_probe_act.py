"""What `act` returns together with the action reaches replay: learned from one dry act."""

from __future__ import annotations

import pytest
import torch

from ludus import registry
from ludus.algos.dqn import DQN
from ludus.compute.probe_act import extras_of
from ludus.envs.make import make_envs
from ludus.learn.learner import Learner
from ludus.precheck import precheck
from ludus.run.session import train_run
from ludus.track.checkpoint.reader import load
from ludus.track.run_dir.rundir import RunDir
from tests.contract.same import same_runs
from tests.contract.tiny import tiny


class Tagged(DQN):
    """Returns with each action a number that the observation determines."""

    seen = 0  # batches whose tags were right

    def act(self, net, step, state, ctx):
        action, _, state = super().act(net, step, state, ctx)
        return action, {"tag": step.obs.sum(-1).double()}, state

    def loss(self, net, b, ctx):
        assert torch.equal(b.extras["tag"], b.obs.sum(-1).double())
        Tagged.seen += 1
        return super().loss(net, b, ctx)


class Ranked(DQN):
    """Knows by itself which rows matter."""

    def act(self, net, step, state, ctx):
        action, _, state = super().act(net, step, state, ctx)
        return action, {"priority": 1 + step.obs[:, 0].abs()}, state

    def loss(self, net, b, ctx):
        return super().loss(net, b, ctx)._replace(priority=None)


def train(kind, cfg, folder, **options):
    place = (
        options.pop("path", None)
        or RunDir.create(folder, cfg.env.id, cfg.algo_name, cfg.run.seed).path
    )
    return train_run(cfg, kind(cfg.algo), path=place, quiet=True, **options)


def test_extras_come_back_in_the_row_they_were_made_for(tmp_path) -> None:
    Tagged.seen = 0
    done = train(Tagged, tiny("dqn", "CartPole-v1", "steps=200"), tmp_path)
    assert Tagged.seen == done.updates > 10


def test_a_priority_from_act_is_a_rows_first_priority(tmp_path) -> None:
    cfg = tiny("prioritized-dqn", "CartPole-v1", "steps=150", "algo.replay.epsilon=0")
    saved = load(train(Ranked, cfg, tmp_path).path)
    rows = [a for name, a in saved.replay if name.startswith("rows")]
    index = next(a for name, a in saved.replay if name.startswith("index"))
    tree = torch.from_numpy(index["leaves"])
    wanted = {round(float(x), 4) for a in rows for x in (1 + abs(a["0.obs"][:, :, 0])).ravel()
              ** cfg.algo.replay.alpha}  # fmt: skip
    given = {round(float(x), 4) for x in tree[tree > 0]}
    assert len(given) > 20 and given <= wanted


def test_a_resumed_run_with_extras_equals_the_uninterrupted(tmp_path) -> None:
    long = tiny("dqn", "CartPole-v1", "steps=400", "checkpoint_every=200")
    short = tiny("dqn", "CartPole-v1", "steps=200", "horizon=400", "checkpoint_every=200")
    whole = train(Tagged, long, tmp_path).path
    cut = train(Tagged, short, tmp_path).path
    train(Tagged, tiny("dqn", "CartPole-v1", "steps=400", "horizon=400", "checkpoint_every=200"),
          tmp_path, path=cut, resume=True)  # fmt: skip
    same_runs(whole, cut)


@pytest.mark.parametrize("name", ["ppo", "rainbow-iqn", "dqn"])
def test_the_dry_act_leaves_no_trace(name) -> None:
    cfg = tiny(name, "CartPole-v1", *(["algo.persist=2"] if name == "dqn" else []))
    algorithm = registry.make(cfg.algo)
    envs = make_envs(cfg.env, seed=1)
    envs.close()
    learner = Learner(algorithm, envs.spec, seed=1)
    weights = {k: v.clone() for k, v in learner.net.state_dict().items()}
    before, own = torch.random.get_rng_state(), learner.ctx.rng.get_state()
    got = extras_of(algorithm, learner.net, envs.spec)
    assert got == ({"log_prob": ((), torch.float32)} if name == "ppo" else {})
    assert torch.equal(before, torch.random.get_rng_state())
    assert torch.equal(own, learner.ctx.rng.get_state())
    assert all(torch.equal(v, weights[k]) for k, v in learner.net.state_dict().items())


def test_the_memory_of_extras_is_counted(monkeypatch) -> None:
    cfg = tiny("dqn", "CartPole-v1")
    plain = precheck(cfg).replay_bytes
    monkeypatch.setattr(registry, "make", lambda algo: Tagged(algo))
    assert precheck(cfg).replay_bytes >= plain + 8 * cfg.algo.capacity


def test_precheck_draws_nothing_from_the_global_generator() -> None:
    before = torch.random.get_rng_state()
    precheck(tiny("dqn", "CartPole-v1"))
    assert torch.equal(before, torch.random.get_rng_state())
