"""The interface between the loop and its actors, wherever they run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from torch import Tensor, nn

from ludus.collect.collector import Collected, never
from ludus.settings.sections import Capabilities
from ludus.types import EnvSpec, EpisodeEnd

State = dict[str, np.ndarray[Any, Any]]


class Fleet(Protocol):
    """The actors of a run: inline, in processes, or hogwild workers. The loop cannot tell."""

    spec: EnvSpec
    num_envs: int  # of all actors together
    capabilities: Capabilities
    warn: Callable[[str], None]  # receives a message when an actor was replaced

    def publish(self, net: nn.ModuleDict, updates: int = 0) -> None:
        """Hand the learner's weights after `updates` updates to the actors."""

    def poll(
        self, values: dict[str, Tensor], stopping: Callable[[], bool] = never
    ) -> list[Collected]:
        """Chunks of rows that have arrived; in lockstep one of each actor, or none at all."""

    def barrier(self, number: int) -> list[EpisodeEnd]:
        """End all episodes and re-derive all generators; the episodes that were cut."""

    def state(self) -> State:
        """State of the environments that outlives a barrier, such as running reward maxima."""

    def load_state(self, state: State) -> None: ...

    def metrics(self) -> dict[str, float]: ...

    def close(self) -> None: ...

    # For reports.
    @property
    def acting(self) -> str: ...  # "captured", or "eager" and why

    @property
    def capture_seconds(self) -> float: ...

    @property
    def learner_bound(self) -> bool | None: ...  # chunks are dropped; None: no chunk ever is

    def pids(self) -> list[int]: ...  # of the actors' processes
