"""A3C's loss on numbers small enough to check; its memory; its three kinds of actions."""

from __future__ import annotations

import math
from contextlib import nullcontext

import pytest
import torch

from ludus.algos.a3c import A3C, Config
from ludus.collect.collector import Collector
from ludus.contract import Values
from ludus.envs.config import EnvConfig
from ludus.envs.make import make_envs
from ludus.learn.learner import Learner
from ludus.replay.store import build_store
from ludus.types import ArraySpec, Continuous, Ctx, Discrete, EnvSpec, MultiDiscrete, Step, Traj
from tests.truth.asynchronous import returns
from tests.truth.episodes import pieces

ACTIONS = {
    "discrete": Discrete(3),
    "continuous": Continuous((2,), (-1.0, -1.0), (1.0, 1.0)),
    "multi": MultiDiscrete((2, 3)),
}
ROWS, SLOTS = 6, 3


def make(action, **settings):
    spec = EnvSpec("toy", ArraySpec((3,)), action)
    algorithm = A3C(Config(**settings))
    torch.manual_seed(0)
    net = algorithm.build(spec)
    for p in net.parameters():
        p.data.add_(0.1 * torch.randn(p.shape))
    ctx = Ctx(torch.Generator().manual_seed(1), spec, {"lr": torch.tensor(1e-3)})
    return algorithm, net, ctx


def fragment(algorithm, net, ctx) -> Traj:
    """Slot 1 terminates after row 2, slot 2 is truncated after row 3."""
    g = torch.Generator().manual_seed(2)
    obs = torch.randn(ROWS + 1, SLOTS, 3, generator=g)
    first = torch.zeros(ROWS + 1, SLOTS, dtype=torch.bool)
    first[4, 1] = first[5, 2] = True
    state = start = algorithm.begin(SLOTS, ctx)
    actions = []
    flags = torch.zeros(SLOTS, dtype=torch.bool)
    with torch.no_grad():
        for t in range(ROWS):
            step = Step(obs[t], first[t], flags, *[torch.zeros(SLOTS)] * 3, flags, None)
            action, _, state = algorithm.act(net, step, state, ctx)
            actions.append(action)
    last = torch.zeros(ROWS, SLOTS, dtype=torch.bool)
    last[2, 1] = last[3, 2] = True
    mask = torch.ones(ROWS, SLOTS, dtype=torch.bool)
    mask[3, 1] = mask[4, 2] = False
    discount = torch.ones(ROWS, SLOTS)
    discount[2, 1] = 0.0
    reward = torch.where(mask, torch.randn(ROWS, SLOTS, generator=g), torch.nan)
    return Traj(obs, torch.stack(actions), reward, discount, last, first, mask, state=start)


@pytest.mark.accept(150)
@pytest.mark.accept(25)
def test_the_loss_is_the_papers_written_out_and_summed() -> None:
    algorithm, net, ctx = make(Discrete(3), gamma=0.9, entropy_cost=0.02, value_cost=0.7)
    b = fragment(algorithm, net, ctx)
    got = algorithm.loss(net, b, ctx).value
    with torch.no_grad():
        params, v, _ = net["online"](b.obs, b.first, ())
    for c in range(SLOTS):
        total = 0.0
        for start, stop in pieces(b.last[:, c].tolist(), b.mask[:, c].tolist()):
            g = (0.9 * b.discount[start:stop, c]).tolist()
            y = returns(b.reward[start:stop, c].tolist(), g, v[start : stop + 1, c].tolist())
            for i, ret in enumerate(y):
                logits = params[start + i, c].tolist()
                z = math.log(sum(math.exp(x) for x in logits))
                log_p = [x - z for x in logits]
                entropy = -sum(math.exp(x) * x for x in log_p)
                advantage = ret - float(v[start + i, c])
                total -= log_p[int(b.action[start + i, c])] * advantage
                total += 0.7 * 0.5 * advantage**2 - 0.02 * entropy
        assert float(got[c].detach()) == pytest.approx(total, rel=1e-4)


