"""The Fleet protocol: the interface between the training loop and its actors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
from torch import Tensor, nn

from ludus.collect.collector import Collected, never
from ludus.settings.sections import Capabilities
from ludus.types import EnvSpec, EpisodeEnd

State = dict[str, np.ndarray[Any, Any]]


def join_state(parts: Sequence[State]) -> State:
    """The state of all actors, in their order; empty if that of one is unknown."""
    if not all(parts):
        return {}
    return {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}


def split_state(state: State, actors: int) -> list[State]:
    """The state of each actor: the inverse of `join_state`."""
    return [{k: np.array_split(v, actors)[i] for k, v in state.items()} for i in range(actors)]


class Fleet(Protocol):
    """The actors of a run: inline, in processes, or hogwild workers."""

    spec: EnvSpec
    num_envs: int  # total over all actors
    capabilities: Capabilities
    warn: Callable[[str], None]  # called with a message, such as the replacement of an actor

    def publish(self, net: nn.ModuleDict, updates: int = 0) -> None:
        """Send the learner's weights after `updates` updates to the actors."""

    def poll(
        self, values: dict[str, Tensor], stopping: Callable[[], bool] = never
    ) -> list[Collected]:
        """Return the chunks that have arrived. In lockstep: one from each actor, or none."""

    def barrier(self, number: int) -> list[EpisodeEnd]:
        """End all episodes and reseed all generators. Return the episodes that were cut."""

    def state(self) -> State:
        """Return the state that survives a barrier: running reward maxima of the environments, and
        the algorithm's lasting state."""

    def load_state(self, state: State) -> None: ...

    def metrics(self) -> dict[str, float]: ...

    def close(self) -> None: ...

    # Used in reports.
    @property
    def acting(self) -> str: ...  # "captured", or "eager" with the reason

    @property
    def capture_seconds(self) -> float: ...

    @property
    def learner_bound(self) -> bool | None: ...  # True if chunks are dropped; None: never dropped

    def pids(self) -> list[int]: ...  # of the actors' processes
