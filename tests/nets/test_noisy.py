"""Noisy layers: the paper's variance, fresh noise for every pass, none without a generator."""

import math

import pytest
import torch

from ludus.nets import MLP, Categorical, Implicit, NoisyLinear, QNet, Quantile, Scalar, initialize
from ludus.types import ArraySpec, Discrete, EnvSpec

SPEC = EnvSpec("probe", ArraySpec((4,)), Discrete(3))


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.mark.accept(9)
def test_initial_values_are_those_of_the_paper():
    layer = NoisyLinear(16, 400, sigma0=0.4)
    initialize(layer, rng())
    assert torch.allclose(layer.weight_sigma, torch.tensor(0.4 / 4))
    assert torch.allclose(layer.bias_sigma, torch.tensor(0.4 / 4))  # by inputs, not by outputs
    for mu in (layer.weight, layer.bias):
        assert mu.abs().max() <= 0.25
        assert mu.std().item() == pytest.approx(0.25 / math.sqrt(3), rel=0.1)
    assert {name for name, _ in layer.named_buffers()} == set()


@pytest.mark.accept(9)
def test_every_pass_draws_its_own_noise_and_none_without_a_generator():
    layer, x, g = NoisyLinear(4, 5, 0.5), torch.randn(7, 4), rng()
    first, second = layer(x, g), layer(x, g)
    assert not torch.allclose(first, second)
    assert torch.equal(layer(x, rng()), first)  # the same generator state, the same noise
    mean = torch.nn.functional.linear(x, layer.weight, layer.bias)
    assert torch.equal(layer(x, None), mean)
    assert torch.equal(layer(x), mean)


@pytest.mark.accept(9)
def test_the_noise_is_factorised_and_shaped_by_f():
    layer, g = NoisyLinear(4, 3, 0.5).double(), rng(1)
    with torch.no_grad():
        layer.weight.zero_()
        layer.bias.zero_()
    eye = torch.eye(4, dtype=torch.float64)
    drawn = torch.randn(7, generator=rng(1), dtype=torch.float64)
    f = drawn.sign() * drawn.abs().sqrt()
    bias = layer.bias_sigma * f[4:]
    noise = layer(eye, g) - bias  # [in, out]
    want = (layer.weight_sigma * torch.outer(f[4:], f[:4])).T
    torch.testing.assert_close(noise, want)
    assert torch.linalg.matrix_rank(noise / layer.weight_sigma.T) == 1


@pytest.mark.accept(9)
def test_the_variance_of_the_output_follows_the_formula():
    """E f(e)^2 = E|e| = sqrt(2/pi) = m, so Var y = sigma^2 (m^2 |x|^2 + m)."""
    layer, g = NoisyLinear(8, 1, 0.5), rng(2)
    x = torch.linspace(-1, 1, 8).unsqueeze(0)
    with torch.no_grad():
        y = torch.stack([layer(x, g)[0, 0] for _ in range(20_000)])
        m, sigma = math.sqrt(2 / math.pi), 0.5 / math.sqrt(8)
        want = sigma**2 * (m**2 * x.square().sum() + m)
        assert y.var().item() == pytest.approx(want.item(), rel=0.06)
        assert y.mean().item() == pytest.approx(layer(x).item(), abs=0.01)


def test_gradients_reach_mean_and_sigma():
    layer = NoisyLinear(3, 2, 0.5)
    layer(torch.randn(4, 3), rng()).square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in layer.parameters())


@pytest.mark.accept(9)
@pytest.mark.parametrize("hidden", [0, 8])
@pytest.mark.parametrize("cfg", [Scalar, Categorical, Quantile, Implicit])
def test_every_head_can_be_noisy_and_is_silent_in_greedy_evaluation(cfg, hidden):
    net = QNet(SPEC, MLP(hidden=(8,)), cfg(noisy=0.5, hidden=hidden, dueling=True))
    x, g = torch.randn(5, 4), rng()
    online, target = net(x, g).q, net(x, g).q
    assert not torch.allclose(online, target)
    assert torch.equal(net(x, None).q, net(x, None).q)
    if cfg is not Implicit:  # whose taus are drawn from the generator too
        assert torch.equal(net(x, g, noise=False).q, net(x, g, noise=False).q)
    else:
        taus = torch.rand(5, 4, generator=g)
        features = net.torso(x)
        assert torch.equal(net.head.at(features, taus).q, net.head.at(features, taus).q)
        assert not torch.equal(net.head.at(features, taus, g).q, net.head.at(features, taus).q)


@pytest.mark.accept(9)
def test_sigma0_scales_the_spread():
    def spread(sigma0):
        net, g = QNet(SPEC, MLP(hidden=(8,)), Scalar(noisy=sigma0)), rng()
        initialize(net, rng(5))
        x = torch.ones(1, 4)
        with torch.no_grad():
            return torch.stack([net(x, g).q for _ in range(400)]).std(0).mean().item()

    assert spread(1.0) == pytest.approx(10 * spread(0.1), rel=1e-3)
