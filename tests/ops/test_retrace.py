"""Retrace, Q(λ) and the rescaled targets against the slow truth."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ludus import ops
from tests.ops.streams import (
    ACTIONS,
    GO,
    TERMINATE,
    TRUNCATE,
    assert_rows,
    build,
    column_lists,
    streams,
)
from tests.truth import offpolicy, policy, returns
from tests.truth.episodes import by_piece

PROPERTY = settings(max_examples=60)
LAMBDAS = st.sampled_from([0.0, 0.5, 0.95, 1.0])
EPS = 1e-3


def data(s, q=None):
    return ops.OffPolicy(s.q if q is None else q, s.pi, s.action, s.mu)


def columns(s, equation, rows, states):
    """`equation` on each piece of each column."""
    result = []
    for b in range(s.reward.shape[1]):
        last, mask = column_lists(s.last, b), column_lists(s.mask, b)
        result.append(
            by_piece(
                equation,
                last,
                mask,
                [column_lists(x, b) for x in rows],
                [column_lists(x, b) for x in states],
            )
        )
    return result


@PROPERTY
@given(streams(), LAMBDAS)
def test_retrace_equals_the_truth(s, lam):
    got = ops.retrace(data(s), s.reward, s.discount, s.last, lambda_=lam)
    rows, states = (s.reward, s.discount, s.action, s.mu), (s.q, s.pi)
    assert_rows(got, columns(s, lambda *x: offpolicy.retrace(*x, lam), rows, states))


@PROPERTY
@given(streams(), LAMBDAS)
def test_transformed_retrace_equals_the_truth(s, lam):
    def equation(r, g, action, mu, q, pi):
        real = [[policy.h_inverse(x, EPS) for x in at] for at in q]
        return [policy.h(x, EPS) for x in offpolicy.retrace(r, g, action, mu, real, pi, lam)]

    got = ops.transformed_retrace(data(s), s.reward, s.discount, s.last, lambda_=lam)
    rows, states = (s.reward, s.discount, s.action, s.mu), (s.q, s.pi)
    assert_rows(got, columns(s, equation, rows, states))


@PROPERTY
@given(streams(), LAMBDAS)
def test_q_lambda_equals_the_truth(s, lam):
    def equation(r, g, q):
        return returns.lambda_return(r, g, [max(at) for at in q], lam)

    got = ops.q_lambda(s.reward, s.discount, s.q[1:], lam, s.last)
    assert_rows(got, columns(s, equation, (s.reward, s.discount), (s.q,)))


@PROPERTY
@given(streams(), st.integers(1, 6))
def test_transformed_n_step_q_equals_the_truth(s, n):
    """Bootstrap actions are the argmax of another net (here: pi), as in double Q-learning."""

    def equation(r, g, q, pi):
        value = [policy.h_inverse(at[p.index(max(p))], EPS) for at, p in zip(q, pi, strict=True)]
        return [policy.h(x, EPS) for x in returns.n_step(r, g, value, n)]

    chosen = s.pi[1:].argmax(-1)
    got = ops.transformed_n_step_q(s.reward, s.discount, s.q[1:], chosen, n, s.last)
    assert_rows(got, columns(s, equation, (s.reward, s.discount), (s.q, s.pi)))


def estimators(s):
    yield ops.retrace(data(s), s.reward, s.discount, s.last, lambda_=0.9)
    yield ops.transformed_retrace(data(s), s.reward, s.discount, s.last, lambda_=0.9)
    yield ops.q_lambda(s.reward, s.discount, s.q[1:], 0.9, s.last)
    chosen = s.q[1:].argmax(-1)
    yield ops.transformed_n_step_q(s.reward, s.discount, s.q[1:], chosen, 3, s.last)


@PROPERTY
@given(
    st.integers(1, 7), st.integers(1, 7), st.sampled_from([TERMINATE, TRUNCATE]), st.integers(0, 99)
)
def test_an_episode_end_in_the_middle_equals_two_unrolls(before, after, end, seed):
    events = [[GO] * (before - 1) + [end] + [GO] * (after + 1)] * 2
    s = build(events, starts_with_dummy=False, seed=seed)
    head, tail = s.rows(0, before), s.rows(before + 1, before + 1 + after)
    triples = zip(estimators(s), estimators(head), estimators(tail), strict=True)
    for whole, one, two in triples:
        torch.testing.assert_close(whole[:before], one, rtol=0, atol=1e-12)
        torch.testing.assert_close(whole[before + 1 :], two, rtol=0, atol=1e-12)


def test_lambda_zero_is_one_step():
    s = build([[GO] * 6] * 2, starts_with_dummy=False, seed=2)
    torch.testing.assert_close(
        ops.retrace(data(s), s.reward, s.discount, lambda_=0.0),
        ops.expected_sarsa_target(s.reward, s.discount, s.q[1:], s.pi[1:]),
    )
    torch.testing.assert_close(
        ops.q_lambda(s.reward, s.discount, s.q[1:], 0.0),
        ops.q_target(s.reward, s.discount, s.q[1:]),
    )


def test_actions_the_policy_never_takes_may_be_minus_infinity():
    s = build([[GO, GO, TRUNCATE, GO, GO]], starts_with_dummy=False, seed=2)
    s = s._replace(action=torch.zeros_like(s.action), mu=s.mu.where(s.mask, 0.0))
    pi, q = s.pi.clone(), s.q.clone()
    pi[..., ACTIONS - 1], q[..., ACTIONS - 1] = 0.0, -torch.inf
    got = ops.retrace(data(s._replace(pi=pi), q), s.reward, s.discount, s.last)
    zeros = q.masked_fill(q.isinf(), 0.0)
    same = ops.retrace(data(s._replace(pi=pi), zeros), s.reward, s.discount, s.last)
    assert got[s.mask].isfinite().all()
    torch.testing.assert_close(got[s.mask], same[s.mask])


def test_the_result_is_constant_and_inputs_are_left_alone():
    s = build([[GO, TRUNCATE, GO, GO]], starts_with_dummy=False, seed=1)
    copies = [x.clone() for x in s]
    for got in estimators(s._replace(q=s.q.clone().requires_grad_())):
        assert not got.requires_grad
    for x, copy in zip(s, copies, strict=True):
        torch.testing.assert_close(x, copy, equal_nan=True, rtol=0, atol=0)


def test_wrong_shapes_are_refused():
    s = build([[GO] * 4] * 2, starts_with_dummy=False, seed=2)
    with pytest.raises(ValueError, match="q"):
        ops.retrace(data(s, s.q[:-1]), s.reward, s.discount)
    with pytest.raises(ValueError, match=r"q \[4, 2\]"):
        ops.retrace(data(s._replace(pi=s.pi[:-1]), s.q[:-1]), s.reward, s.discount)
    with pytest.raises(ValueError, match="mu"):
        ops.retrace(data(s)._replace(mu=s.mu[1:]), s.reward, s.discount)
    with pytest.raises(ValueError, match="next_q"):
        ops.q_lambda(s.reward, s.discount, s.q, 0.9)
    with pytest.raises(ValueError, match="next_action"):
        ops.transformed_n_step_q(s.reward, s.discount, s.q[1:], s.action[1:], 2)
