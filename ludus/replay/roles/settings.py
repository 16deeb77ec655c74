"""What replay roles are made of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import IO, Any

import torch

from ludus.contract import Plan
from ludus.replay.chunk_layout import ChunkLayout
from ludus.types import EnvSpec, Extras

SPARE = 2  # places beside those ahead and the one in use: priorities on their way from a GPU


@dataclass(frozen=True, kw_only=True)
class Roles:
    """What replay roles are made of."""

    plan: Plan
    spec: EnvSpec
    layout: ChunkLayout  # of the actors' chunks
    extras: Extras
    actors: int
    num_envs: int  # of each actor
    roles: int
    prefetch: int  # samples drawn ahead; 0: one when it is asked for
    ordered: bool  # the same samples in every run
    buffers: int  # chunks that may wait for a role, of each actor
    seed: int
    horizon: int
    device: torch.device
    hang_seconds: float
    restarts: int  # replaced roles that end the run ...
    restart_minutes: float  # ... within this time
    threads: int  # of each role, which copy frames
    imports: tuple[str, ...]
    # Files for stack dumps of role i, generation g; how they are opened and read.
    stack_file: Callable[[int, int], Path | None]
    open_file: Callable[[Path], IO[Any]]
    read_file: Callable[[Path], str]

    def shards(self) -> list[range]:
        """The actors of each role, side by side."""
        ends = [self.actors * i // self.roles for i in range(self.roles + 1)]
        return [range(lo, hi) for lo, hi in pairwise(ends)]

    def chunk_places(self, index: int) -> int:
        """Chunks that may wait for this role."""
        return self.buffers * len(self.shards()[index])

    @property
    def sample_places(self) -> int:
        """Samples of a role that may be under way, waiting or in use."""
        return self.prefetch + 1 + SPARE
