"""IMPALA's loss on numbers small enough to check: V-trace, sums, gradients, dummy rows."""

from __future__ import annotations

import math

import pytest
import torch

from ludus.algos.impala import Config, Impala
from ludus.learn.learner import Learner
from ludus.nets import MLP, Nature, Nips
from ludus.nets.policies import PolicyDist
from ludus.nets.torsos import Impala as ResNet
from ludus.optim import RMSProp
from ludus.types import (
    ArraySpec,
    Continuous,
    Ctx,
    Discrete,
    EnvSpec,
    MultiDiscrete,
    Sample,
    Step,
    Traj,
)
from tests.truth import offpolicy as truth
from tests.truth.episodes import by_piece

ACTIONS = {
    "discrete": Discrete(3),
    "continuous": Continuous((2,), (-1.0, -1.0), (1.0, 1.0)),
    "multi": MultiDiscrete((2, 3)),
}
VECTOR = ArraySpec((3,))
SCREEN = ArraySpec((84, 84), "uint8", 0, 255, stack=4, layout="hw")
NETS = {
    "feed-forward": {},
    "previous": {"feed_previous": True},
    "lstm": {"recurrent": {"hidden": 8}},
}
T, B = 7, 3


def make(action=ACTIONS["discrete"], obs=VECTOR, **settings):
    spec = EnvSpec("toy", obs, action)
    algorithm = Impala(Config(**settings))
    torch.manual_seed(0)
    net = algorithm.build(spec)
    for p in net.parameters():
        p.data.add_(0.1 * torch.randn(p.shape))
    return algorithm, net, Ctx(torch.Generator().manual_seed(1), spec)


def unroll(algorithm, ctx, lag=0.0, steps=T) -> Traj:
    """Column 0 runs through; 1 terminates and 2 is truncated at row 2, both with a dummy row.

    `lag`: how far the log-probabilities of the policy that acted are from the learner's own.
    """
    g = torch.Generator().manual_seed(2)
    spec = ctx.spec
    obs = torch.randn(steps + 1, B, *spec.obs.seen_shape, generator=g)
    if spec.obs.dtype == "uint8":
        obs = (obs * 50).to(torch.uint8)
    last, mask = torch.zeros(steps, B, dtype=torch.bool), torch.ones(steps, B, dtype=torch.bool)
    first, discount = torch.zeros(steps + 1, B, dtype=torch.bool), torch.ones(steps, B)
    last[2, 1:], mask[3, 1:], first[4, 1:], discount[2, 1] = True, False, True, 0.0
    if isinstance(spec.action, Continuous):
        action = torch.randn(steps, B, 2, generator=g)
    elif isinstance(spec.action, MultiDiscrete):
        action = torch.randint(0, 2, (steps, B, 2), generator=g)
    else:
        action = torch.randint(0, 3, (steps, B), generator=g)
    reward = torch.randn(steps, B, generator=g)
    noise = lag * torch.randn(steps, B, generator=g)
    state = tuple(torch.randn(B, 8, generator=g) for _ in algorithm.begin(B, ctx))
    before = torch.cat((torch.zeros_like(action[:1]), action)), torch.cat((reward[:1], reward))
    return Traj(obs, action, reward, discount, last, first, mask, None, {"log_prob": noise}, state,
                *before)  # fmt: skip


def at_lag(algorithm, net, ctx, lag=0.0, **options) -> Traj:
    """The unroll as a policy `lag` away from this net would have collected it."""
    b = unroll(algorithm, ctx, lag, **options)
    with torch.no_grad():
        params, *_ = net["online"](b.obs, b.first, b.state, (b.prev_action, b.prev_reward))
    now = PolicyDist(params[:-1], ctx.spec.action).log_prob(b.action)
    return b._replace(extras={"log_prob": now + b.extras["log_prob"]})


def heads(net, b, action):
    out = net["online"](b.obs, b.first, b.state, (b.prev_action, b.prev_reward))
    return PolicyDist(out.params[:-1], action), out.value


def gradients(net):
    grads = [p.grad.flatten().clone() for p in net.parameters() if p.grad is not None]
    net.zero_grad()
    return torch.cat(grads)


def returns(b, value, gamma):
    """n-step returns of every real row to the end of its episode or of the unroll, one by one."""
    out = torch.zeros_like(b.reward)
    for col in range(B):
        follow = value[-1, col]
        for t in reversed(range(b.reward.shape[0])):
            if b.last[t, col]:
                follow = value[t + 1, col]
            follow = b.reward[t, col] + gamma * b.discount[t, col] * follow
            out[t, col] = follow
    return out


@pytest.mark.accept(33)
@pytest.mark.parametrize("kind", NETS)
def test_on_policy_targets_are_n_step_returns(kind) -> None:
    algorithm, net, ctx = make(gamma=0.9, **NETS[kind])
    b = at_lag(algorithm, net, ctx)
    terms = algorithm.terms(net, b, ctx)
    dist, value = heads(net, b, ctx.spec.action)
    advantage = returns(b, value, 0.9) - value[:-1]
    keep = b.mask
    torch.testing.assert_close(terms.rho, torch.ones(T, B))
    torch.testing.assert_close(terms.baseline[keep], (0.5 * advantage**2)[keep])
    torch.testing.assert_close(terms.policy[keep], (-advantage * dist.log_prob(b.action))[keep])


