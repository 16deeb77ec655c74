"""What a collector knew before a chunk, for a learner that may have lost the chunk before it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ludus.types import Before


def known(older: Sequence[Tensor | None], action: Tensor, reward: Tensor) -> Before:
    """`older`: the frames [B, stack - 1, ...] of each leaf that has some."""
    none = reward.new_zeros((0, *reward.shape))
    frames = tuple(none if x is None else x.transpose(0, 1).clone() for x in older)
    return Before(frames, action.clone(), reward.clone())


def joined(groups: Sequence[Before]) -> Before:
    """Of all slots."""
    frames = tuple(torch.cat(parts, 1) for parts in zip(*(b.frames for b in groups), strict=True))
    action, reward = (torch.cat([getattr(b, k) for b in groups]) for k in ("action", "reward"))
    return Before(frames, action, reward)
