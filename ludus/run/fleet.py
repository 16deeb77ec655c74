"""Fleets: where collectors live. This one is `inline`: in the learner's own process."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from ludus.contract import Algorithm, Plan
from ludus.envs.adapter import Envs
from ludus.run.collector import Collected, Collector, never
from ludus.run.device_collector import DeviceCollector
from ludus.types import EnvSpec, EpisodeEnd


class Fleet(Protocol):
    """inline | processes | ray: the loop cannot tell them apart."""

    spec: EnvSpec
    columns: int

    @property
    def capture_seconds(self) -> float: ...

    @property
    def acting(self) -> str: ...  # "captured", or "eager" and why

    def publish(self, net: nn.ModuleDict) -> None: ...

    def poll(
        self, values: dict[str, Tensor], stopping: Callable[[], bool] = never
    ) -> list[Collected]: ...

    def barrier(self, number: int) -> list[EpisodeEnd]: ...

    def land(self) -> None: ...

    def state(self) -> dict[str, np.ndarray[Any, Any]]: ...

    def load(self, state: dict[str, np.ndarray[Any, Any]]) -> None: ...

    def close(self) -> None: ...


def _as_it_is(net: nn.ModuleDict) -> None:
    return None


class InlineFleet:
    """One collector in this process. `publish` lends it the learner's net, or, where learning
    goes on while it acts (`overlap`), copies the weights into a net of its own."""

    def __init__(
        self,
        algorithm: Algorithm,
        envs: Envs,
        plan: Plan,
        *,
        seed: int,
        device: torch.device | str = "cpu",
        overlap: bool = False,
        captured: bool = False,
        must_capture: bool = False,
        precision: str = "fp32",
        tuned: Callable[[nn.ModuleDict], None] = _as_it_is,
    ) -> None:
        options: dict[str, Any] = {
            "seed": seed, "device": device, "pipelined": overlap, "precision": precision,
        }  # fmt: skip
        self.collector: Collector
        if captured or torch.device(device).type != "cpu":
            self.collector = DeviceCollector(
                algorithm, envs, captured=captured, must=must_capture, **options
            )
        else:
            self.collector = Collector(algorithm, envs, **options)
        self.overlap, self._tuned = overlap, tuned
        self.spec, self.columns = envs.spec, envs.num
        self.rows = plan.chunk
        self.net: nn.ModuleDict | None = None
        self._copies: list[tuple[list[Tensor], list[Tensor]]] = []

    @property
    def capture_seconds(self) -> float:
        return self.collector.capture_seconds

    @property
    def acting(self) -> str:
        return self.collector.mode

    @torch.no_grad()
    def publish(self, net: nn.ModuleDict) -> None:
        if not self.overlap:
            self.net = net
        elif self.net is None:
            self.net = copy.deepcopy(net).requires_grad_(False)
            self._tuned(self.net)
            # Listed once: to walk through the modules takes longer than to copy.
            pairs = zip(_tensors(self.net), _tensors(net), strict=True)
            self._copies = [(mine, new) for mine, new in pairs if mine]
        else:
            for mine, new in self._copies:
                torch._foreach_copy_(mine, new)

    def poll(
        self, values: dict[str, Tensor], stopping: Callable[[], bool] = never
    ) -> list[Collected]:
        assert self.net is not None, "publish before the first poll"
        got = self.collector.collect(self.net, self.rows, values, stopping)
        return [] if got is None else [got]

    def barrier(self, number: int) -> list[EpisodeEnd]:
        return self.collector.barrier(number)

    def land(self) -> None:
        """Take answers that are under way, so that the environments may be used otherwise."""
        self.collector.land()

    def state(self) -> dict[str, np.ndarray[Any, Any]]:
        """What outlives a barrier on this side: running maxima of rewards and the like."""
        return self.collector.envs.state()

    def load(self, state: dict[str, np.ndarray[Any, Any]]) -> None:
        if state:
            self.collector.envs.load(state)

    def close(self) -> None:
        self.collector.close()


def _tensors(net: nn.ModuleDict) -> tuple[list[Tensor], list[Tensor]]:
    """Parameters and buffers apart: lists of one type are copied by one kernel."""
    return list(net.parameters()), list(net.buffers())
