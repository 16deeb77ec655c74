"""REINFORCE: returns of whole episodes, exact gradients of a bandit, and its baseline."""

from __future__ import annotations

import math

import pytest
import torch

from ludus.algos.reinforce import Config, Reinforce
from ludus.collect.collector import Collector
from ludus.contract import Values
from ludus.envs.config import EnvConfig
from ludus.envs.make import make_envs
from ludus.evals.agent import load_agent
from ludus.evals.episode_stream import EpisodeStream
from ludus.learn.learner import Learner
from ludus.replay.store import build_store
from ludus.types import ArraySpec, Continuous, Ctx, Discrete, EnvSpec, MultiDiscrete, Step, Traj
from tests.contract.tiny import run, tiny
from tests.truth.policy import standardized
from tests.truth.returns import rewards_to_go

GAMMA, ROWS = 0.9, 5
ACTIONS = {
    "discrete": Discrete(3),
    "continuous": Continuous((2,), (-1.0, -1.0), (1.0, 1.0)),
    "multi": MultiDiscrete((2, 3)),
}
# Rows of each of three episodes, and how it ends: 1 where it was merely cut.
LENGTHS, AFTER = (5, 3, 4), (0.0, 0.0, 1.0)


def make(action=ACTIONS["discrete"], **settings):
    spec = EnvSpec("toy", ArraySpec((3,)), action)
    algorithm = Reinforce(Config(gamma=GAMMA, **settings))
    torch.manual_seed(0)
    net = algorithm.build(spec)
    for p in net.parameters():
        p.data.add_(0.3 * torch.randn(p.shape))
    return algorithm, net, Ctx(torch.Generator().manual_seed(1), spec)


def episodes(spec: EnvSpec) -> Traj:
    """Three episodes as the store pads them; the padding's rewards are NaN."""
    g = torch.Generator().manual_seed(2)
    envs = len(LENGTHS)
    mask = torch.arange(ROWS)[:, None] < torch.tensor(LENGTHS)
    last, discount = torch.zeros(ROWS, envs, dtype=torch.bool), torch.ones(ROWS, envs)
    for c, (length, after) in enumerate(zip(LENGTHS, AFTER, strict=True)):
        last[length - 1, c], discount[length - 1, c] = True, after
    first = torch.zeros(ROWS + 1, envs, dtype=torch.bool)
    first[0] = True
    reward = torch.where(mask, torch.randn(ROWS, envs, generator=g), torch.nan)
    shape = (ROWS, envs, *spec.action_shape)
    if isinstance(spec.action, Continuous):
        action = torch.randn(shape, generator=g)
    else:
        action = torch.randint(2, shape, generator=g)
    obs = torch.randn(ROWS + 1, envs, 3, generator=g)
    return Traj(obs, action, reward, discount, last, first, mask)


def values_of(net, b: Traj):
    online = net["online"]
    if online.value is None:
        return torch.zeros(ROWS + 1, len(LENGTHS))
    with torch.no_grad():
        return online.values(b.obs.flatten(0, 1)).view(ROWS + 1, -1)


def returns_of(net, b: Traj) -> list[list[float]]:
    """Per episode; a truncated one ends with the baseline's value, or with nothing."""
    v = values_of(net, b)
    found = []
    for c, length in enumerate(LENGTHS):
        g = (GAMMA * b.discount[:length, c]).tolist()
        found.append(rewards_to_go(b.reward[:length, c].tolist(), g, float(v[length, c])))
    return found


@pytest.mark.accept(20)
@pytest.mark.accept(150)
@pytest.mark.parametrize("kind", ACTIONS)
@pytest.mark.parametrize("baseline", [False, True])
@pytest.mark.parametrize("normalize", [False, True])
def test_the_loss_is_the_equation_written_out(kind, baseline, normalize) -> None:
    algorithm, net, ctx = make(
        ACTIONS[kind], baseline=baseline, normalize_returns=normalize, entropy_cost=0.02
    )
    b = episodes(ctx.spec)
    got = algorithm.loss(net, b, ctx).value
    v = values_of(net, b)
    with torch.no_grad():
        dist, _ = net["online"].unroll(b.obs, None)
        log_p, entropy = dist.log_prob(b.action), dist.entropy()
    flat = [
        ret - float(v[t, c]) for c, ep in enumerate(returns_of(net, b)) for t, ret in enumerate(ep)
    ]
    used = iter(standardized(flat) if normalize else flat)
    raw = iter(flat)
    for c, length in enumerate(LENGTHS):
        total = 0.0
        for t in range(length):
            total += -float(log_p[t, c]) * next(used) - 0.02 * float(entropy[t, c])
            error = next(raw)
            total += 0.5 * error**2 if baseline else 0.0
        assert float(got[c].detach()) == pytest.approx(total, rel=2e-4)


