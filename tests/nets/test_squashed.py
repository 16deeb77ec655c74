"""Squashed policies against torch.distributions, and the units of a box."""

from __future__ import annotations

import pytest
import torch
from torch.distributions import Independent, Normal, TanhTransform, TransformedDistribution

from ludus.errors import LudusError
from ludus.nets.squashed import ActionBox, SquashedGaussian, squash
from ludus.nets.torsos import MLP
from ludus.types import ArraySpec, Continuous, Discrete, EnvSpec


def spec_of(low, high, shape=None) -> EnvSpec:
    box = Continuous(shape or (len(low),), tuple(low), tuple(high))
    return EnvSpec("Made-v0", ArraySpec((4,)), box)


def test_log_prob_is_that_of_a_transformed_gaussian() -> None:
    rng = torch.Generator().manual_seed(1)
    draws = torch.randn(3, 64, 3, generator=rng, dtype=torch.double)
    mean, log_std, noise = draws * torch.tensor([1.0, 0.5, 1.0]).view(3, 1, 1)
    unit, log_prob = squash(mean, log_std, noise)
    base = Independent(Normal(mean, log_std.exp()), 1)
    known = TransformedDistribution(base, [TanhTransform(cache_size=1)])
    torch.testing.assert_close(unit, torch.tanh(mean + log_std.exp() * noise))
    x = mean + log_std.exp() * noise
    jacobian = torch.log(1 - torch.tanh(x) ** 2).sum(-1)
    torch.testing.assert_close(log_prob, base.log_prob(x) - jacobian, rtol=1e-6, atol=1e-6)
    inside = unit.abs().amax(-1) < 0.999  # atanh is exact enough there
    torch.testing.assert_close(log_prob[inside], known.log_prob(unit)[inside], rtol=1e-6, atol=1e-6)


def test_log_prob_integrates_to_one() -> None:
    """Over u in [-1, 1]: the correction is of the right sign and size."""
    u = torch.linspace(-1, 1, 200_001, dtype=torch.double)[1:-1]
    mean, log_std = torch.tensor(0.4).double(), torch.tensor(-0.3).double()
    noise = (torch.atanh(u) - mean) / log_std.exp()
    column = torch.ones(len(u), 1, dtype=torch.double)
    _, log_prob = squash(mean * column, log_std * column, noise[:, None])
    assert float(torch.trapezoid(log_prob.exp(), u)) == pytest.approx(1.0, abs=1e-4)


def test_log_prob_is_finite_where_tanh_is_one() -> None:
    mean = torch.tensor([[30.0], [-30.0]], requires_grad=True)
    _, log_prob = squash(mean, torch.zeros(2, 1), torch.zeros(2, 1))
    log_prob.sum().backward()
    # log(1 - tanh^2) = log 4 - 2 |x| there, so log pi grows by 2 with |x|.
    assert log_prob.detach().tolist() == pytest.approx([60 - 1.386294 - 0.918939] * 2, rel=1e-5)
    assert mean.grad.flatten().tolist() == pytest.approx([2.0, -2.0])


@pytest.mark.parametrize("bound", [3.4028234e38, 1e300, float("inf"), float("nan")])
def test_a_box_wider_than_float32_counts_as_unbounded(bound) -> None:
    for low, high in ((-bound, bound), (0.0, bound), (-bound, 0.0)):
        with pytest.raises(LudusError, match="bounded actions"):
            ActionBox("sac", spec_of([low], [high]), instead="ppo")
    widest = ActionBox("sac", spec_of([-1.7e38], [1.7e38]), instead="ppo")
    assert torch.isfinite(widest.to_env(torch.ones(1, 1))).all()


def test_a_box_is_scaled_by_dimension() -> None:
    box = ActionBox("sac", spec_of([-2.0, 0.0], [2.0, 10.0]), instead="ppo")
    action = box.to_env(torch.tensor([[-1.0, -1.0], [0.0, 0.0], [1.0, 0.5]]))
    assert action.tolist() == [[-2.0, 0.0], [0.0, 5.0], [2.0, 7.5]]
    assert box.to_unit(action).tolist() == [[-1.0, -1.0], [0.0, 0.0], [1.0, 0.5]]


def test_a_box_of_two_axes_keeps_its_shape() -> None:
    box = ActionBox("sac", spec_of([-1.0] * 6, [3.0] * 6, (2, 3)), instead="ppo")
    unit = torch.rand(5, 6) * 2 - 1
    assert box.to_env(unit).shape == (5, 2, 3)
    torch.testing.assert_close(box.to_unit(box.to_env(unit)), unit)


def test_a_dimension_without_extent_is_zero() -> None:
    box = ActionBox("sac", spec_of([1.0], [1.0]), instead="ppo")
    assert box.to_unit(box.to_env(torch.tensor([[0.7]]))).tolist() == [[0.0]]


@pytest.mark.parametrize("action", [Discrete(3), Continuous((1,), (-1.0,), (float("inf"),))])
def test_other_actions_are_refused(action) -> None:
    with pytest.raises(LudusError, match="E204"):
        ActionBox("td3", EnvSpec("Made-v0", ArraySpec((4,)), action), instead="dqn")


def test_deviations_stay_within_bounds() -> None:
    policy = SquashedGaussian(spec_of([-1.0], [1.0]), MLP(hidden=(8,)), 1)
    with torch.no_grad():
        policy.head.bias.copy_(torch.tensor([0.0, 100.0]))
        assert policy(torch.zeros(1, 4))[1].item() == 2.0
        policy.head.bias.copy_(torch.tensor([0.0, -100.0]))
        assert policy(torch.zeros(1, 4))[1].item() == -20.0
