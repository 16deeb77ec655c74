"""The value rescaling and its inverse."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ludus import ops
from tests.truth import policy as truth


@given(st.floats(-1e4, 1e4), st.sampled_from([1e-3, 1e-2, 0.5]))
def test_both_equal_their_definitions(x, eps):
    point = torch.tensor(x, dtype=torch.float64)
    assert ops.signed_hyperbolic(point, eps).item() == pytest.approx(truth.h(x, eps), abs=1e-9)
    inverse = ops.signed_parabolic(point, eps).item()
    assert inverse == pytest.approx(truth.h_inverse(x, eps), rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("eps", [0.0, 1e-6, 1e-3, 1e-2])
def test_the_round_trip_keeps_float32_digits(eps):
    """Relative to 1e-5 over twelve orders of magnitude, small eps and small x included."""
    size = torch.logspace(-6, 6, 200)
    x = torch.cat([-size, torch.zeros(1), size])
    there = ops.signed_hyperbolic(x, eps)
    torch.testing.assert_close(ops.signed_parabolic(there, eps), x, rtol=1e-5, atol=0)
    assert (there.sort().values == there.sort().values.unique()).all()
    y = torch.linspace(-50, 50, 101)
    torch.testing.assert_close(
        ops.signed_hyperbolic(ops.signed_parabolic(y, eps), eps), y, rtol=1e-5, atol=1e-6
    )


def test_gradients_are_finite_at_zero():
    x = torch.zeros(1, requires_grad=True)
    pair = ops.SIGNED_HYPERBOLIC
    pair.apply(x).sum().backward()
    assert x.grad.item() == pytest.approx(0.5 + 1e-3)