@pytest.mark.accept(20)
def test_normalising_returns_has_an_effect_on_the_gradient_and_none_on_the_baseline() -> None:
    grads = []
    for normalize in (False, True):
        algorithm, net, ctx = make(baseline=True, normalize_returns=normalize)
        algorithm.loss(net, episodes(ctx.spec), ctx).value.mean().backward()
        online = net["online"]
        grads.append([
            torch.cat([p.grad.flatten() for p in part])
            for part in (online.policy_parameters(), online.value_parameters())
        ])  # fmt: skip
    (plain, value), (normalized, same) = grads
    assert not torch.allclose(plain, normalized, rtol=0.05)
    torch.testing.assert_close(value, same)
    algorithm, net, ctx = make(normalize_returns=True)
    b = episodes(ctx.spec)
    one = algorithm.loss(net, b, ctx).value
    two = algorithm.loss(net, b._replace(reward=100 * b.reward), ctx).value
    torch.testing.assert_close(one, two, rtol=1e-3, atol=1e-4)


@pytest.mark.accept(20)
@pytest.mark.parametrize("baseline", [False, True])
def test_one_lifes_return_never_leaks_into_the_next(baseline) -> None:
    """A lost life has discount 0 in the middle of an episode: rewards after it, and values, do not
    reach the rows before; those before it never reach the rows after."""
    algorithm, net, ctx = make(baseline=baseline)
    b = episodes(ctx.spec)
    b.discount[1, 0] = 0.0  # a life lost after row 1 of episode 0

    def weight_of_rows(reward):
        """The factor of ln π in every row, by the chain rule from the logits."""
        seen = []
        hook = net["online"].policy.register_forward_hook(lambda *call: seen.append(call[-1]))
        loss = algorithm.loss(net, b._replace(reward=reward), ctx).value[0]
        hook.remove()
        (by_logits,) = torch.autograd.grad(loss, seen)
        p = seen[0].softmax(-1).view(ROWS, -1, 3)[:, 0]
        taken = torch.nn.functional.one_hot(b.action[:, 0], 3).float()
        return (by_logits.view(ROWS, -1, 3)[:, 0] / (p - taken))[:, 0].detach()

    before = weight_of_rows(b.reward)
    later = b.reward.clone()
    later[2:, 0] += 7.0
    changed = weight_of_rows(later)
    torch.testing.assert_close(changed[:2], before[:2])
    assert (changed[2:] - before[2:]).abs().min() > 1
    earlier = b.reward.clone()
    earlier[:2, 0] += 7.0
    torch.testing.assert_close(weight_of_rows(earlier)[2:], before[2:])


def test_a_truncated_episode_goes_on_with_the_baselines_value_and_a_terminated_one_ends() -> None:
    algorithm, net, ctx = make(baseline=True)
    b = episodes(ctx.spec)
    before = algorithm.loss(net, b, ctx).value
    finals = [int(length) for length in LENGTHS]
    for c, length in enumerate(finals):
        obs = b.obs.clone()
        obs[length, c] += 3.0  # another final observation
        after = algorithm.loss(net, b._replace(obs=obs), ctx).value
        differs = bool((after - before).abs()[c] > 1e-4)
        assert differs == bool(AFTER[c]), f"episode {c}"


def bandit(count: int, seed: int, rewards=(1.0, 0.2), **settings):
    """`count` episodes of one step and two actions; the net's logits are (x, 0)."""
    spec = EnvSpec("bandit", ArraySpec((1,)), Discrete(2))
    algorithm = Reinforce(Config(torso={"kind": "mlp", "hidden": (2,)}, **settings))
    torch.manual_seed(0)
    net = algorithm.build(spec)
    ctx = Ctx(torch.Generator().manual_seed(seed), spec)
    net["online"].policy.linear.bias.data[:] = torch.tensor([0.5, 0.0])
    obs = torch.zeros(2, count, 1)
    with torch.no_grad():
        dist, _ = net["online"].unroll(obs, None)
        action = dist.sample(ctx.rng)
    yes = torch.ones(1, count, dtype=torch.bool)
    reward = torch.tensor(rewards)[action]
    first = torch.stack([yes[0], ~yes[0]])
    b = Traj(obs, action, reward, torch.zeros(1, count), yes, first, yes)
    return algorithm, net, ctx, b


def bias_gradients(algorithm, net, ctx, b):
    """The gradient of -loss by the first logit, of each episode by itself."""
    logits = []
    hook = net["online"].policy.register_forward_hook(lambda *call: logits.append(call[-1]))
    losses = algorithm.loss(net, b, ctx).value
    hook.remove()
    (by_logit,) = torch.autograd.grad(-losses.sum(), logits)
    return by_logit[:, 0]


