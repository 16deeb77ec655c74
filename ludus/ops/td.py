"""One-step targets, per item [B], and the Huber loss. Unrolls are in returns, vtrace, retrace.

`discount` has gamma^n folded in and is 0 after a termination, as in a Transition. Actions that
are not allowed may carry -inf in `next_q`. Targets are constants: no gradient flows through them.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ludus.ops.shapes import one_wider, same_shape


def taken(per_action: Tensor, action: Tensor) -> Tensor:
    """The entry of each item's own action: [..., A] and [...] to [...]."""
    one_wider(action, per_action=per_action)
    return per_action.gather(-1, action.unsqueeze(-1)).squeeze(-1)


def expected_value(q: Tensor, policy: Tensor) -> Tensor:
    """Σ_a π(a) Q(a) over the last axis; what has probability 0 does not count, be it -inf."""
    same_shape(q=q, policy=policy)
    return (policy * torch.where(policy > 0, q, 0.0)).sum(-1)


@torch.no_grad()
def q_target(reward: Tensor, discount: Tensor, next_q: Tensor) -> Tensor:
    """Q-learning (Watkins 1989): r + γ max_a Q(s', a)."""
    same_shape(reward=reward, discount=discount)
    one_wider(reward, next_q=next_q)
    return reward + discount * next_q.amax(-1)


@torch.no_grad()
def double_q_target(
    reward: Tensor, discount: Tensor, next_q_target: Tensor, next_q_online: Tensor
) -> Tensor:
    """Double Q-learning (van Hasselt et al. 2016, eq. 4): the online net chooses, the target rates.

    r + γ Q⁻(s', argmax_a Q(s', a)). With equal nets it is `q_target`.
    """
    same_shape(next_q_target=next_q_target, next_q_online=next_q_online)
    return sarsa_target(reward, discount, next_q_target, next_q_online.argmax(-1))


@torch.no_grad()
def sarsa_target(reward: Tensor, discount: Tensor, next_q: Tensor, next_action: Tensor) -> Tensor:
    """SARSA (Rummery & Niranjan 1994): r + γ Q(s', a'), a' the action taken there."""
    same_shape(reward=reward, discount=discount, next_action=next_action)
    one_wider(reward, next_q=next_q)
    return reward + discount * taken(next_q, next_action)


@torch.no_grad()
def expected_sarsa_target(
    reward: Tensor, discount: Tensor, next_q: Tensor, next_policy: Tensor
) -> Tensor:
    """Expected SARSA (van Seijen et al. 2009, eq. 5): r + γ Σ_a π(a|s') Q(s', a)."""
    same_shape(reward=reward, discount=discount)
    one_wider(reward, next_q=next_q)
    return reward + discount * expected_value(next_q, next_policy)


def huber(x: Tensor, delta: float = 1.0) -> Tensor:
    """Huber 1964: x²/2 up to |x| = δ, δ (|x| - δ/2) beyond; elementwise, nothing is reduced.

    Its gradient is the TD error clipped to ±δ, the clipping of Mnih et al. 2015: clipping the loss
    instead would stop learning from large errors.
    """
    size = x.abs()
    return torch.where(size <= delta, 0.5 * x * x, delta * (size - 0.5 * delta))
