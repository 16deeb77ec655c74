"""Multi-step targets for action values: Retrace, Peng's Q(λ), and their rescaled forms.

All return the target for the action taken, a constant; the TD error is target - Q(s_t, a_t) of
the net being trained. Single-transition targets are in td.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ludus.ops.rescale import SIGNED_HYPERBOLIC, Rescale
from ludus.ops.returns import backward_sum, lambda_returns, n_step_returns
from ludus.ops.shapes import one_longer, one_wider, same_shape
from ludus.ops.td import expected_value, taken


class OffPolicy(NamedTuple):
    """What Retrace needs to know of the two policies along an unroll."""

    q: Tensor  # [T+1, B, A] action values of the bootstrapping (target) net
    pi: Tensor  # [T+1, B, A] probabilities of the policy being learned
    action: Tensor  # [T, B] actions taken
    mu: Tensor  # [T, B] probability the behaviour gave to the action taken


@torch.no_grad()
def retrace(
    data: OffPolicy,
    reward: Tensor,
    discount: Tensor,
    last: Tensor | None = None,
    *,
    lambda_: float = 1.0,
) -> Tensor:
    """Retrace(λ) targets [T, B] (Munos et al. 2016, eq. 3 and 4, c of section 3).

    G_t = r_t + γ_t (E_π Q(s_{t+1}, ·) + c_{t+1} (G_{t+1} - Q(s_{t+1}, a_{t+1}))),
    c = λ min(1, π(a|s)/μ(a|s)); no correction at `last` nor at the end of the unroll.
    λ = 0 is the expected-SARSA target.
    """
    same_shape(reward=reward, discount=discount, last=last, action=data.action, mu=data.mu)
    same_shape(q=data.q, pi=data.pi)
    one_longer(reward, q=data.q[..., 0])
    value = expected_value(data.q[1:], data.pi[1:])  # [T, B]
    q_next = taken(data.q[1:-1], data.action[1:])  # [T-1, B]
    ratio = taken(data.pi[1:-1], data.action[1:]) / data.mu[1:]
    trace = lambda_ * ratio.clamp(max=1.0)
    if last is not None:  # also where the dummy row has mu = 0 and so no ratio
        trace = trace.masked_fill(last[:-1], 0.0)
    reach = reward + discount * value
    reach[:-1] -= discount[:-1] * trace * q_next
    coef = torch.zeros_like(reward)
    coef[:-1] = discount[:-1] * trace
    return backward_sum(reach, coef)


@torch.no_grad()
def transformed_retrace(
    data: OffPolicy,
    reward: Tensor,
    discount: Tensor,
    last: Tensor | None = None,
    *,
    lambda_: float = 1.0,
    rescale: Rescale = SIGNED_HYPERBOLIC,
) -> Tensor:
    """Retrace on rescaled values (Badia et al. 2020, NGU, appendix E): h(Retrace(h⁻¹(Q)))."""
    unscaled = data._replace(q=rescale.inverse(data.q))
    return rescale.apply(retrace(unscaled, reward, discount, last, lambda_=lambda_))


@torch.no_grad()
def q_lambda(
    reward: Tensor,
    discount: Tensor,
    next_q: Tensor,
    lambda_: float | Tensor,
    last: Tensor | None = None,
) -> Tensor:
    """Peng's Q(λ) targets [T, B] (Peng & Williams 1996); `next_q` [T, B, A] is Q(s_{t+1}, ·).

    The λ-return of max_a Q; exploratory actions do not cut it. λ = 0 is one-step Q-learning.
    """
    one_wider(reward, next_q=next_q)
    return lambda_returns(reward, discount, next_q.amax(-1), lambda_, last)


@torch.no_grad()
def transformed_n_step_q(
    reward: Tensor,
    discount: Tensor,
    next_q: Tensor,
    next_action: Tensor,
    n: int,
    last: Tensor | None = None,
    rescale: Rescale = SIGNED_HYPERBOLIC,
) -> Tensor:
    """Rescaled n-step targets [T, B] (Kapturowski et al. 2019, R2D2, section 2.3).

    h(n-step return with h⁻¹(Q(s_{t+n}, a*))); `next_action` [T, B] is a* at s_{t+1}, the argmax of
    the online net for double Q-learning, and `next_q` [T, B, A] are the target net's values there.
    """
    one_wider(reward, next_q=next_q)
    same_shape(reward=reward, next_action=next_action)
    value_t = rescale.inverse(taken(next_q, next_action))
    return rescale.apply(n_step_returns(reward, discount, value_t, n, last))
