"""Soft actor-critic: targets, losses and gradients against answers worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch

from ludus.algos.sac import SAC, Config, soft_actor_critic
from ludus.contract import Values
from ludus.errors import LudusError
from ludus.learn.learner import Learner
from ludus.nets.torsos import MLP
from ludus.types import (
    ArraySpec,
    Continuous,
    Ctx,
    Discrete,
    EnvSpec,
    MultiDiscrete,
    Step,
    Transition,
)
from tests.truth import control as truth

SMALL = {"torso": MLP(hidden=(8, 8)), "warmup": 10, "batch": 6}
BOX = EnvSpec("Made-v0", ArraySpec((3,)), Continuous((2,), (-2.0, 0.0), (2.0, 1.0)))
CHOICES = EnvSpec("Made-v0", ArraySpec((3,)), Discrete(4))
ITEMS = 6


def built(spec, **settings):
    algorithm = SAC(Config(**{**SMALL, **settings}))
    torch.manual_seed(3)
    net = algorithm.build(spec)
    with torch.no_grad():  # targets of their own, so that a test sees which net was used
        for p in net["target"].parameters():
            p.add_(0.3 * torch.randn_like(p))
    values = Values(algorithm.plan, 1000).at(500)
    return algorithm, net, Ctx(torch.Generator().manual_seed(7), spec, values)


def batch_of(spec, mask=None, next_mask=None) -> Transition:
    rng = torch.Generator().manual_seed(5)
    if isinstance(spec.action, Discrete):
        action = torch.randint(4, (ITEMS,), generator=rng)
    else:
        action = torch.rand(ITEMS, 2, generator=rng) * torch.tensor([4.0, 1.0]) - torch.tensor(
            [2.0, 0]
        )
    obs, after = torch.randn(2, ITEMS, 3, generator=rng)
    reward = torch.randn(ITEMS, generator=rng)
    discount = torch.tensor([0.99, 0.99, 0.0, 0.5, 0.99, 0.99])
    return Transition(obs, action, reward, discount, after, mask, next_mask)


def gradients(net, total):
    """Of every parameter by name; None where nothing arrived."""
    parameters = dict(net.named_parameters())
    learned = {k: p for k, p in parameters.items() if p.requires_grad}
    got = torch.autograd.grad(total, learned.values(), allow_unused=True)
    return dict(zip(learned, got, strict=True))


@pytest.mark.accept(150)
@torch.no_grad()
def test_the_loss_of_continuous_actions_is_the_papers() -> None:
    algorithm, net, ctx = built(BOX, initial_temperature=0.4)
    b, online = batch_of(BOX), soft_actor_critic(net)
    loss = algorithm.loss(net, b, ctx)
    rng = torch.Generator().manual_seed(7)
    noise = [torch.randn(ITEMS, 2, generator=rng) for _ in range(2)]  # that of s' comes first
    unit, log_pi = [], []
    for obs, e in zip((b.next_obs, b.obs), noise, strict=True):
        mean, log_std = online.policy(obs)
        unit.append(torch.tanh(mean + log_std.exp() * e))
        rows = zip(mean.tolist(), log_std.tolist(), e.tolist(), strict=True)
        log_pi.append([truth.squashed_log_prob(*row) for row in rows])
    next_q = net["target"](b.next_obs, unit[0]).T.tolist()
    q = online.critic(b.obs, unit[1]).T.tolist()
    scaled = (b.action - torch.tensor([0.0, 0.5])) / torch.tensor([2.0, 0.5])
    taken = online.critic(b.obs, scaled).T.tolist()
    want = [
        truth.sac_sampled(
            b.reward[i].item(), b.discount[i].item(), next_q[i], log_pi[0][i], taken[i], q[i],
            log_pi[1][i], alpha=0.4, wanted=-2.0,
        )
        for i in range(ITEMS)
    ]  # fmt: skip
    torch.testing.assert_close(loss.value, torch.tensor(want), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("spec", [BOX, CHOICES])
def test_each_loss_trains_its_own_part(spec) -> None:
    """The gradient of each group is that of its own term alone."""
    algorithm, net, ctx = built(spec)
    b = batch_of(spec)
    online = soft_actor_critic(net)
    got = gradients(net, algorithm.loss(net, b, ctx).value.sum())
    assert all(g is not None for g in got.values()) and not any("target" in k for k in got)
    ctx.rng.manual_seed(7)
    kind = algorithm._discrete if spec is CHOICES else algorithm._continuous
    terms = kind(online, net["target"], b, online.log_temperature.detach().exp(), ctx)
    assert not terms.target.requires_grad and not terms.entropy.requires_grad
    of_policy = gradients(net, terms.policy.sum())
    of_critic = gradients(net, 0.5 * (terms.q - terms.target).square().sum())
    for name, gradient in got.items():
        if "policy" in name:
            assert of_critic[name] is None
            torch.testing.assert_close(gradient, of_policy[name])
        elif "critic" in name:
            assert of_policy[name] is None, "the policy's loss must not move the critics"
            torch.testing.assert_close(gradient, of_critic[name])


@pytest.mark.parametrize("spec", [BOX, CHOICES])
@pytest.mark.parametrize(("wanted", "sign"), [(50.0, -1), (-50.0, 1)])
def test_the_temperature_rises_where_entropy_is_short(spec, wanted, sign) -> None:
    algorithm, net, ctx = built(spec, target_entropy=wanted)
    got = gradients(net, algorithm.loss(net, batch_of(spec), ctx).value.mean())
    assert math.copysign(1, got["online.log_temperature"].item()) == sign


@pytest.mark.accept(28)
@pytest.mark.accept(150)
@torch.no_grad()
def test_the_loss_of_discrete_actions_is_an_expectation_under_the_policy() -> None:
    algorithm, net, ctx = built(CHOICES, initial_temperature=0.4)
    b, online = batch_of(CHOICES), soft_actor_critic(net)
    before = ctx.rng.get_state()
    loss = algorithm.loss(net, b, ctx)
    assert torch.equal(ctx.rng.get_state(), before), "nothing is sampled"
    next_pi, pi = (online.policy.logits(obs).softmax(-1).tolist() for obs in (b.next_obs, b.obs))
    next_q, q = net["target"](b.next_obs).mT, online.critic(b.obs).mT  # [E,A,B]
    want = [
        truth.sac_expected(
            b.reward[i].item(), b.discount[i].item(), next_q[..., i].tolist(), next_pi[i],
            b.action[i].item(), q[..., i].tolist(), pi[i], alpha=0.4, wanted=0.89 * math.log(4),
        )
        for i in range(ITEMS)
    ]  # fmt: skip
    torch.testing.assert_close(loss.value, torch.tensor(want), rtol=1e-4, atol=1e-4)


@pytest.mark.accept(28)
def test_discrete_temperature_loss_is_an_expectation_under_the_policy() -> None:
    """d/d log alpha = E_s[H(pi(.|s))] - ratio log |A|, whatever actions were taken."""
    algorithm, net, ctx = built(CHOICES, entropy_ratio=0.6)
    b, online = batch_of(CHOICES), soft_actor_critic(net)
    pi = online.policy.logits(b.obs).softmax(-1)
    want = -(pi * pi.log()).sum(-1).mean() - 0.6 * math.log(4)
    for action in (b.action, torch.zeros_like(b.action)):
        got = gradients(net, algorithm.loss(net, b._replace(action=action), ctx).value.mean())
        torch.testing.assert_close(got["online.log_temperature"], want.detach())


@pytest.mark.parametrize("temperature", [1.0, 20.0])
def test_forbidden_actions_count_for_nothing(temperature) -> None:
    """The loss equals that of an environment which has only the allowed actions; the logarithm of
    a forbidden one's probability, near the least float, must not overflow either."""
    mask = torch.tensor([True, False, True, True]).expand(ITEMS, 4)
    algorithm, net, ctx = built(CHOICES, initial_temperature=temperature)
    b = batch_of(CHOICES, mask, mask)._replace(action=torch.zeros(ITEMS, dtype=torch.int64))
    loss = algorithm.loss(net, b, ctx)
    three = EnvSpec("Made-v0", CHOICES.obs, Discrete(3))
    other, fewer, ctx = built(three, initial_temperature=temperature)
    keep = [0, 2, 3]
    state = net.state_dict()
    for key, value in fewer.state_dict().items():
        if value.shape != state[key].shape:
            axis = next(i for i, n in enumerate(state[key].shape) if n == 4)
            state[key] = state[key].index_select(axis, torch.tensor(keep))
    fewer.load_state_dict(state)
    want = other.loss(fewer, b._replace(action_mask=None, next_action_mask=None), ctx)
    torch.testing.assert_close(loss.value, want.value)
    assert all(g.isfinite().all() for g in gradients(net, loss.value.sum()).values())


