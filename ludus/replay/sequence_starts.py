"""Where sequences start, and the recurrent state kept for those rows only.

A start is every `period`-th row counted from an episode's first; states live in a ring of their
own, so a start leaves when its row is overwritten or when its state is.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from ludus.replay.storage.ring import Ring, allocate


class Starts:
    def __init__(self, period: int, ring: Ring) -> None:
        self.period, self.ring = period, ring
        n, slots = ring.num_envs, ring.layout.starts
        self.age = np.zeros(n, np.int64)  # rows since the episode's first, per environment
        self.count = np.zeros(n, np.int64)  # starts so far, per environment
        self.row = np.full((max(slots, 1), n), -1, np.int64)  # the row of each state
        self.states: dict[str, Tensor] = {
            name: allocate((slots, n, *f.shape), f.dtype, ring.device)
            for name, f in ring.layout.states.items()
        }

    def mark(
        self, begin: np.ndarray[Any, Any], mask: np.ndarray[Any, Any], env: int
    ) -> np.ndarray[Any, Any]:
        """Which of T new rows are starts, [T, B]."""
        age = self.age[env : env + begin.shape[1]]
        out = np.zeros_like(mask)
        for t in range(len(mask)):
            age[begin[t]] = 0
            out[t] = mask[t] & (age % self.period == 0)
            age += 1
        return out

    def keep(
        self, starts: np.ndarray[Any, Any], row: int, env: int, extras: dict[str, Tensor]
    ) -> list[tuple[int, int]]:
        """Store the state of each start; returns the (row, env) of starts pushed out."""
        number = np.full(starts.shape, -1, np.int64)
        evicted = []
        for t, b in zip(*np.nonzero(starts), strict=True):
            c = env + b
            number[t, b] = self.count[c]
            slot = int(self.count[c]) % len(self.row)
            if self.row[slot, c] >= 0:
                evicted.append((int(self.row[slot, c]), int(c)))
            self.row[slot, c] = row + t
            for name, table in self.states.items():
                table[slot, c] = extras[name][t, b]
            self.count[c] += 1
        self.ring.write("start", row, env, self.ring.index(number))
        return evicted

    def read(self, name: str, env: int, lo: int, hi: int) -> Tensor:
        """States of starts lo .. hi-1 of an environment."""
        slots = torch.arange(lo, hi) % len(self.row)
        return self.states[name][slots, env].cpu()