@pytest.mark.accept(150)
@pytest.mark.accept(27)
def test_the_loss_of_continuous_actions_is_the_papers_written_out() -> None:
    """-log N(a; mu, sigma^2) (R - V) over every dimension, its entropy and the value's error."""
    algorithm, net, ctx = make(ACTIONS["continuous"], gamma=0.9, entropy_cost=0.02, value_cost=0.7)
    b = fragment(algorithm, net, ctx)
    got = algorithm.loss(net, b, ctx).value
    with torch.no_grad():
        params, v, _ = net["online"](b.obs, b.first, ())
    for c in range(SLOTS):
        total = 0.0
        for start, stop in pieces(b.last[:, c].tolist(), b.mask[:, c].tolist()):
            g = (0.9 * b.discount[start:stop, c]).tolist()
            y = returns(b.reward[start:stop, c].tolist(), g, v[start : stop + 1, c].tolist())
            for i, ret in enumerate(y):
                numbers, action = params[start + i, c].tolist(), b.action[start + i, c].tolist()
                log_p = entropy = 0.0
                for mean, log_std, a in zip(numbers[:2], numbers[2:], action, strict=True):
                    sigma = math.exp(log_std)
                    density = math.exp(-((a - mean) ** 2) / (2 * sigma**2))
                    log_p += math.log(density / (sigma * math.sqrt(2 * math.pi)))
                    entropy += 0.5 * math.log(2 * math.pi * math.e * sigma**2)
                advantage = ret - float(v[start + i, c])
                total += -log_p * advantage + 0.7 * 0.5 * advantage**2 - 0.02 * entropy
        assert float(got[c].detach()) == pytest.approx(total, rel=1e-4)


def test_the_advantage_is_a_constant_for_the_policy() -> None:
    algorithm, net, ctx = make(Discrete(3), shared_torso=False, value_cost=0.0)
    algorithm.loss(net, fragment(algorithm, net, ctx), ctx).value.sum().backward()
    value = [*net["online"].value_tower.parameters(), *net["online"].value.parameters()]
    assert all(p.grad is None or not p.grad.any() for p in value)
    assert any(p.grad.any() for p in net["online"].tower.parameters())


@pytest.mark.parametrize("kind", ACTIONS)
def test_the_entropy_bonus_raises_entropy(kind) -> None:
    """Its sign: a step on that term alone must make the policy less certain."""

    def entropy(cost: float) -> float:
        algorithm, net, ctx = make(ACTIONS[kind], entropy_cost=cost, value_cost=0.0)
        b = fragment(algorithm, net, ctx)
        # A value equal to the return leaves the policy term nothing to push on.
        flat = b._replace(reward=torch.zeros_like(b.reward), discount=torch.zeros_like(b.discount))
        for p in net["online"].value.parameters():
            p.data.zero_()
        loss = algorithm.loss(net, flat, ctx)
        loss.value.sum().backward()
        with torch.no_grad():
            for p in net.parameters():
                if p.grad is not None:
                    p.sub_(0.01 * p.grad)
        return float(algorithm.loss(net, flat, ctx).metrics["entropy"])

    assert entropy(1.0) > entropy(0.0) + 1e-4


@pytest.mark.accept(27)
def test_continuous_actions_have_their_own_nets_and_a_softplus_variance() -> None:
    algorithm, net, ctx = make(ACTIONS["continuous"])
    online = net["online"]
    assert online.value_tower is not None
    policy = {id(p) for p in [*online.tower.parameters(), *online.policy.parameters()]}
    value = {id(p) for p in [*online.value_tower.parameters(), *online.value.parameters()]}
    assert not policy & value and len(policy | value) == len(list(net.parameters()))
    b = fragment(algorithm, net, ctx)
    params, _, _ = online(b.obs, b.first, ())
    features, _ = online.tower(b.obs, b.first, ())
    mean, x = online.policy.linear(features).chunk(2, -1)
    torch.testing.assert_close(params[..., :2], mean)
    variance = (2 * params[..., 2:]).exp()
    torch.testing.assert_close(variance, torch.log1p(x.exp()) + 1e-5, atol=1e-5, rtol=1e-4)
    entropy = 0.5 * (torch.log(2 * math.pi * variance) + 1).sum(-1)[:-1]  # section 9
    got = algorithm.loss(net, b, ctx).metrics["entropy"]
    assert float(got) == pytest.approx(float(entropy[b.mask].mean().detach()), abs=1e-4)
    assert make(ACTIONS["discrete"])[1]["online"].value_tower is None


