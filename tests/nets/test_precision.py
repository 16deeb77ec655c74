"""Under autocast: layers in bfloat16, what losses read in float32, and the two not far apart."""

import math

import pytest
import torch

from ludus.algos import dqn, ppo
from ludus.nets import (
    MLP,
    Categorical,
    Impala,
    Implicit,
    Nature,
    Nips,
    NoisyLinear,
    PolicyDist,
    QNet,
    Quantile,
    Scalar,
    build_torso,
)
from ludus.nets.inputs import ImageInput, VectorInput
from ludus.types import (
    ArraySpec,
    Continuous,
    Ctx,
    Discrete,
    EnvSpec,
    MultiDiscrete,
    Transition,
)

SCREEN = ArraySpec((84, 84), "uint8", 0, 255, stack=4, layout="hw")
SPEC = EnvSpec("probe", SCREEN, Discrete(5))
HEADS = [
    cls(dueling=dueling, noisy=noisy, hidden=hidden, **more)
    for cls, more in (
        (Scalar, {}), (Categorical, {}), (Quantile, {"quantiles": 20}),
        (Implicit, {"taus": 8, "target_taus": 8, "act_taus": 8}),
    )
    for dueling, noisy, hidden in ((False, None, 0), (True, None, 16), (False, 0.5, 16),
                                   (True, 0.5, 16), (True, 0.5, 0))
]  # fmt: skip


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


def bf16():
    return torch.autocast("cpu", torch.bfloat16)


def screens(batch=4):
    return torch.randint(0, 256, (batch, 4, 84, 84)).to(torch.uint8)


def close(got, want, scale=0.03):
    """Within bfloat16's few digits, measured against the size of the whole answer."""
    assert got.dtype == want.dtype == torch.float32
    assert got.isfinite().all()
    assert (got - want).abs().max() <= scale * want.abs().max() + scale


def rounded(x):
    """Whether these float32 were bfloat16 a moment ago: small differences are gone for good."""
    return torch.equal(x, x.bfloat16().float())


def test_bytes_arrive_in_the_dtype_of_the_layers():
    image, vector = ImageInput(SCREEN), VectorInput(ArraySpec((256,), "uint8"))
    every = torch.arange(256, dtype=torch.uint8)
    for ready, x in ((image, screens()), (vector, every.unsqueeze(0))):
        want = ready(x)
        assert want.dtype == torch.float32
        with bf16():
            got = ready(x)
        assert got.dtype == torch.bfloat16
        assert torch.equal(got, want.bfloat16())  # rounded once


@pytest.mark.parametrize("cfg", [Nips(), Nature(), Impala(), Impala(width=2)], ids=str)
def test_torsos_compute_in_it(cfg):
    torso, x = build_torso(cfg, SCREEN), screens()
    with bf16():
        y = torso(x)
    assert y.dtype == torch.bfloat16
    close(y.float(), torso(x))
    y.float().square().sum().backward()
    assert all(
        p.grad.dtype == torch.float32 and p.grad.isfinite().all() for p in torso.parameters()
    )


@pytest.mark.parametrize("noise", [False, True])
def test_a_noisy_layer_draws_the_same_noise(noise):
    layer, x = NoisyLinear(64, 8, 0.5), torch.randn(3, 64)
    want = layer(x, rng() if noise else None)
    with bf16():
        got = layer(x.bfloat16(), rng() if noise else None)
    assert got.dtype == torch.bfloat16
    close(got.float(), want)


@pytest.mark.parametrize("head", HEADS, ids=str)
def test_every_head_answers_and_learns_in_float32(head):
    algo = dqn.DQN(dqn.Config(torso=Nips(), head=head, double=True))
    net, x = algo.build(SPEC), screens()
    online = dqn.q_net(net, "online")
    want = online(x, rng())
    with bf16():
        got = online(x, rng())
    close(got.q, want.q)
    close(got.dist, want.dist)
    assert not rounded(got.dist)
    batch = Transition(
        obs=x, action=torch.arange(4) % 5, reward=torch.randn(4), discount=torch.full((4,), 0.99),
        next_obs=screens(),
    )  # fmt: skip
    plain = algo.loss(net, batch, Ctx(rng(), SPEC))
    with bf16():
        loss = algo.loss(net, batch, Ctx(rng(), SPEC))
    assert loss.priority.dtype == torch.float32
    close(loss.value, plain.value, 0.06)
    close(loss.priority, plain.priority, 0.06)
    loss.value.mean().backward()
    grads = [p.grad for p in online.parameters()]
    assert all(g is not None and g.dtype == torch.float32 and g.isfinite().all() for g in grads)
    assert sum(g.abs().sum() for g in grads) > 0


