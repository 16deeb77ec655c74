"""n-step returns, λ-returns and GAE against the slow truth, and at episode ends."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ludus import ops
from tests.ops.streams import GO, TERMINATE, TRUNCATE, assert_rows, build, column_lists, streams
from tests.truth import returns as truth
from tests.truth.episodes import by_piece

PROPERTY = settings(max_examples=60)
LAMBDAS = st.sampled_from([0.0, 0.3, 0.95, 1.0])


def truths(stream, equation, *options):
    """The equation applied to every piece of every column."""
    result = []
    for b in range(stream.reward.shape[1]):
        last, mask, r, g, v = (
            column_lists(x, b)
            for x in (stream.last, stream.mask, stream.reward, stream.discount, stream.value)
        )
        result.append(by_piece(lambda *x: equation(*x, *options), last, mask, (r, g), (v,)))
    return result


@PROPERTY
@given(streams(), st.integers(1, 14))
def test_n_step_returns_equal_the_truth(s, n):
    got = ops.n_step_returns(s.reward, s.discount, s.value[1:], n, s.last)
    assert_rows(got, truths(s, truth.n_step, n))


@PROPERTY
@given(streams(), LAMBDAS)
def test_lambda_returns_equal_the_truth(s, lam):
    got = ops.lambda_returns(s.reward, s.discount, s.value[1:], lam, s.last)
    assert_rows(got, truths(s, truth.lambda_return, lam))


@PROPERTY
@given(streams(), LAMBDAS)
def test_gae_equals_the_truth(s, lam):
    got = ops.gae(s.reward, s.discount, s.value, lam, s.last)
    assert_rows(got, truths(s, truth.gae, lam))


@PROPERTY
@given(streams(), LAMBDAS)
def test_lambda_may_be_a_tensor(s, lam):
    full = torch.full_like(s.reward, lam)
    for one, other in (
        (
            ops.gae(s.reward, s.discount, s.value, full, s.last),
            ops.gae(s.reward, s.discount, s.value, lam, s.last),
        ),
        (
            ops.lambda_returns(s.reward, s.discount, s.value[1:], full, s.last),
            ops.lambda_returns(s.reward, s.discount, s.value[1:], full[0, 0], s.last),
        ),
    ):
        assert torch.equal(one[s.mask], other[s.mask])


def estimators(s):
    """Every estimator of this file on one unroll, by name."""
    yield "n-step", ops.n_step_returns(s.reward, s.discount, s.value[1:], 3, s.last)
    yield "lambda", ops.lambda_returns(s.reward, s.discount, s.value[1:], 0.9, s.last)
    yield "gae", ops.gae(s.reward, s.discount, s.value, 0.9, s.last)


@PROPERTY
@given(
    st.integers(1, 7), st.integers(1, 7), st.sampled_from([TERMINATE, TRUNCATE]), st.integers(0, 99)
)
def test_an_episode_end_in_the_middle_equals_two_unrolls(before, after, end, seed):
    events = [[GO] * (before - 1) + [end] + [GO] * (after + 1)] * 2
    s = build(events, starts_with_dummy=False, seed=seed)
    head, tail = s.rows(0, before), s.rows(before + 1, before + 1 + after)
    for (name, whole), (_, one), (_, two) in zip(
        estimators(s), estimators(head), estimators(tail), strict=True
    ):
        torch.testing.assert_close(whole[:before], one, rtol=0, atol=1e-12, msg=name)
        torch.testing.assert_close(whole[before + 1 :], two, rtol=0, atol=1e-12, msg=name)


def test_two_step_episodes_with_n_three():
    """The return at an episode's last row is its own reward only."""
    s = build([[GO, TERMINATE, GO, GO, TERMINATE]], starts_with_dummy=False, seed=0, poison=7.0)
    got = ops.n_step_returns(s.reward, s.discount, s.value[1:], 3, s.last)
    assert got[1, 0] == s.reward[1, 0]
    assert got[0, 0] == s.reward[0, 0] + 0.9 * s.reward[1, 0]