@pytest.mark.accept(26)
@pytest.mark.parametrize("kind", ["discrete", "continuous"])
def test_a_sequence_equals_steps_with_an_episode_end_in_the_middle(kind) -> None:
    algorithm, net, ctx = make(ACTIONS[kind], lstm=8)
    b = fragment(algorithm, net, ctx)
    whole, values, _ = net["online"](b.obs, b.first, b.state)
    state = b.state
    for t in range(ROWS + 1):
        one, v, state = net["online"](b.obs[t][None], b.first[t][None], state)
        torch.testing.assert_close(one[0], whole[t], atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(v[0], values[t], atol=1e-5, rtol=1e-5)


@pytest.mark.accept(26)
def test_memory_is_carried_over_fragments_detached_and_reset_at_episode_starts() -> None:
    algorithm = A3C(Config(lstm=8, t_max=5))
    envs = make_envs(EnvConfig(id="ludus/Counter-v0", num=2, args={"length": 8}), seed=0)
    learner = Learner(algorithm, envs.spec, seed=0)
    collector = Collector(algorithm, envs, seed=0)
    collector.barrier(0)
    plan = algorithm.plan.for_envs(2)
    store = build_store(plan, envs.spec, 2, seed=0, horizon=100)
    values = Values(plan, 100).at(0)
    carried = None
    for fragment_number in range(4):
        store.add(collector.collect(learner.net, 5, values).chunk)
        b = store.sample().batch
        [(h, c)] = b.state
        assert not h.requires_grad and not c.requires_grad
        if carried is None:
            assert not h.any() and not c.any()
        else:
            torch.testing.assert_close(h, carried[0])
            assert h.any(), f"fragment {fragment_number} knows what came before it"
        with torch.no_grad():
            _, _, [carried] = learner.net["online"](b.obs[:-1], b.first[:-1], b.state)
        loss = algorithm.loss(learner.net, b, learner.ctx)
        loss.value.sum().backward()  # would fail on a graph that an earlier fragment freed
        for start in b.first[:-1].nonzero().tolist():
            t, slot = start
            alone, _, _ = learner.net["online"](
                b.obs[t : t + 1, slot : slot + 1], torch.ones(1, 1, dtype=torch.bool),
                algorithm.begin(1, learner.ctx),
            )  # fmt: skip
            whole, _, _ = learner.net["online"](b.obs, b.first, b.state)
            torch.testing.assert_close(alone[0, 0], whole[t, slot], atol=1e-5, rtol=1e-5)
    envs.close()


@pytest.mark.parametrize("kind", ACTIONS)
def test_evaluation_takes_the_mode(kind) -> None:
    algorithm, net, ctx = make(ACTIONS[kind])
    ctx.evaluating = True
    flags = torch.zeros(5, dtype=torch.bool)
    step = Step(torch.randn(5, 3), flags, flags, *[torch.zeros(5)] * 3, flags, None)
    with torch.no_grad():
        one, two = (algorithm.act(net, step, (), ctx)[0] for _ in range(2))
    assert torch.equal(one, two)


def test_off_the_cpu_nothing_looks_at_the_flags(monkeypatch) -> None:
    """A capture would fail there. Tensors of the meta device have shapes, but no numbers."""
    _, net, _ = make(ACTIONS["discrete"], lstm=8)
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: nullcontext())
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda _: False)
    obs, first = torch.zeros(5, 2, 3, device="meta"), torch.zeros(5, 2, device="meta").bool()
    zeros = torch.zeros(2, 8, device="meta")
    logits, value, _ = net.to("meta")["online"](obs, first, ((zeros, zeros),))
    assert logits.shape == (5, 2, 3) and value.shape == (5, 2)