def test_a_fixed_temperature_is_not_learned() -> None:
    algorithm, net, ctx = built(BOX, temperature="0.5->0.1")
    assert [g["name"] for g in algorithm.optimizer(net).param_groups] == ["critic", "policy"]
    loss = algorithm.loss(net, batch_of(BOX), ctx)
    assert loss.metrics["temperature"].item() == pytest.approx(0.3)


def test_groups_follow_their_own_learning_rates() -> None:
    algorithm = SAC(Config(**SMALL, lr=1e-3, lr_policy="1e-4->0", lr_temperature=0.0))
    learner = Learner(algorithm, BOX, seed=0)
    learner.ctx.values = Values(algorithm.plan, 1000).at(500)
    rates = {g["name"]: float(learner.rate(g)) for g in learner.optimizer.param_groups}
    assert rates == pytest.approx({"critic": 1e-3, "policy": 5e-5, "temperature": 0.0})


def test_targets_move_by_tau_every_period() -> None:
    algorithm, net, _ = built(BOX, tau=0.1, target_period=2)
    before = [p.clone() for p in net["target"].parameters()]
    algorithm.after_update(net, 1)
    assert all(map(torch.equal, before, net["target"].parameters()))
    algorithm.after_update(net, 2)
    sources = soft_actor_critic(net).critic.parameters()
    for old, new, goal in zip(before, net["target"].parameters(), sources, strict=True):
        torch.testing.assert_close(new, 0.9 * old + 0.1 * goal)


