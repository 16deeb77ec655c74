"""PPO with an LSTM: the state that was stored, resets, and minibatches over environments."""

from __future__ import annotations

import pytest
import torch

from ludus import registry
from ludus.algos.ppo import PPO, Config
from ludus.collect.collector import Collector
from ludus.contract import Values
from ludus.envs.config import EnvConfig
from ludus.envs.make import make_envs
from ludus.learn.learner import Learner
from ludus.nets.torsos import MLP
from ludus.replay.store import build_store
from ludus.settings.resolve import Request, resolve
from ludus.types import Sample, tree_leaves, tree_map

SMALL = {"torso": MLP(hidden=(8,), activation="tanh"), "core": "lstm", "core_size": 6}
ENVS, ROWS = 4, 9


def collected(batches: int = 2, **settings):
    """A learner, and the batch after `batches - 1` others: its state is not zero. Episodes of 7
    rows, each followed by a dummy row, so that starts differ from the batch's."""
    algorithm = PPO(Config(**{**SMALL, "rollout": ROWS, **settings}))
    cfg = EnvConfig(id="ludus/CartPoleNoVelocity-v0", num=ENVS, max_episode_steps=7)
    envs = make_envs(cfg, seed=0)
    learner = Learner(algorithm, envs.spec, seed=0)
    for p in learner.params:
        p.data.add_(0.2 * torch.randn(p.shape, generator=torch.Generator().manual_seed(p.numel())))
    collector = Collector(algorithm, envs, seed=0)
    collector.barrier(0)
    plan = algorithm.plan.for_envs(ENVS)
    store = build_store(plan, envs.spec, ENVS, seed=0, horizon=100)
    learner.ctx.values = Values(plan, 100).at(0)
    for _ in range(batches):
        store.add(collector.collect(learner.net, ROWS, learner.ctx.values).chunk)
        b = store.sample().batch
    envs.close()
    return algorithm, learner, b


shared = pytest.mark.parametrize("shared_torso", [False, True])


@shared
def test_the_stored_state_gives_the_probabilities_that_acted(shared_torso) -> None:
    algorithm, learner, b = collected(shared_torso=shared_torso)
    assert len(b.state) == (1 if shared_torso else 2)
    assert all(leaf.any() for leaf in tree_leaves(b.state)), "it knows what came before"
    with torch.no_grad():
        batch = algorithm.prepare(learner.net, b, learner.ctx)
        loss = algorithm.loss(learner.net, batch, learner.ctx)
    assert float(loss.metrics["approx_kl"]) == pytest.approx(0.0, abs=1e-6)
    assert loss.value.shape == b.mask.shape
    forgotten = batch._replace(state=tree_map(torch.zeros_like, b.state))
    with torch.no_grad():
        other = algorithm.loss(learner.net, forgotten, learner.ctx)
    assert float(other.metrics["approx_kl"]) > 1e-6, "the stored state matters"


@shared
def test_state_is_forgotten_where_an_episode_starts(shared_torso) -> None:
    _, learner, b = collected(shared_torso=shared_torso)
    net = learner.net["online"]
    starts = b.first[1:-1].nonzero() + torch.tensor([1, 0])
    assert len(starts) > 0, "an episode starts within the batch"
    with torch.no_grad():
        params, value, _ = net.unrolled(b.obs, b.first, b.state)
        no_reset = net.unrolled(b.obs, torch.zeros_like(b.first), b.state)[0]
        for t, env in starts.tolist():
            alone = b.obs[t : t + 1, env]
            torch.testing.assert_close(net.values(alone)[0], value[t, env], atol=1e-5, rtol=1e-5)
            assert not torch.allclose(no_reset[t, env], params[t, env], atol=1e-6)


def test_a_step_at_a_time_equals_the_unroll() -> None:
    _, learner, b = collected()
    net, state = learner.net["online"], b.state
    with torch.no_grad():
        params, value, _ = net.unrolled(b.obs, b.first, b.state)
        for t in range(ROWS + 1):
            one, v, state = net.unrolled(b.obs[t : t + 1], b.first[t : t + 1], state)
            torch.testing.assert_close(one[0], params[t], atol=1e-5, rtol=1e-5)
            torch.testing.assert_close(v[0], value[t], atol=1e-5, rtol=1e-5)


def test_values_of_the_unroll_bootstrap_a_truncation_with_its_state() -> None:
    """gae_lambda = 0: A = r + gamma V(final observation | what came before) - V."""
    algorithm, learner, b = collected(gae_lambda=0.0, gamma=0.9)
    with torch.no_grad():
        batch = algorithm.prepare(learner.net, b, learner.ctx)
        _, value, _ = learner.net["online"].unrolled(b.obs, b.first, b.state)
    ends = b.last.nonzero().tolist()
    assert ends and bool((b.discount[b.last] == 1).all()), "truncated, not terminated"
    for t, env in ends:
        want = b.reward[t, env] + 0.9 * value[t + 1, env]
        assert float(batch.target[t, env]) == pytest.approx(float(want), abs=1e-5)


