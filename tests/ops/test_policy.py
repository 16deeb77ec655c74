"""Categorical policies, PPO's surrogate and the Munchausen terms."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ludus import ops
from tests.truth import policy as truth

PROPERTY = settings(max_examples=50)


def double(values):
    return torch.tensor(values, dtype=torch.float64)


@st.composite
def tables(draw):
    """Two tables of numbers [B, A], an action per row."""
    size, actions = draw(st.integers(1, 5)), draw(st.integers(1, 5))
    rng = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    one, two = (3 * torch.randn(size, actions, generator=rng).double() for _ in range(2))
    return one, two, torch.randint(actions, (size,), generator=rng)


def check(got, equation, *columns):
    expected = [equation(*row) for row in zip(*(c.tolist() for c in columns), strict=True)]
    torch.testing.assert_close(got, double(expected))


@PROPERTY
@given(tables())
def test_entropy_kl_and_log_prob_equal_the_truth(table):
    p, q, action = table
    check(ops.entropy(p), truth.entropy, p)
    check(ops.kl(p, q), truth.kl, p, q)
    check(ops.log_prob(p, action), lambda x, a: math.log(truth.softmax(x)[a]), p, action)
    torch.testing.assert_close(ops.kl(p, p), torch.zeros(len(p), dtype=torch.float64))


def test_forbidden_actions_count_for_nothing_and_get_no_gradient():
    allowed = double([[0.3, -1.0]])
    logits = double([[0.3, -math.inf, -1.0]]).requires_grad_()
    other = double([[1.0, -math.inf, 0.0]])
    torch.testing.assert_close(ops.entropy(logits), ops.entropy(allowed))
    torch.testing.assert_close(ops.kl(logits, other), ops.kl(allowed, other[:, [0, 2]]))
    (ops.entropy(logits) + ops.kl(logits, other) + ops.kl(other, logits)).sum().backward()
    assert logits.grad.isfinite().all() and logits.grad[0, 1] == 0
    assert logits.grad[0, 0] != 0
    assert ops.kl(double([[0.0, 0.0]]), double([[0.0, -math.inf]])).item() == math.inf


@PROPERTY
@given(
    st.floats(0.01, 5),
    st.floats(-3, 3),
    st.sampled_from([0.1, 0.2]),
)
def test_clipped_surrogate_equals_the_truth(ratio, advantage, clip):
    got = ops.clipped_surrogate(double([ratio]), double([advantage]), clip)
    torch.testing.assert_close(got, double([truth.clipped_surrogate(ratio, advantage, clip)]))
    scheduled = ops.clipped_surrogate(double([ratio]), double([advantage]), double(clip))
    torch.testing.assert_close(scheduled, got)


@pytest.mark.parametrize(
    ("ratio", "advantage", "slope"),
    [(1.0, 2.0, -2.0), (1.5, 2.0, 0.0), (0.5, 2.0, -2.0), (1.5, -2.0, 2.0), (0.5, -2.0, 0.0)],
)
def test_the_surrogate_stops_pushing_outside_the_clip(ratio, advantage, slope):
    r = double([ratio]).requires_grad_()
    ops.clipped_surrogate(r, double([advantage]), 0.2).sum().backward()
    assert r.grad.item() == pytest.approx(slope)


@PROPERTY
@given(tables(), st.sampled_from([0.03, 0.5, 1.0]), st.sampled_from([-1.0, -0.1]))
def test_munchausen_equals_the_truth(table, tau, low):
    q, _, action = table
    q = q * 0.1  # the truth has no shift by the maximum: it would overflow
    got = ops.munchausen_bonus(q, action, tau, low)
    log_pi = ops.log_policy(q, tau)
    expected = [
        [math.log(p) if p > 0 else -math.inf for p in truth.softmax([x / tau for x in row])]
        for row in q.tolist()
    ]
    torch.testing.assert_close(log_pi, double(expected))
    check(got, lambda x, a: truth.munchausen(x, a, tau, low), q, action)
    check(ops.soft_value(q, tau), lambda x: truth.soft_value(x, tau), q)
    torch.testing.assert_close(ops.soft_value(q, tau), tau * torch.logsumexp(q / tau, -1))
    torch.testing.assert_close((log_pi.exp() * (q - tau * log_pi)).sum(-1), ops.soft_value(q, tau))


def test_munchausen_clips_the_scaled_log_and_stays_finite():
    q, action = torch.tensor([[1000.0, 0.0], [0.01, 0.0]]), torch.tensor([1, 1])
    bonus = ops.munchausen_bonus(q, action, 0.03, -1.0)
    assert bonus[0].item() == -1.0
    assert bonus[1].item() == pytest.approx(
        0.03 * math.log(1 / (1 + math.exp(0.01 / 0.03))), rel=1e-4
    )
    assert ops.log_policy(q, 0.03).isfinite().all()
    torch.testing.assert_close(ops.soft_value(q, 1e-6), q.amax(-1))
    assert not ops.munchausen_bonus(q.requires_grad_(), action, 0.03, -1.0).requires_grad


def test_a_forbidden_action_leaves_the_soft_policy_of_the_others():
    q = torch.tensor([[1.0, -math.inf, 0.5]])
    torch.testing.assert_close(ops.soft_value(q, 0.1), ops.soft_value(q[:, [0, 2]], 0.1))
    torch.testing.assert_close(ops.log_policy(q, 0.1)[:, [0, 2]], ops.log_policy(q[:, [0, 2]], 0.1))


def test_wrong_shapes_are_refused():
    a, b = torch.zeros(3, 2), torch.zeros(3)
    with pytest.raises(ValueError, match="advantage"):
        ops.clipped_surrogate(a, b, 0.2)
    with pytest.raises(ValueError, match="logits_q"):
        ops.kl(a, a[:, :1])
    with pytest.raises(ValueError, match="per_action"):
        ops.log_prob(a, torch.zeros(2, dtype=torch.int64))