def step_of(n, mask=None) -> Step:
    flags, zeros = torch.zeros(n, dtype=torch.bool), torch.zeros(n)
    obs = torch.randn(3, generator=torch.Generator().manual_seed(1)).expand(n, 3)
    return Step(obs, flags, flags, zeros, zeros, zeros, flags, mask)


def test_warm_up_is_uniform_over_the_box_and_then_the_policy() -> None:
    algorithm, net, ctx = built(BOX)
    ctx.values = Values(algorithm.plan, 1000).at(0)
    with torch.no_grad():
        action = algorithm.act(net, step_of(20_000), (), ctx)[0]
        assert action.amin(0).tolist() == pytest.approx([-2.0, 0.0], abs=0.01)
        assert action.amax(0).tolist() == pytest.approx([2.0, 1.0], abs=0.01)
        assert action.std(0).tolist() == pytest.approx([4 / 12**0.5, 1 / 12**0.5], rel=0.03)
        ctx.values = Values(algorithm.plan, 1000).at(10)
        action = algorithm.act(net, step_of(20_000), (), ctx)[0]
        mean, log_std = (x[0] for x in soft_actor_critic(net).policy(step_of(1).obs))
        unit = (action - torch.tensor([0.0, 0.5])) / torch.tensor([2.0, 0.5])
        back = torch.atanh(unit.clamp(-0.999999, 0.999999))
        torch.testing.assert_close(back.mean(0), mean, atol=0.05, rtol=0)
        torch.testing.assert_close(back.std(0), log_std.exp(), atol=0.05, rtol=0)
        ctx.evaluating = True
        greedy = algorithm.act(net, step_of(2), (), ctx)[0]
    torch.testing.assert_close(
        greedy[0], torch.tanh(mean) * torch.tensor([2.0, 0.5]) + torch.tensor([0.0, 0.5])
    )


def test_discrete_acting_obeys_masks() -> None:
    algorithm, net, ctx = built(CHOICES)
    mask = torch.tensor([False, True, True, False]).expand(9000, 4)
    with torch.no_grad():
        ctx.values = Values(algorithm.plan, 1000).at(0)
        counts = algorithm.act(net, step_of(9000, mask), (), ctx)[0].bincount(minlength=4)
        assert counts.tolist() == pytest.approx([0, 4500, 4500, 0], abs=250)
        ctx.values = Values(algorithm.plan, 1000).at(10)
        pi = soft_actor_critic(net).policy(step_of(1, mask).obs, mask[:1]).parts[0][0].exp()
        counts = algorithm.act(net, step_of(9000, mask), (), ctx)[0].bincount(minlength=4)
        assert (counts / 9000).tolist() == pytest.approx(pi.tolist(), abs=0.03)
        ctx.evaluating = True
        assert algorithm.act(net, step_of(1, mask[:1]), (), ctx)[0].item() == pi.argmax().item()


def test_several_choices_at_once_are_refused() -> None:
    with pytest.raises(LudusError, match="E204"):
        SAC().build(EnvSpec("Made-v0", ArraySpec((3,)), MultiDiscrete((2, 3))))


def test_a_bandit_ends_at_the_soft_optimal_policy() -> None:
    """One state, rewards known: pi(a) ~ exp(r(a) / alpha) at a fixed temperature."""
    spec = EnvSpec("Made-v0", ArraySpec((1,)), Discrete(3))
    algorithm = SAC(Config(torso=MLP(hidden=(16,)), temperature=0.5, lr=1e-2, tau=1.0, warmup=1))
    learner = Learner(algorithm, spec, seed=0)
    learner.ctx.values = Values(algorithm.plan, 100).at(50)
    action = torch.arange(3).repeat(8)
    reward = torch.tensor([0.0, 0.5, 1.0])[action]
    one, none = torch.ones(24, 1), torch.zeros(24)
    for _ in range(600):
        learner.update(Transition(one, action, reward, none, one), None)
    pi = soft_actor_critic(learner.net).policy(one[:1]).parts[0][0].exp()
    want = torch.softmax(torch.tensor([0.0, 0.5, 1.0]) / 0.5, -1)
    torch.testing.assert_close(pi.detach(), want, atol=0.02, rtol=0)
