"""Frame stacks for acting. The ring stores single frames; this is the actor's side of it."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ludus.types import Tree, tree_leaves, tree_map


class FrameStacker:
    """Keeps the newest k frames of n slots for every leaf with stack > 1; others pass through.

    Before an episode's first frame there are zeros, as the replay's views have it.
    """

    def __init__(self, obs_spec: Tree, n: int) -> None:
        self.spec = obs_spec
        self.active = any(s.stack > 1 for s in tree_leaves(obs_spec))
        self.frames = (
            tree_map(lambda s: torch.zeros((n, s.stack, *s.shape), dtype=s.torch_dtype), obs_spec)
            if self.active
            else None
        )

    def push(self, frames: Tree, first: np.ndarray) -> Tree:
        if not self.active:
            return frames
        opening = torch.from_numpy(np.array(first))

        def one(spec: object, stack: Tensor, frame: Tensor) -> Tensor:
            if stack.shape[1] == 1:
                return frame
            stack = torch.roll(stack, -1, 1)  # a new tensor: a caller may hold the old one
            stack[opening] = 0
            stack[:, -1] = frame
            return stack

        seen = tree_map(one, self.spec, self.frames, frames)
        self.frames = tree_map(
            lambda s, old, new: new if s.stack > 1 else old, self.spec, self.frames, seen
        )
        return seen
