"""The batches that stores return, and the loss per item that an algorithm makes of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from torch import Tensor

from ludus.types.rows import Tree


class Transition(NamedTuple):
    """n-step transitions [B]; rewards and discounts include n, gamma and episode ends."""

    obs: Tree
    action: Tensor
    reward: Tensor  # sum of discounted rewards
    discount: Tensor  # gamma^k, 0 after a termination
    next_obs: Tree
    action_mask: Tensor | None = None
    next_action_mask: Tensor | None = None
    extras: Mapping[str, Tensor] = {}
    feed: Tensor | None = None  # [B] index of the item's feed in Plan.feeds
    env: Tensor | None = None  # [B] its environment, counted over all actors
    version: Tensor | None = None  # [B] updates of the weights that acted in its first row


class Traj(NamedTuple):
    """Unrolls or sequences [T, B]: like Rows, but `obs` may be stacked and steps may be padding."""

    obs: Tree  # [T+1, B, ...] as the network sees it
    action: Tensor
    reward: Tensor
    discount: Tensor  # without gamma
    last: Tensor
    first: Tensor  # [T+1, B]
    mask: Tensor
    action_mask: Tensor | None = None
    extras: Mapping[str, Tensor] = {}
    state: Any = ()
    prev_action: Tensor | None = None  # [T+1, B, ...]
    prev_reward: Tensor | None = None  # [T+1, B]
    feed: Tensor | None = None  # [B] as in Transition
    env: Tensor | None = None
    version: Tensor | None = None
    burn_in: Tensor | None = None  # [T, B] bool: the row only restores the state (mask=False)


class Sample(NamedTuple):
    """A batch from a store for the learner."""

    batch: Any  # Transition or Traj
    ids: Tensor  # [B] int64, absolute; for feedback
    weight: Tensor  # [B] float32, importance weights


class Loss(NamedTuple):
    """The loss per item; the Learner applies the importance weights."""

    value: Tensor  # [B]
    metrics: Mapping[str, Tensor] = {}  # 0-d tensors, detached
    priority: Tensor | None = None  # [B], detached
