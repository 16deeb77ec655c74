"""Returns and advantages along an unroll [T, B]. Off-policy corrections live in vtrace, retrace.

`discount` has gamma folded in and is 0 where the episode terminated. `last` marks episode ends,
truncations included: the sum stops after that row, which itself bootstraps from the value after
it. Values in the rows after an end (the dummy row may hold NaN) cannot reach the rows before.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ludus.ops.shapes import one_longer, same_shape


def trace_ends(last: Tensor, mask: Tensor) -> Tensor:
    """Rows [T, B] after which nothing follows: an episode's last, or one before a masked row.

    Use it as `last` where a stream may have been cut without an episode end (a lost chunk, a
    barrier); in whole unrolls it marks nothing that `last` does not imply.
    """
    same_shape(last=last, mask=mask)
    masked_next = torch.cat([~mask[1:], torch.zeros_like(mask[:1])])
    return last | masked_next


@torch.no_grad()
def backward_sum(x: Tensor, coef: Tensor) -> Tensor:
    """y_t = x_t + coef_t y_{t+1} over the first axis, y_T = 0; a coefficient of 0 stops even NaN.

    Computed by doubling (Hillis & Steele 1986): after round k, y_t holds 2^k terms. log2 T rounds
    of whole-tensor operations: at T=128, B=8 on one core 0.15 ms against 0.6-1.0 ms for a loop.
    """
    same_shape(x=x, coef=coef)
    length, step = x.shape[0], 1
    y = x.clone()
    link = coef[:-1]  # link_t carries y_{t+step} to t
    while step < length:
        y[:-step] += torch.where(link == 0, link, link * y[step:])
        head = link[: max(length - 2 * step, 0)]
        link = torch.where(head == 0, head, head * link[step:])
        step *= 2
    return y


@torch.no_grad()
def n_step_returns(
    reward: Tensor, discount: Tensor, value_t: Tensor, n: int, last: Tensor | None = None
) -> Tensor:
    """Bootstrapped n-step returns [T, B] (Sutton & Barto 2018, eq. 7.1).

    G_t = r_t + γ_t r_{t+1} + ... + (γ_t ... γ_{t+n-1}) V(s_{t+n}); `value_t[t]` is V(s_{t+1}).
    Near the end of the unroll, and before an episode end, fewer than n rewards are summed.
    """
    same_shape(reward=reward, discount=discount, value_t=value_t, last=last)
    if n < 1:
        raise ValueError(f"n must be at least 1, not {n}")
    result = reward + discount * value_t  # n = 1
    for _ in range(min(n, reward.shape[0]) - 1):
        follow = result[1:] if last is None else torch.where(last[:-1], value_t[:-1], result[1:])
        result = torch.cat([reward[:-1] + discount[:-1] * follow, result[-1:]])
    return result


@torch.no_grad()
def lambda_returns(
    reward: Tensor,
    discount: Tensor,
    value_t: Tensor,
    lambda_: float | Tensor,
    last: Tensor | None = None,
) -> Tensor:
    """λ-returns [T, B] (Sutton & Barto 2018, eq. 12.18).

    G_t = r_t + γ_t ((1-λ) V_{t+1} + λ G_{t+1}); `value_t[t]` is V_{t+1}, `lambda_` may be [T, B].
    λ = 0 is the one-step target, λ = 1 the n-step return to the end of the unroll.
    """
    same_shape(reward=reward, discount=discount, value_t=value_t, last=last)
    trace = _continuation(lambda_, reward, last)
    return backward_sum(reward + discount * (1 - trace) * value_t, discount * trace)


@torch.no_grad()
def gae(
    reward: Tensor,
    discount: Tensor,
    value: Tensor,
    lambda_: float | Tensor,
    last: Tensor | None = None,
) -> Tensor:
    """Generalised advantages [T, B] (Schulman et al. 2016, eq. 16); `value` is [T+1, B].

    A_t = δ_t + γ_t λ A_{t+1}, δ_t = r_t + γ_t V_{t+1} - V_t. λ = 0 is the TD error.
    """
    same_shape(reward=reward, discount=discount, last=last)
    one_longer(reward, value=value)
    delta = reward + discount * value[1:] - value[:-1]
    return backward_sum(delta, discount * _continuation(lambda_, reward, last))


def _continuation(lambda_: float | Tensor, reward: Tensor, last: Tensor | None) -> Tensor:
    """λ where the trace goes on, 0 at episode ends and at the last row of the unroll."""
    trace = torch.zeros_like(reward)
    trace[:-1] = lambda_[:-1] if isinstance(lambda_, Tensor) and lambda_.ndim else lambda_
    return trace if last is None else trace.masked_fill(last, 0.0)
