"""Policies: against torch.distributions, masks, sampling frequencies, shapes."""

import pytest
import torch
from torch import distributions

from ludus.nets import PolicyDist, build_policy_head, params_width
from ludus.types import Continuous, Discrete, MultiDiscrete

BOX = Continuous((2, 2), (-1.0,) * 4, (1.0,) * 4)
MULTI = MultiDiscrete((2, 3, 4))


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize(
    ("action", "width", "shape"), [(Discrete(5), 5, ()), (MULTI, 9, (3,)), (BOX, 8, (2, 2))]
)
@pytest.mark.parametrize("lead", [(6,), (3, 2)])
def test_shapes(action, width, shape, lead):
    head = build_policy_head(7, action)
    params = head(torch.randn(*lead, 7))
    assert params.shape == (*lead, width)
    assert head.out == params_width(action) == width
    dist = PolicyDist(params, action)
    for a in (dist.sample(rng()), dist.mode()):
        assert a.shape == (*lead, *shape)
        assert dist.log_prob(a).shape == lead
    assert dist.entropy().shape == lead
    torch.testing.assert_close(dist.kl(dist), torch.zeros(lead))
    dist.log_prob(dist.sample(rng()).detach()).sum().backward()
    assert all(p.grad is not None for p in head.parameters())


def reference(params, action):
    """[(torch distribution, take its part of an action)]"""
    if isinstance(action, Continuous):
        mean, log_std = params.chunk(2, -1)
        normal = distributions.Independent(distributions.Normal(mean, log_std.exp()), 1)
        return [(normal, lambda a: a.flatten(-2))]
    if isinstance(action, Discrete):
        return [(distributions.Categorical(logits=params), lambda a: a)]
    parts = torch.split(params, list(action.nvec), -1)
    return [
        (distributions.Categorical(logits=p), lambda a, i=i: a[..., i]) for i, p in enumerate(parts)
    ]


@pytest.mark.parametrize("action", [Discrete(5), MULTI, BOX])
def test_log_prob_entropy_and_kl_equal_torchs(action):
    p, q = torch.randn(2, 10, params_width(action), generator=rng())
    dist, other = PolicyDist(p, action), PolicyDist(q, action)
    a = other.sample(rng(1))
    ref = reference(p, action)
    torch.testing.assert_close(dist.log_prob(a), sum(d.log_prob(part(a)) for d, part in ref))
    torch.testing.assert_close(dist.entropy(), sum(d.entropy() for d, _ in ref))
    pairs = zip(ref, reference(q, action), strict=True)
    want = sum(distributions.kl_divergence(a, b) for (a, _), (b, _) in pairs)
    torch.testing.assert_close(dist.kl(other), want, rtol=1e-4, atol=1e-5)


def test_gaussian_log_prob_is_summed_and_actions_are_not_clipped():
    params = torch.tensor([[0.0, 0.0, 0.0, 0.0, 3.0, 3.0, 3.0, 3.0]])
    dist = PolicyDist(params, BOX)
    a = dist.sample(rng())
    assert a.abs().max() > 1
    one = distributions.Normal(0.0, torch.tensor(3.0).exp()).log_prob(a).sum()
    assert dist.log_prob(a).item() == pytest.approx(one.item(), rel=1e-5)


def test_categorical_samples_follow_the_probabilities():
    logits = torch.tensor([1.0, 0.0, -1.0, 2.0])
    n = 40_000
    drawn = PolicyDist(logits.expand(n, 4), Discrete(4)).sample(rng())
    counts = torch.bincount(drawn, minlength=4).double()
    expected = n * logits.double().softmax(-1)
    chi_square = ((counts - expected) ** 2 / expected).sum().item()
    assert chi_square < 16.3  # 3 degrees of freedom, p = 0.001


def test_gaussian_samples_have_the_moments():
    params = torch.tensor([1.0, -2.0, 0.0, 0.5, 0.0, -1.0, 0.5, 0.1]).expand(40_000, 8)
    a = PolicyDist(params, BOX).sample(rng()).flatten(1)
    torch.testing.assert_close(a.mean(0), params[0, :4], atol=0.03, rtol=0)
    torch.testing.assert_close(a.std(0), params[0, 4:].exp(), atol=0.03, rtol=0.02)


@pytest.mark.parametrize("action", [Discrete(5), MULTI, BOX])
def test_the_generator_decides(action):
    params = torch.randn(50, params_width(action), generator=rng())
    dist = PolicyDist(params, action)
    before = torch.get_rng_state()
    assert torch.equal(dist.sample(rng(3)), dist.sample(rng(3)))
    assert not torch.equal(dist.sample(rng(3)), dist.sample(rng(4)))
    assert torch.equal(torch.get_rng_state(), before)


def test_masked_choices_are_never_drawn_and_stay_finite():
    params = torch.randn(500, 9, generator=rng()).requires_grad_()
    mask = torch.rand(500, 9, generator=rng(1)) < 0.5
    mask[:, [0, 2, 5]] = True  # one of each part at least
    dist = PolicyDist(params, MULTI, mask)
    offsets = torch.tensor([0, 2, 5])
    for a in (dist.sample(rng(2)), dist.mode()):
        assert mask.gather(1, a + offsets).all()
    other = PolicyDist(params.detach() + 0.1 * torch.randn(500, 9), MULTI, mask)
    total = dist.log_prob(dist.mode()) + dist.entropy() + dist.kl(other)
    assert total.isfinite().all()
    total.sum().backward()
    assert params.grad.isfinite().all()
    assert params.grad[~mask].eq(0).all()


def test_a_mask_renormalises_over_what_is_left():
    params = torch.tensor([[1.0, 2.0, 3.0]])
    dist = PolicyDist(params, Discrete(3), torch.tensor([[True, False, True]]))
    want = distributions.Categorical(logits=torch.tensor([1.0, 3.0]))
    assert dist.entropy().item() == pytest.approx(want.entropy().item(), rel=1e-5)
    got = dist.log_prob(torch.tensor([2])).item()
    assert got == pytest.approx(want.log_prob(torch.tensor(1)).item(), rel=1e-5)


def test_a_row_that_allows_nothing_stays_finite():
    dist = PolicyDist(torch.randn(4, 3), Discrete(3), torch.zeros(4, 3, dtype=torch.bool))
    a = dist.sample(rng())
    assert ((a >= 0) & (a < 3)).all()
    assert dist.log_prob(a).isfinite().all()
    assert dist.entropy().isfinite().all()