@pytest.mark.accept(150)
@pytest.mark.parametrize("kind", ACTIONS)
def test_a_lagging_policy_is_corrected_with_each_clip_in_its_place(kind) -> None:
    clips = {"rho_clip": 0.8, "c_clip": 0.5, "pg_rho_clip": 1.3}
    algorithm, net, ctx = make(ACTIONS[kind], gamma=0.9, vtrace_lambda=0.95, **clips)
    b = at_lag(algorithm, net, ctx, lag=0.7)
    with torch.no_grad():
        terms = algorithm.terms(net, b, ctx)
        dist, value = heads(net, b, ctx.spec.action)
    log_prob = dist.log_prob(b.action)
    rho = (log_prob - b.extras["log_prob"]).exp()
    assert (rho > 1.3).any() and (rho < 0.5).any()
    torch.testing.assert_close(terms.rho, rho)
    for col in range(B):
        last, mask, r, g, ratio, v = (
            x[:, col].tolist() for x in (b.last, b.mask, b.reward, 0.9 * b.discount, rho, value)
        )
        rows = (r, g, ratio)
        vs = by_piece(lambda *x: truth.vtrace_values(*x, 0.95, 0.8, 0.5), last, mask, rows, (v,))
        advantage = by_piece(
            lambda *x: truth.vtrace_advantages(*x, 0.95, 0.8, 0.5, 1.3), last, mask, rows, (v,)
        )
        for t in range(T):
            if mask[t]:
                assert float(terms.baseline[t, col]) == pytest.approx(
                    0.5 * (vs[t] - v[t]) ** 2, abs=1e-5
                )
                assert float(terms.policy[t, col]) == pytest.approx(
                    -advantage[t] * float(log_prob[t, col]), abs=1e-4
                )


@pytest.mark.accept(150)
@pytest.mark.accept(33)
@pytest.mark.parametrize("kind", NETS)
def test_one_actor_without_lag_has_the_gradient_of_a2c(kind) -> None:
    """Summed; nothing flows through the returns or the advantage."""
    algorithm, net, ctx = make(gamma=0.9, **NETS[kind])
    b = at_lag(algorithm, net, ctx)
    algorithm.loss(net, b, ctx).value.sum().backward()
    got = gradients(net)
    dist, value = heads(net, b, ctx.spec.action)
    advantage = returns(b, value.detach(), 0.9) - value[:-1]
    loss = -advantage.detach() * dist.log_prob(b.action) + 0.5 * 0.5 * advantage**2
    (loss - 0.01 * dist.entropy())[b.mask].sum().backward()
    torch.testing.assert_close(got, gradients(net), rtol=1e-5, atol=1e-6)


def learner_of(**settings) -> Learner:
    """A linear policy and value, all weights zero: pi is uniform and V = 0, so gradients are
    sums that can be written down."""
    settings = {"torso": MLP(hidden=()), "gamma": 0.9, "clip_norm": 0.0} | settings
    algorithm = Impala(Config(**settings))
    learner = Learner(algorithm, EnvSpec("toy", VECTOR, Discrete(3)), seed=0)
    for p in learner.net.parameters():
        torch.nn.init.zeros_(p)
    return learner


def norm_by_hand(b: Traj) -> float:
    """Of the summed loss at zero weights; pi = 1/3, entropy at its maximum, V = 0."""
    total = 0.0
    target = returns(b, torch.zeros(T + 1, B), 0.9)
    width = [*range(3)]
    policy = [[0.0] * 4 for _ in width]  # three weights and a bias for each action
    value = [0.0] * 4
    for t in range(T):
        for col in range(B):
            if not b.mask[t, col]:
                continue
            inputs = [*b.obs[t, col].tolist(), 1.0]
            advantage = float(target[t, col])
            for a in width:
                push = -advantage * (float(a == b.action[t, col]) - 1 / 3)
                policy[a] = [g + push * x for g, x in zip(policy[a], inputs, strict=True)]
            value = [g - 0.5 * advantage * x for g, x in zip(value, inputs, strict=True)]
    for row in (*policy, value):
        total += sum(g * g for g in row)
    return math.sqrt(total)


@pytest.mark.parametrize("copies", [1, 2])
def test_the_gradient_is_summed_over_time_and_batch(copies) -> None:
    """Not a mean: twice the unrolls give twice the norm."""
    learner = learner_of()
    b = unroll(learner.algorithm, learner.ctx)
    b = b._replace(extras={"log_prob": torch.full((T, B), -math.log(3.0))})
    twice = [x if x is None or isinstance(x, (dict, tuple)) else torch.cat([x] * copies, 1)
             for x in b]  # fmt: skip
    batch = Traj(*twice)._replace(
        extras={"log_prob": torch.cat([b.extras["log_prob"]] * copies, 1)}
    )
    result: list[float] = []
    learner.on_update = lambda m: result.append(float(m["grad_norm"]))
    sample = Sample(batch, torch.arange(B * copies), torch.ones(B * copies))
    learner.learn(sample, {"lr": torch.tensor(0.0)})
    assert result == [pytest.approx(copies * norm_by_hand(b), rel=1e-5)]
    assert result[0] == pytest.approx(copies * 9.87457, abs=1e-4), "the number of this fixed batch"


