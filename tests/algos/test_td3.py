"""TD3: the smoothed target, the delayed policy and the gradients, against answers by hand."""

from __future__ import annotations

import pytest
import torch

from ludus.algos.td3 import TD3, Config, actor_critic
from ludus.contract import Values
from ludus.errors import LudusError
from ludus.learn.learner import Learner
from ludus.nets.torsos import MLP
from ludus.types import ArraySpec, Continuous, Ctx, Discrete, EnvSpec, Step, Transition

SMALL = {"torso": MLP(hidden=(8, 8)), "warmup": 10, "batch": 6}
BOX = EnvSpec("Made-v0", ArraySpec((3,)), Continuous((2,), (-2.0, 0.0), (2.0, 1.0)))
ITEMS = 6
BOTH = frozenset(("critic", "policy"))


def built(**settings):
    algorithm = TD3(Config(**{**SMALL, **settings}))
    torch.manual_seed(3)
    net = algorithm.build(BOX)
    with torch.no_grad():
        for p in net["target"].parameters():
            p.add_(0.3 * torch.randn_like(p))
    values = Values(algorithm.plan, 1000).at(500)
    return algorithm, net, Ctx(torch.Generator().manual_seed(7), BOX, values, stepping=BOTH)


def batch_of() -> Transition:
    rng = torch.Generator().manual_seed(5)
    action = torch.rand(ITEMS, 2, generator=rng) * torch.tensor([4.0, 1.0]) - torch.tensor([2.0, 0])
    obs, after = torch.randn(2, ITEMS, 3, generator=rng)
    discount = torch.tensor([0.99, 0.99, 0.0, 0.5, 0.99, 0.99])
    return Transition(obs, action, torch.randn(ITEMS, generator=rng), discount, after)


def gradients(net, total):
    learned = {k: p for k, p in net.named_parameters() if p.requires_grad}
    got = torch.autograd.grad(total, learned.values(), allow_unused=True)
    return dict(zip(learned, got, strict=True))


def test_loss_is_clipped_double_q_and_the_first_critic() -> None:
    algorithm, net, ctx = built()
    b, online, target = batch_of(), actor_critic(net, "online"), actor_critic(net, "target")
    loss = algorithm.loss(net, b, ctx)
    noise = 0.2 * torch.randn(ITEMS, 2, generator=torch.Generator().manual_seed(7))
    action = (target.policy(b.next_obs) + noise.clamp(-0.5, 0.5)).clamp(-1, 1)
    q1, q2 = target.critic(b.next_obs, action)
    y = b.reward + b.discount * torch.minimum(q1, q2)
    taken = (b.action - torch.tensor([0.0, 0.5])) / torch.tensor([2.0, 0.5])
    q = online.critic(b.obs, taken)
    policy = -online.critic(b.obs, online.policy(b.obs))[0]
    torch.testing.assert_close(loss.value, (q[0] - y) ** 2 + (q[1] - y) ** 2 + policy)
    torch.testing.assert_close(loss.priority, (q - y).abs().mean(0).detach())


def test_target_noise_is_clipped_and_actions_stay_in_the_box() -> None:
    algorithm, _, _ = built(target_noise=0.4, target_noise_clip=0.5)
    rng = torch.Generator().manual_seed(1)
    at_zero = algorithm._smoothed(torch.zeros(20_000, 1), rng)
    assert at_zero.min() == -0.5 and at_zero.max() == 0.5
    assert at_zero[at_zero.abs() < 0.5].std() > 0.2, "and it is noise between the bounds"
    at_edge = algorithm._smoothed(torch.full((20_000, 1), 0.9), rng)
    assert at_edge.max() == 1.0 and at_edge.min() == pytest.approx(0.4)


