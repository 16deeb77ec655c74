"""V-trace against the slow truth; its three clips; episode ends in the middle."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ludus import ops
from tests.ops.streams import (
    GO,
    SOFT,
    TERMINATE,
    TRUNCATE,
    assert_rows,
    build,
    column_lists,
    streams,
)
from tests.truth import offpolicy as truth
from tests.truth.episodes import by_piece

PROPERTY = settings(max_examples=80)
CLIPS = st.sampled_from([0.5, 1.0, 2.0, math.inf])


def run(s, **options):
    return ops.vtrace(s.value, s.reward, s.discount, s.rho, s.last, **options)


@pytest.mark.accept(34)
@PROPERTY
@given(streams(), st.sampled_from([0.0, 0.9, 1.0]), CLIPS, CLIPS, CLIPS)
def test_vtrace_equals_the_truth(s, lam, rho_clip, c_clip, pg_clip):
    got = run(s, lambda_=lam, rho_clip=rho_clip, c_clip=c_clip, pg_rho_clip=pg_clip)
    vs, advantages = [], []
    for b in range(s.reward.shape[1]):
        last, mask, r, g, rho, v = (
            column_lists(x, b) for x in (s.last, s.mask, s.reward, s.discount, s.rho, s.value)
        )
        clips = (lam, rho_clip, c_clip)
        rows = (r, g, rho)
        vs.append(by_piece(lambda *x: truth.vtrace_values(*x, *clips), last, mask, rows, (v,)))  # noqa: B023
        advantages.append(
            by_piece(
                lambda *x: truth.vtrace_advantages(*x, *clips, pg_clip),  # noqa: B023
                last,
                mask,
                rows,
                (v,),
            )
        )
    assert_rows(got.vs, vs)
    assert_rows(got.advantage, advantages)


@PROPERTY
@given(
    st.integers(1, 7),
    st.integers(1, 7),
    st.sampled_from([TERMINATE, TRUNCATE]),
    st.sampled_from([0.9, 1.0]),
    st.integers(0, 99),
)
def test_an_episode_end_in_the_middle_equals_two_unrolls(before, after, end, lam, seed):
    """In vs and in advantage: the dummy row's vs must not reach the policy gradient."""
    events = [[GO] * (before - 1) + [end] + [GO] * (after + 1)] * 2
    s = build(events, starts_with_dummy=False, seed=seed)
    whole = run(s, lambda_=lam)
    parts = (slice(0, before), slice(before + 1, before + 1 + after))
    for part in parts:
        alone = run(s.rows(part.start, part.stop), lambda_=lam)
        torch.testing.assert_close(whole.vs[part], alone.vs, rtol=0, atol=1e-12)
        torch.testing.assert_close(whole.advantage[part], alone.advantage, rtol=0, atol=1e-12)


def test_without_last_the_dummy_row_would_leak_into_the_advantage():
    """The reason for `last`: a truncation has discount 1, so only `last` can tell."""
    events = [[GO, TRUNCATE, GO, GO, GO]]
    s = build(events, starts_with_dummy=False, seed=0, poison=3.0)
    cut, leaky = run(s), run(s._replace(last=torch.zeros_like(s.last)))
    assert not torch.isclose(cut.advantage[1, 0], leaky.advantage[1, 0])
    assert not torch.isclose(cut.vs[0, 0], leaky.vs[0, 0])


@pytest.mark.accept(34)
@PROPERTY
@given(st.integers(1, 12), st.integers(0, 99))
def test_on_policy_it_is_the_n_step_return(length, seed):
    events = [[GO, SOFT, GO, TRUNCATE, GO, GO, TERMINATE, GO, GO, GO, GO, GO][:length]]
    s = build(events, starts_with_dummy=False, seed=seed)
    s = s._replace(rho=torch.ones_like(s.rho))
    n_step = ops.n_step_returns(s.reward, s.discount, s.value[1:], length, s.last)
    got = run(s)
    torch.testing.assert_close(got.vs[s.mask], n_step[s.mask])
    torch.testing.assert_close(got.advantage[s.mask], (n_step - s.value[:-1])[s.mask])


@pytest.mark.accept(34)
def test_each_clip_has_its_own_effect():
    s = build([[GO] * 5], starts_with_dummy=False, seed=4)
    s = s._replace(rho=torch.full_like(s.rho, 3.0))
    plain = run(s)
    policy, trace, value = run(s, pg_rho_clip=2.0), run(s, c_clip=2.0), run(s, rho_clip=2.0)
    # Only the advantage's own ratio, and exactly in proportion.
    assert torch.equal(policy.vs, plain.vs)
    torch.testing.assert_close(policy.advantage, 2 * plain.advantage)
    # c reaches earlier rows only: the last row has no trace.
    assert torch.equal(trace.vs[-1], plain.vs[-1]) and not torch.equal(trace.vs[:-1], plain.vs[:-1])
    # rho scales the TD error; at the last row that is all there is.
    torch.testing.assert_close(value.vs[-1] - s.value[-2], 2 * (plain.vs[-1] - s.value[-2]))
    assert torch.equal(value.advantage[-1], plain.advantage[-1])


def test_the_result_is_constant():
    s = build([[GO, TRUNCATE, GO]], starts_with_dummy=False, seed=1)
    got = run(s._replace(value=s.value.clone().requires_grad_(), rho=s.rho.requires_grad_()))
    assert not got.vs.requires_grad and not got.advantage.requires_grad


def test_wrong_shapes_are_refused():
    r = torch.zeros(4, 2)
    with pytest.raises(ValueError, match=r"value \[4, 2\]"):
        ops.vtrace(r, r, r, r)
    with pytest.raises(ValueError, match="rho"):
        ops.vtrace(torch.zeros(5, 2), r, r, r[0])