def gradients(learner: Learner, b, **changes) -> list[torch.Tensor]:
    """Of one update on the whole batch, by autograd alone."""
    algorithm, net = learner.algorithm, learner.net
    with torch.no_grad():
        batch = algorithm.prepare(net, b, learner.ctx)
    value = algorithm.loss(net, batch._replace(**changes), learner.ctx).value
    net.zero_grad()
    (value * b.mask).sum().div(b.mask.sum()).backward()
    return [p.grad.clone() for p in learner.params]


@shared
def test_one_minibatch_over_environments_has_the_gradient_of_the_whole_batch(shared_torso) -> None:
    """Two epochs of one minibatch each: the first is the whole batch in another order."""
    settings = {"epochs": 2, "minibatches": 1, "clip_norm": 0.0, "shared_torso": shared_torso}
    _, learner, b = collected(**settings)
    assert learner.plan.minibatch_over == "envs"
    want, seen = gradients(learner, b), []
    learner.optimizer.step = lambda: seen.append([p.grad.clone() for p in learner.params])
    learner.learn(Sample(b, torch.arange(ENVS), torch.ones(ENVS)), learner.ctx.values)
    assert len(seen) == 2
    for one, two in zip(want, seen[0], strict=True):
        torch.testing.assert_close(one, two, atol=1e-6, rtol=1e-4)


def test_minibatches_hold_whole_environments_and_their_state() -> None:
    seen = []

    class Watched(PPO):
        def loss(self, net, b, ctx):
            seen.append(b)
            return super().loss(net, b, ctx)

    algorithm, learner, b = collected(epochs=3, minibatches=2)
    learner.algorithm = Watched(algorithm.cfg)
    learner.learn(Sample(b, torch.arange(ENVS), torch.ones(ENVS)), learner.ctx.values)
    assert [part.mask.shape for part in seen] == [(ROWS, 2)] * 6
    orders = []
    for epoch in range(3):
        chosen = []
        for part in seen[2 * epoch : 2 * epoch + 2]:
            for column in range(2):
                match = [e for e in range(ENVS) if torch.equal(part.obs[:, column], b.obs[:-1, e])]
                assert len(match) == 1, "time is kept"
                chosen += match
                for mine, whole in zip(tree_leaves(part.state), tree_leaves(b.state), strict=True):
                    assert torch.equal(mine[column], whole[match[0]])
        assert sorted(chosen) == list(range(ENVS)), "each environment once per epoch"
        orders.append(tuple(chosen))
    assert len(set(orders)) > 1


def test_dummy_rows_are_inert() -> None:
    _, learner, b = collected()
    assert not b.mask.all()
    before = gradients(learner, b)
    reward = torch.where(b.mask, b.reward, 1e6)
    after = gradients(learner, b._replace(reward=reward))
    for one, two in zip(before, after, strict=True):
        torch.testing.assert_close(one, two, atol=1e-6, rtol=1e-5)


def test_two_names_one_algorithm() -> None:
    env = "ludus/CartPoleNoVelocity-v0"
    quick = {"preset": "none", "environ": {}}
    named = resolve(Request("recurrent-ppo", env, (), **quick)).config.algo
    typed = resolve(Request("ppo", env, ("core=lstm",), **quick)).config.algo
    assert named.model_copy(update={"name": "ppo"}) == typed
    assert registry.make(named).plan == registry.make(typed).plan
    plain = resolve(Request("recurrent-ppo", env, ("core=none",), **quick)).config.algo
    assert registry.make(plain).plan.minibatch_over == "rows"


def test_the_preset_without_its_lstm_differs_in_nothing_else() -> None:
    env = "ludus/CartPoleNoVelocity-v0"
    one, two = (
        resolve(Request("ppo", env, more, environ={})).config for more in ((), ("core=none",))
    )
    assert one.algo.core == "lstm" and two.algo.core == "none"
    assert one.algo.model_copy(update={"core": "none"}) == two.algo
    assert one.env == two.env and one.run.steps == two.run.steps


def test_feed_forward_ppo_has_no_memory() -> None:
    algorithm = PPO(Config(torso=MLP(hidden=(8,))))
    envs = make_envs(EnvConfig(id="CartPole-v1", num=2), seed=0)
    net = algorithm.build(envs.spec)
    envs.close()
    assert net["online"].core is None and net["online"].value_core is None
    assert algorithm.begin(2, None) == () and algorithm.plan.minibatch_over == "rows"