@pytest.mark.accept(20)
def test_the_mean_gradient_of_a_bandit_is_exact() -> None:
    """d/dx E[r] = p (1 - p) (r1 - r2) for p = sigmoid(x)."""
    got = bias_gradients(*bandit(5000, 3))
    p = 1 / (1 + math.exp(-0.5))
    want = p * (1 - p) * 0.8
    assert float(got.mean()) == pytest.approx(want, abs=4 * float(got.std()) / math.sqrt(5000))
    assert float(got.std()) / math.sqrt(5000) < 0.1 * want, "the test can tell"


@pytest.mark.accept(21)
def test_a_baseline_leaves_the_mean_gradient_and_cuts_its_variance() -> None:
    plain = bias_gradients(*bandit(5000, 3))
    algorithm, net, ctx, b = bandit(5000, 3, baseline=True)
    net["online"].value.linear.bias.data.fill_(float(b.reward.mean()))
    based = bias_gradients(algorithm, net, ctx, b)
    spread = float(plain.std() + based.std()) / math.sqrt(5000)
    assert float(based.mean()) == pytest.approx(float(plain.mean()), abs=4 * spread)
    assert float(based.var()) < 0.6 * float(plain.var())


@pytest.mark.accept(21)
def test_the_baseline_has_its_own_network_and_learning_rate() -> None:
    algorithm = Reinforce(Config(baseline=True, lr=1e-3, lr_value=7e-3))
    spec = EnvSpec("toy", ArraySpec((3,)), Discrete(3))
    learner = Learner(algorithm, spec, seed=0)
    online = learner.net["online"]
    groups = {g["name"]: {id(p) for p in g["params"]} for g in learner.optimizer.param_groups}
    assert groups["value"] == {id(p) for p in online.value_parameters()}
    assert not groups["policy"] & groups["value"]
    assert groups["policy"] | groups["value"] == {id(p) for p in learner.net.parameters()}
    obs = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    before = online.values(obs)
    for p in online.policy_parameters():
        p.data.add_(1.0)
    assert torch.equal(online.values(obs), before), "nothing of the policy's net is in the value"
    learner.ctx.values = Values(algorithm.plan, 100).at(0)
    rates = {g["name"]: float(learner.rate(g)) for g in learner.optimizer.param_groups}
    assert rates == pytest.approx({"policy": 1e-3, "value": 7e-3})
    plain = Reinforce(Config()).build(spec)["online"]
    assert plain.value is None and plain.value_torso is None and not plain.value_parameters()


@pytest.mark.accept(20)
def test_a_sample_is_whole_episodes_of_the_weights_that_learn() -> None:
    """One environment: every row of an update was acted by the weights of that update."""
    algorithm = Reinforce(Config(episodes=3))
    envs = make_envs(EnvConfig(id="ludus/Counter-v0", num=1, args={"length": 4}), seed=0)
    learner = Learner(algorithm, envs.spec, seed=0)
    collector = Collector(algorithm, envs, seed=0)
    collector.barrier(0)
    plan = algorithm.plan.for_envs(1)
    store = build_store(plan, envs.spec, 1, seed=0, horizon=100)
    values = Values(plan, 100).at(0)
    steps = 0
    for _ in range(3):
        while not store.ready():
            store.add(collector.collect(learner.net, plan.chunk, values).chunk)
        sample = store.sample()
        steps += int(sample.batch.mask.sum())
        assert sample.batch.mask.shape[1] == 3 and sample.batch.last.sum() == 3
        assert sample.batch.first[0].all(), "from its first row"
        assert store.steps_inserted == steps, "no row of a next episode was acted before it"
        learner.learn(sample, values)
    envs.close()


def test_evaluation_takes_the_mode_and_training_samples() -> None:
    algorithm, net, ctx = make()
    n, flags, zeros = 400, torch.zeros(400, dtype=torch.bool), torch.zeros(400)
    step = Step(torch.ones(n, 3), flags, flags, zeros, zeros, zeros, flags, None)
    best = net["online"].dist(step.obs).parts[0].argmax(-1)
    assert len(algorithm.act(net, step, (), ctx)[0].unique()) == 3
    ctx.evaluating = True
    assert torch.equal(algorithm.act(net, step, (), ctx)[0], best)


@pytest.mark.parametrize("name", ["reinforce", "reinforce-baseline"])
def test_an_agent_without_values_is_watched_without_values(name, tmp_path) -> None:
    agent = load_agent(run(tiny(name, "CartPole-v1", "steps=100"), tmp_path).path)
    stream = EpisodeStream(agent, agent.rules(), seed=3)
    moment = next(iter(stream.moments()))
    stream.close()
    assert (moment.value is None) == (name == "reinforce")