@pytest.mark.parametrize(("end", "first"), [(TRUNCATE, 10.0), (TERMINATE, 6.5132155990)])
def test_the_ten_step_probe(end, first):
    """Reward 1, gamma 0.9, ten steps: 10 is the fixed point when truncated, 6.513 when terminal."""
    s = build([[GO] * 9 + [end, GO, GO]], starts_with_dummy=False, seed=0)
    reward = torch.where(s.mask, 1.0, torch.nan).double()
    value = torch.full_like(s.value, 10.0)
    got = ops.lambda_returns(reward, s.discount, value[1:], 0.95, s.last)
    full = ops.n_step_returns(reward, s.discount, value[1:], 12, s.last)
    assert full[0, 0].item() == pytest.approx(first)
    assert full[9, 0].item() == pytest.approx(10.0 if end == TRUNCATE else 1.0)
    assert got[9, 0].item() == pytest.approx(full[9, 0].item())
    if end == TRUNCATE:
        advantage = ops.gae(reward, s.discount, value, 0.95, s.last)
        torch.testing.assert_close(advantage[:10], torch.zeros_like(advantage[:10]))


def test_lambda_zero_and_one_are_the_known_cases():
    s = build([[GO] * 8], starts_with_dummy=False, seed=3)
    args = (s.reward, s.discount, s.value[1:])
    torch.testing.assert_close(ops.lambda_returns(*args, 0.0), ops.n_step_returns(*args, 1))
    torch.testing.assert_close(ops.lambda_returns(*args, 1.0), ops.n_step_returns(*args, 8))
    advantage = ops.gae(s.reward, s.discount, s.value, 0.7)
    torch.testing.assert_close(advantage + s.value[:-1], ops.lambda_returns(*args, 0.7))


@PROPERTY
@given(st.integers(1, 70), st.integers(0, 99))
def test_backward_sum_is_the_recursion(length, seed):
    rng = torch.Generator().manual_seed(seed)
    x = torch.randn(length, 2, generator=rng, dtype=torch.float64)
    coef = torch.rand(length, 2, generator=rng, dtype=torch.float64)
    coef[torch.rand(length, 2, generator=rng) < 0.2] = 0.0
    y, expected = torch.zeros(2, dtype=torch.float64), []
    for t in reversed(range(length)):
        y = x[t] + coef[t] * y
        expected.insert(0, y)
    kept = (x.clone(), coef.clone())
    torch.testing.assert_close(ops.backward_sum(x, coef), torch.stack(expected))
    assert torch.equal(x, kept[0]) and torch.equal(coef, kept[1])


def test_nan_passes_only_where_the_trace_goes_on():
    x = torch.tensor([1.0, 1.0, math.nan, 1.0])
    assert ops.backward_sum(x, torch.tensor([0.5, 0.0, 0.5, 0.5]))[:2].tolist() == [1.5, 1.0]
    assert ops.backward_sum(x, torch.full((4,), 0.5))[:3].isnan().all()


def test_a_masked_row_ends_the_row_before_it():
    last = torch.tensor([[False], [True], [False], [False], [False]])
    mask = torch.tensor([[True], [True], [False], [True], [False]])
    assert ops.trace_ends(last, mask)[:, 0].tolist() == [False, True, False, True, False]


def test_targets_carry_no_gradient_and_change_nothing():
    s = build([[GO, TRUNCATE, GO, GO]], starts_with_dummy=False, seed=1)
    copies = [x.clone() for x in s]
    value = s.value.clone().requires_grad_()
    assert not any(x.requires_grad for _, x in estimators(s._replace(value=value)))
    for x, copy in zip(s, copies, strict=True):
        torch.testing.assert_close(x, copy, equal_nan=True, rtol=0, atol=0)


def test_wrong_shapes_are_refused_by_name():
    r = torch.zeros(4, 2)
    with pytest.raises(ValueError, match=r"discount \[2\] must have the shape of reward \[4, 2\]"):
        ops.n_step_returns(r, torch.zeros(2), r, 2)
    with pytest.raises(ValueError, match=r"value \[4, 2\] must be \[T\+1, B\] = \[5, 2\]"):
        ops.gae(r, r, r, 0.9)
    with pytest.raises(ValueError, match="last"):
        ops.lambda_returns(r, r, r, 0.9, torch.zeros(4, dtype=torch.bool))
    with pytest.raises(ValueError, match="n must be at least 1"):
        ops.n_step_returns(r, r, r, 0)
    with pytest.raises(ValueError, match="coef"):
        ops.backward_sum(r, torch.zeros(4, 1))
    with pytest.raises(ValueError, match="mask"):
        ops.trace_ends(torch.zeros(4, 2, dtype=torch.bool), torch.ones(4, dtype=torch.bool))
