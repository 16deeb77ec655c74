"""Categorical projection and quantile regression."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ludus import ops
from ludus.ops.distributional import _hat, _scatter
from tests.truth import distributional as truth

PROPERTY = settings(max_examples=40)


def double(values):
    return torch.tensor(values, dtype=torch.float64)


@st.composite
def distributions(draw):
    """support [K], reward [B], discount [B], probs [B, K]; some rewards far outside."""
    atoms, size = draw(st.integers(2, 21)), draw(st.integers(1, 5))
    low = draw(st.sampled_from([-10.0, 0.0, -1.0]))
    rng = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    high = draw(st.sampled_from([1.0, 10.0, 100.0]))
    support = torch.linspace(low, high, atoms, dtype=torch.float64)
    reward = 5 * torch.randn(size, generator=rng, dtype=torch.float64)
    discount = double([draw(st.sampled_from([0.0, 0.5, 0.99, 1.0])) for _ in range(size)])
    return support, reward, discount, torch.randn(size, atoms, generator=rng).double().softmax(-1)


@pytest.mark.accept(4)
@PROPERTY
@given(distributions())
def test_projection_equals_the_truth_and_keeps_the_mass(item):
    support, reward, discount, probs = item
    got = ops.categorical_project(*item)
    rows = zip(reward.tolist(), discount.tolist(), probs.tolist(), strict=True)
    expected = [truth.project(support.tolist(), r, g, p) for r, g, p in rows]
    torch.testing.assert_close(got, double(expected))
    torch.testing.assert_close(got.sum(-1), torch.ones_like(reward))


@pytest.mark.accept(4)
@pytest.mark.parametrize(("atoms", "low", "high"), [(51, -10.0, 10.0), (11, 0.0, 10.0), (3, -1, 1)])
@pytest.mark.parametrize("shift", [-2, 0, 1])
def test_integer_places_keep_all_mass_on_one_atom(atoms, low, high, shift):
    """A reward of exactly `shift` atom spacings moves the distribution by `shift` atoms."""
    support = torch.linspace(low, high, atoms)
    probs = torch.rand(1, atoms, generator=torch.Generator().manual_seed(0)).softmax(-1)
    spacing = (high - low) / (atoms - 1)
    got = ops.categorical_project(support, torch.tensor([shift * spacing]), torch.ones(1), probs)
    expected = torch.zeros(atoms)
    for j in range(atoms):
        expected[min(max(j + shift, 0), atoms - 1)] += probs[0, j]
    torch.testing.assert_close(got[0], expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(got.sum(), torch.tensor(1.0))


@PROPERTY
@given(distributions())
def test_mean_is_kept_when_nothing_is_clipped(item):
    support, _, discount, probs = item
    inside = (1 - discount) * (support[0] + support[-1]) / 2
    got = ops.categorical_project(support, inside, discount, probs)
    torch.testing.assert_close(
        (got * support).sum(-1), inside + discount * (probs * support).sum(-1)
    )


@PROPERTY
@given(distributions())
def test_both_ways_of_sharing_mass_agree(item):
    support, reward, discount, probs = item
    place = (reward[:, None] + discount[:, None] * support).clamp(0, len(support) - 1)
    torch.testing.assert_close(_scatter(place, probs), _hat(place, probs))


@PROPERTY
@given(distributions())
def test_cross_entropy_equals_the_truth(item):
    _, _, _, probs = item
    logits = probs.flip(-1) * 3
    expected = [
        truth.cross_entropy(x, p) for x, p in zip(logits.tolist(), probs.tolist(), strict=True)
    ]
    torch.testing.assert_close(ops.categorical_cross_entropy(logits, probs), double(expected))
    same = ops.categorical_cross_entropy(probs.log(), probs)
    torch.testing.assert_close(same, -(probs * probs.log()).sum(-1))


@pytest.mark.accept(6)
@PROPERTY
@given(
    st.integers(1, 6),
    st.integers(1, 6),
    st.sampled_from([0.0, 0.5, 1.0, 2.0]),
    st.integers(0, 2**31),
)
def test_quantile_huber_equals_the_truth(predictions, targets, kappa, seed):
    rng = torch.Generator().manual_seed(seed)
    theta = torch.randn(3, predictions, generator=rng).double()
    taus = torch.rand(3, predictions, generator=rng).double()
    target = 2 * torch.randn(3, targets, generator=rng).double()
    rows = zip(theta.tolist(), taus.tolist(), target.tolist(), strict=True)
    expected = [truth.quantile_huber(*row, kappa) for row in rows]
    torch.testing.assert_close(ops.quantile_huber(theta, taus, target, kappa), double(expected))


@pytest.mark.accept(6)
@pytest.mark.parametrize("count", [1, 5])
def test_regression_finds_the_quantiles_of_a_sample(count):
    """Minimising the pinball loss on samples 0..99 gives their quantiles at (2i-1)/2N."""
    samples = torch.arange(100.0).double()[None]
    taus = ((2 * torch.arange(count) + 1) / (2 * count)).double()[None]
    theta = torch.full((1, count), 50.0, dtype=torch.float64, requires_grad=True)
    for step in range(400):
        loss = ops.quantile_huber(theta, taus, samples, kappa=0.0)
        (grad,) = torch.autograd.grad(loss.sum(), theta)
        with torch.no_grad():
            theta -= 300 / (10 + step) * grad
    expected = torch.quantile(samples[0], taus[0])
    torch.testing.assert_close(theta.detach()[0], expected, rtol=0, atol=1.5)


def test_wrong_shapes_are_refused():
    z, r, p = torch.linspace(0, 1, 5), torch.zeros(2), torch.full((2, 5), 0.2)
    with pytest.raises(ValueError, match="probs"):
        ops.categorical_project(z, r, r, p[:1])
    with pytest.raises(ValueError, match="probs"):
        ops.categorical_project(z[:4], r, r, p)
    with pytest.raises(ValueError, match="target_probs"):
        ops.categorical_cross_entropy(p, p[:, :4])
    with pytest.raises(ValueError, match="taus"):
        ops.quantile_huber(p, p[0], p)
    with pytest.raises(ValueError, match="target"):
        ops.quantile_huber(p, p, p[:1])