def test_costs_scale_their_terms_and_only_theirs() -> None:
    def total(**settings):
        algorithm, net, ctx = make(**settings)
        b = at_lag(algorithm, net, ctx, lag=0.3)
        return algorithm.loss(net, b, ctx).value.detach(), algorithm.terms(net, b, ctx), b.mask

    plain, terms, m = total(baseline_cost=0.0, entropy_cost=0.0)
    torch.testing.assert_close(plain, (terms.policy * m).sum(0))
    with_value = total(baseline_cost=2.0, entropy_cost=0.0)[0]
    torch.testing.assert_close(with_value - plain, 2.0 * (terms.baseline * m).sum(0))
    with_entropy = total(baseline_cost=0.0, entropy_cost=3.0)[0]
    torch.testing.assert_close(plain - with_entropy, 3.0 * (terms.entropy * m).sum(0))


@pytest.mark.parametrize("kind", NETS)
def test_dummy_rows_are_inert(kind) -> None:
    """What is written in them, and what the first row after them was told of them."""
    algorithm, net, ctx = make(**NETS[kind])
    b = at_lag(algorithm, net, ctx, lag=0.3)
    dummy, opens = ~b.mask, b.first
    wild = b._replace(
        action=torch.where(dummy, 2 - b.action, b.action),
        reward=torch.where(dummy, 1e4, b.reward),
        discount=torch.where(dummy, 0.3, b.discount),
        extras={"log_prob": torch.where(dummy, -20.0, b.extras["log_prob"])},
        prev_action=torch.where(opens, 1, b.prev_action),
        prev_reward=torch.where(opens, 0.7, b.prev_reward),
    )
    results = []
    for batch in (b, wild):
        loss = algorithm.loss(net, batch, ctx)
        loss.value.sum().backward()
        results.append((loss.value.detach(), gradients(net), *loss.metrics.values()))
    for one, two in zip(*results, strict=True):
        assert torch.equal(one, two)


def test_a_truncation_bootstraps_from_the_final_observation() -> None:
    """It is the dummy row's; a termination at the same place does not look at it."""
    algorithm, net, ctx = make()
    b = at_lag(algorithm, net, ctx)
    other = b._replace(obs=b.obs.clone())
    other.obs[3, 1:] += 1.0
    a, c = (algorithm.loss(net, x, ctx).value.detach() for x in (b, other))
    assert torch.equal(a[:2], c[:2]) and not torch.isclose(a[2], c[2])


@pytest.mark.accept(33)
@pytest.mark.parametrize("recurrent", [None, {"hidden": 8}])
@pytest.mark.parametrize("torso", [Nips(), Nature(), ResNet()], ids=lambda t: t.kind)
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_every_torso_and_precision(torso, recurrent, precision) -> None:
    algorithm, net, ctx = make(obs=SCREEN, torso=torso, recurrent=recurrent)
    with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
        b = at_lag(algorithm, net, ctx, lag=0.1, steps=T)
        loss = algorithm.loss(net, b, ctx)
        flags = torch.zeros(B, dtype=torch.bool)
        step = Step(b.obs[0], flags, flags, b.prev_action[0], b.prev_reward[0],
                    b.prev_reward[0], flags, None)  # fmt: skip
        _, extras, state = algorithm.act(net, step, b.state, ctx)
    loss.value.sum().backward()
    assert loss.value.dtype == torch.float32 and loss.value.isfinite().all()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in net.parameters())
    assert extras["log_prob"].dtype == torch.float32
    assert all(x.dtype == torch.float32 for x in state), "a state must not lose digits"


def test_evaluation_takes_the_mode_and_carries_the_state() -> None:
    algorithm, net, ctx = make(recurrent={"hidden": 8})
    ctx.evaluating = True
    flags, state = torch.zeros(5, dtype=torch.bool), algorithm.begin(5, ctx)
    step = Step(torch.randn(5, 3), flags, flags, flags.long(), *[torch.zeros(5)] * 2, flags, None)
    one, _, after = algorithm.act(net, step, state, ctx)
    two, _, _ = algorithm.act(net, step, state, ctx)
    assert torch.equal(one, two) and not torch.equal(after[0], state[0])


def test_the_plan_and_the_optimizer_are_the_papers() -> None:
    algorithm, net, _ = make()
    plan = algorithm.plan
    assert (plan.reduce, plan.clip, plan.clip_norm) == ("sum", "global", 40.0)
    assert plan.chunk == plan.view.length == 20
    assert plan.schedules["lr"].at(1000, 1000) == 0.0
    rule = algorithm.optimizer(net).cfg
    assert rule == RMSProp(decay=0.99, eps=0.01, momentum=0.0, centered=False)