def test_each_loss_trains_its_own_part() -> None:
    algorithm, net, ctx = built()
    b, online = batch_of(), actor_critic(net, "online")
    both = gradients(net, algorithm.loss(net, b, ctx).value.sum())
    assert all(g is not None for g in both.values()) and not any("target" in k for k in both)
    ctx.stepping = frozenset(("critic",))
    ctx.rng.manual_seed(7)
    alone = gradients(net, algorithm.loss(net, b, ctx).value.sum())
    policy = gradients(net, -online.critic(b.obs, online.policy(b.obs))[0].sum())
    for name, gradient in both.items():
        if "critic" in name:
            torch.testing.assert_close(gradient, alone[name])
        else:
            assert alone[name] is None, "no policy loss in an update where it does not step"
            torch.testing.assert_close(gradient, policy[name])


def test_the_policy_and_the_targets_move_every_second_update() -> None:
    algorithm = TD3(Config(**SMALL))
    learner = Learner(algorithm, BOX, seed=0)
    learner.ctx.values = Values(algorithm.plan, 1000).at(500)
    moved: dict[str, list[int]] = {"critic": [], "policy": [], "target": []}
    parts = {
        "critic": actor_critic(learner.net, "online").critic,
        "policy": actor_critic(learner.net, "online").policy,
        "target": learner.net["target"],
    }
    for update in range(1, 8):
        before = {k: [p.clone() for p in part.parameters()] for k, part in parts.items()}
        learner.update(batch_of(), None)
        for name, part in parts.items():
            if not all(map(torch.equal, before[name], part.parameters())):
                moved[name].append(update)
    assert moved == {"critic": [1, 2, 3, 4, 5, 6, 7], "policy": [2, 4, 6], "target": [2, 4, 6]}


def test_targets_move_by_tau() -> None:
    algorithm, net, _ = built(tau=0.1)
    before = [p.clone() for p in net["target"].parameters()]
    algorithm.after_update(net, 2)
    pairs = zip(before, net["target"].parameters(), net["online"].parameters(), strict=True)
    for old, new, goal in pairs:
        torch.testing.assert_close(new, 0.9 * old + 0.1 * goal)


def test_acting_is_random_then_noisy_then_greedy() -> None:
    algorithm, net, ctx = built(noise=0.05)
    n = 20_000
    flags, zeros = torch.zeros(n, dtype=torch.bool), torch.zeros(n)
    obs = torch.randn(3, generator=torch.Generator().manual_seed(1)).expand(n, 3)
    step = Step(obs, flags, flags, zeros, zeros, zeros, flags, None)
    with torch.no_grad():
        ctx.values = Values(algorithm.plan, 1000).at(0)
        action = algorithm.act(net, step, (), ctx)[0]
        assert action.std(0).tolist() == pytest.approx([4 / 12**0.5, 1 / 12**0.5], rel=0.03)
        assert action.amin(0).tolist() == pytest.approx([-2.0, 0.0], abs=0.01)
        ctx.values = Values(algorithm.plan, 1000).at(10)
        noisy = algorithm.act(net, step, (), ctx)[0]
        ctx.evaluating = True
        greedy = algorithm.act(net, step, (), ctx)[0]
        unit = actor_critic(net, "online").policy(obs[:1])
    scale, shift = torch.tensor([2.0, 0.5]), torch.tensor([0.0, 0.5])
    torch.testing.assert_close(greedy[:1], unit * scale + shift)
    assert (noisy - greedy).std(0).tolist() == pytest.approx([0.1, 0.025], rel=0.05)


def test_exploration_stays_in_the_box() -> None:
    algorithm, net, ctx = built(noise=5.0)
    flags, zeros = torch.zeros(500, dtype=torch.bool), torch.zeros(500)
    step = Step(torch.randn(500, 3), flags, flags, zeros, zeros, zeros, flags, None)
    with torch.no_grad():
        action = algorithm.act(net, step, (), ctx)[0]
    assert action.amin(0).tolist() == [-2.0, 0.0] and action.amax(0).tolist() == [2.0, 1.0]


def test_discrete_actions_are_refused_and_sac_is_named() -> None:
    with pytest.raises(LudusError, match="ludus train sac"):
        TD3().build(EnvSpec("Made-v0", ArraySpec((3,)), Discrete(2)))
