"""Which column of an unroll store a new unroll overwrites. It sees no data.

An inserter that goes by content (the most off-policy of a few candidates, say) would be handed
what it compares when it is built; the store only asks it for columns.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import torch

Columns = np.ndarray[Any, Any]  # [n] int64


class Inserter(Protocol):
    def pick(self, count: int, rng: torch.Generator) -> Columns:
        """Columns for `count` new unrolls, all different. Empty columns come first, in order."""

    def state(self) -> dict[str, int]:
        """What `load` needs to go on as if nothing had happened."""

    def load(self, state: dict[str, int]) -> None: ...


class FifoInserter:
    """Ring order: the oldest goes."""

    def __init__(self, columns: int) -> None:
        self.columns, self.at = columns, 0

    def pick(self, count: int, rng: torch.Generator) -> Columns:
        assert count <= self.columns, "more unrolls at once than the store holds"
        chosen: Columns = (self.at + np.arange(count)) % self.columns
        self.at = (self.at + count) % self.columns
        return chosen

    def state(self) -> dict[str, int]:
        return {"at": self.at}

    def load(self, state: dict[str, int]) -> None:
        self.at = int(state["at"])