def test_a_munchausen_target_is_computed_in_float32():
    head = Implicit(taus=8, target_taus=8, act_taus=8)
    algo = dqn.DQN(dqn.Config(torso=Nips(), head=head, munchausen=dqn.Munchausen()))
    net = algo.build(SPEC)
    batch = Transition(
        obs=screens(), action=torch.arange(4), reward=torch.randn(4),
        discount=torch.full((4,), 0.99), next_obs=screens(),
    )  # fmt: skip
    plain = algo.loss(net, batch, Ctx(rng(), SPEC))
    with bf16():
        loss = algo.loss(net, batch, Ctx(rng(), SPEC))
    close(loss.value, plain.value, 0.06)


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize(
    "action",
    [Discrete(6), MultiDiscrete((3, 2)), Continuous((2,), (-1.0,) * 2, (1.0,) * 2)],
    ids=str,
)
def test_policies_and_values_are_float32(action, shared):
    spec = EnvSpec("probe", SCREEN, action)
    algo = ppo.PPO(ppo.Config(torso=Nature(), shared_torso=shared))
    net, x = algo.build(spec), screens()
    plain, value = ppo.actor_critic(net).both(x)
    taken = plain.sample(rng())
    with bf16():
        dist, got = ppo.actor_critic(net).both(x)
        log_prob, entropy, kl = dist.log_prob(taken), dist.entropy(), dist.kl(plain)
        assert dist.sample(rng()).dtype == taken.dtype
        assert dist.mode().shape == taken.shape
        loss = algo.loss(
            net,
            ppo.Batch(x, taken, log_prob.detach(), torch.randn(4), torch.randn(4), value.detach(),
                      torch.ones(4, dtype=torch.bool), None),
            Ctx(rng(), spec, values={"clip": torch.tensor(0.1)}),
        )  # fmt: skip
    close(got, value)
    policy = ppo.actor_critic(net).policy
    with bf16():
        params = policy(torch.randn(4, policy.linear.in_features, dtype=torch.bfloat16))
    assert not rounded(got) and not rounded(params)
    close(log_prob, plain.log_prob(taken))
    close(entropy, plain.entropy())
    close(kl, torch.zeros(4))
    assert loss.value.dtype == torch.float32
    loss.value.mean().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in net.parameters())


def test_doubles_are_left_alone():
    net = QNet(EnvSpec("probe", ArraySpec((4,)), Discrete(2)), MLP(), Categorical()).double()
    assert net(torch.zeros(2, 4, dtype=torch.float64)).q.dtype == torch.float64


def test_the_mean_of_a_distribution_is_not_rounded():
    head = QNet(SPEC, Nips(), Categorical(v_min=0, v_max=1000)).head
    with torch.no_grad():
        head.streams.output.weight.zero_()
        head.streams.output.bias.zero_()
        with bf16():
            q = head(torch.zeros(1, 256, dtype=torch.bfloat16)).q
    assert q.dtype == torch.float32
    assert math.isclose(q[0, 0].item(), 500.0, rel_tol=1e-6)


def test_a_distribution_of_coarse_numbers_would_be_coarse():
    """Why heads cast: 0.01 of a log-probability is lost in bfloat16."""
    logits = torch.tensor([[5.0, 0.01, -3.0]])
    fine = PolicyDist(logits, Discrete(3)).parts[0]
    assert (PolicyDist(logits.bfloat16(), Discrete(3)).parts[0].float() - fine).abs().max() > 1e-3
