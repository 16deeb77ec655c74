"""Fleets: where collectors live. This one is `inline`: in the learner's own process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from ludus.contract import Algorithm, Plan
from ludus.envs.adapter import Envs
from ludus.run.collector import Collected, Collector, never
from ludus.types import EnvSpec, EpisodeEnd


class Fleet(Protocol):
    """inline | processes | ray: the loop cannot tell them apart."""

    spec: EnvSpec
    columns: int

    def publish(self, net: nn.ModuleDict) -> None: ...

    def poll(
        self, values: dict[str, Tensor], stopping: Callable[[], bool] = never
    ) -> list[Collected]: ...

    def barrier(self, number: int) -> list[EpisodeEnd]: ...

    def state(self) -> dict[str, np.ndarray[Any, Any]]: ...

    def load(self, state: dict[str, np.ndarray[Any, Any]]) -> None: ...

    def close(self) -> None: ...


class InlineFleet:
    """One collector; `publish` lends it the learner's net, since nothing runs beside it."""

    def __init__(
        self,
        algorithm: Algorithm,
        envs: Envs,
        plan: Plan,
        *,
        seed: int,
        device: torch.device | str = "cpu",
    ) -> None:
        self.collector = Collector(algorithm, envs, seed=seed, device=device)
        self.spec, self.columns = envs.spec, envs.num
        self.rows = plan.chunk
        self.net: nn.ModuleDict | None = None

    def publish(self, net: nn.ModuleDict) -> None:
        self.net = net

    def poll(
        self, values: dict[str, Tensor], stopping: Callable[[], bool] = never
    ) -> list[Collected]:
        assert self.net is not None, "publish before the first poll"
        got = self.collector.collect(self.net, self.rows, values, stopping)
        return [] if got is None else [got]

    def barrier(self, number: int) -> list[EpisodeEnd]:
        return self.collector.barrier(number)

    def state(self) -> dict[str, np.ndarray[Any, Any]]:
        """What outlives a barrier on this side: running maxima of rewards and the like."""
        return self.collector.envs.state()

    def load(self, state: dict[str, np.ndarray[Any, Any]]) -> None:
        if state:
            self.collector.envs.load(state)

    def close(self) -> None:
        self.collector.close()
