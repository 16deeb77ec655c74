"""One-step targets and the Huber loss."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ludus import ops
from tests.truth import td as truth

PROPERTY = settings(max_examples=50)


@st.composite
def items(draw):
    """reward [B], discount [B] (0 at terminations), two nets' values [B, A], policy, action."""
    size, actions = draw(st.integers(1, 6)), draw(st.integers(1, 5))
    rng = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))

    def normal(*shape):
        return torch.randn(*shape, generator=rng, dtype=torch.float64)

    discount = torch.where(torch.rand(size, generator=rng) < 0.3, 0.0, 0.97).double()
    q, other = normal(size, actions), normal(size, actions)
    action = torch.randint(actions, (size,), generator=rng)
    return normal(size), discount, q, other, normal(size, actions).softmax(-1), action


def check(got, equation, *columns):
    expected = [equation(*row) for row in zip(*(c.tolist() for c in columns), strict=True)]
    torch.testing.assert_close(got, torch.tensor(expected, dtype=torch.float64))


@PROPERTY
@given(items())
def test_targets_equal_the_truth(item):
    r, g, q, _, policy, action = item
    check(ops.q_target(r, g, q), truth.q_learning, r, g, q)
    check(ops.sarsa_target(r, g, q, action), truth.sarsa, r, g, q, action)
    check(ops.expected_sarsa_target(r, g, q, policy), truth.expected_sarsa, r, g, q, policy)
    assert not ops.q_target(r, g, q.requires_grad_()).requires_grad


@pytest.mark.accept(2)
@PROPERTY
@given(items())
def test_double_q_equals_the_truth(item):
    r, g, target, online, _, _ = item
    check(ops.double_q_target(r, g, target, online), truth.double_q, r, g, target, online)


@pytest.mark.accept(2)
def test_the_online_net_chooses_and_the_target_net_rates():
    target, online = torch.tensor([[5.0, 1.0]]), torch.tensor([[0.0, 9.0]])
    r, g = torch.tensor([1.0]), torch.tensor([0.5])
    assert ops.double_q_target(r, g, target, online).item() == 1.5
    assert ops.q_target(r, g, target).item() == 3.5
    torch.testing.assert_close(
        ops.double_q_target(r, g, target, target), ops.q_target(r, g, target)
    )


def test_forbidden_actions_are_minus_infinity():
    q, policy = torch.tensor([[1.0, -torch.inf]]), torch.tensor([[1.0, 0.0]])
    r, g = torch.tensor([1.0]), torch.tensor([0.5])
    assert ops.expected_sarsa_target(r, g, q, policy).item() == 1.5
    assert ops.q_target(r, g, q).item() == 1.5
    assert ops.double_q_target(r, g, torch.tensor([[1.0, 7.0]]), q).item() == 1.5


@pytest.mark.accept(103)
@PROPERTY
@given(st.lists(st.floats(-20, 20), min_size=1, max_size=8), st.sampled_from([0.5, 1.0, 3.0]))
def test_huber_equals_the_truth_and_its_gradient_is_the_clipped_error(errors, delta):
    x = torch.tensor(errors, dtype=torch.float64, requires_grad=True)
    loss = ops.huber(x, delta)
    assert loss.shape == x.shape  # nothing is reduced
    expected = [truth.huber(e, delta) for e in errors]
    torch.testing.assert_close(loss, torch.tensor(expected, dtype=torch.float64))
    loss.sum().backward()
    torch.testing.assert_close(x.grad, x.detach().clamp(-delta, delta))


def test_wrong_shapes_are_refused():
    r, q = torch.zeros(3), torch.zeros(3, 2)
    with pytest.raises(ValueError, match="next_q"):
        ops.q_target(r, r, torch.zeros(2, 3))
    with pytest.raises(ValueError, match="discount"):
        ops.q_target(r, torch.zeros(1), q)
    with pytest.raises(ValueError, match="next_action"):
        ops.sarsa_target(r, r, q, torch.zeros(2, dtype=torch.int64))
    with pytest.raises(ValueError, match="policy"):
        ops.expected_sarsa_target(r, r, q, torch.zeros(3, 3))
    with pytest.raises(ValueError, match="next_q_online"):
        ops.double_q_target(r, r, q, torch.zeros(3, 3))
    with pytest.raises(ValueError, match="per_action"):
        ops.taken(q, torch.zeros(2, dtype=torch.int64))
