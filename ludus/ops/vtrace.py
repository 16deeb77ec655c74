"""V-trace targets and policy-gradient advantages. The losses built on them are the algorithms'."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ludus.ops.returns import backward_sum
from ludus.ops.shapes import one_longer, same_shape


class VTrace(NamedTuple):
    """Both are constants: no gradient flows through them."""

    vs: Tensor  # [T, B] value targets
    advantage: Tensor  # [T, B], its clipped importance ratio included


@torch.no_grad()
def vtrace(
    value: Tensor,
    reward: Tensor,
    discount: Tensor,
    rho: Tensor,
    last: Tensor | None = None,
    *,
    lambda_: float = 1.0,
    rho_clip: float = 1.0,
    c_clip: float = 1.0,
    pg_rho_clip: float = 1.0,
) -> VTrace:
    """V-trace (Espeholt et al. 2018, eq. 1 and section 4.2); `value` [T+1, B], `rho` = π/μ [T, B].

    v_t = V_t + δ_t + γ_t c_t (v_{t+1} - V_{t+1}),  δ_t = min(ρ̄, ρ_t) (r_t + γ_t V_{t+1} - V_t),
    c_t = λ min(c̄, ρ_t);  advantage_t = min(ρ̄_pg, ρ_t) (r_t + γ_t v_{t+1} - V_t).
    On-policy with λ = 1, v_t is the n-step return. At `last`, and at the end of the unroll, the
    trace is cut and the advantage uses V_{t+1}: v_{t+1} belongs to the dummy row.
    """
    same_shape(reward=reward, discount=discount, rho=rho, last=last)
    one_longer(reward, value=value)
    delta = rho.clamp(max=rho_clip) * (reward + discount * value[1:] - value[:-1])
    coef = discount * lambda_ * rho.clamp(max=c_clip)
    if last is not None:
        coef = coef.masked_fill(last, 0.0)
    error = backward_sum(delta, coef)
    # differs: the paper has λ in c only. Mixing it into the next value too (as rlax does) makes
    # λ = 0 the one-step advantage; λ = 1, the paper's case, is unchanged.
    correction = torch.cat([lambda_ * error[1:], torch.zeros_like(error[:1])])
    if last is not None:
        correction = correction.masked_fill(last, 0.0)
    follow = reward + discount * (value[1:] + correction)
    advantage = rho.clamp(max=pg_rho_clip) * (follow - value[:-1])
    return VTrace(value[:-1] + error, advantage)
