"""The inline fleet: collectors in the learner's process."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from ludus.collect.collector import Collected, Collector, never
from ludus.collect.device_runner import choose_runner
from ludus.contract import Algorithm, Plan
from ludus.envs.adapter import Envs
from ludus.fleets.base import State, join_state, split_state
from ludus.settings.sections import FLEETS
from ludus.types import EpisodeEnd


class InlineFleet:
    """Runs collectors one after the other in this process. They act with the learner's net, or, if
    learning overlaps with acting (`overlap`), with a copy that `publish` updates. `close` leaves
    environments open that are `lent`."""

    capabilities, learner_bound = FLEETS["inline"], None

    def __init__(
        self,
        algorithm: Algorithm,
        envs: Sequence[Envs],
        plan: Plan,
        *,
        seed: int,
        device: torch.device | str = "cpu",
        overlap: bool = False,
        captured: bool = False,
        must_capture: bool = False,
        precision: str = "fp32",
        lent: bool = False,
        prepare_net: Callable[[nn.ModuleDict], None] | None = None,
        first: int = 0,
        all_actors: int = 0,
    ) -> None:
        """`first` of `all_actors` belong to the learners before this one (run.learners)."""
        runner = choose_runner(device, captured=captured, must_capture=must_capture)
        self.collectors: list[Collector] = []
        for i, part in enumerate(envs):
            made = Collector(
                algorithm, part, seed=seed, index=first + i, device=device, pipelined=overlap,
                precision=precision, runner=runner,
            )  # fmt: skip
            made.ctx.actors = all_actors or len(envs)
            self.collectors.append(made)
        self.overlap, self._lent, self._prepare_net = overlap, lent, prepare_net
        self.spec, self.num_envs = envs[0].spec, sum(part.num for part in envs)
        self.warn: Callable[[str], None] = lambda _: None
        self.updates = 0
        self.rows = plan.chunk
        self.net: nn.ModuleDict | None = None
        self._copies: list[tuple[list[Tensor], list[Tensor]]] = []

    @property
    def collector(self) -> Collector:
        return self.collectors[0]

    @property
    def capture_seconds(self) -> float:
        return sum(c.capture_seconds for c in self.collectors)

    @property
    def acting(self) -> str:
        return self.collector.mode

    @torch.no_grad()
    def publish(self, net: nn.ModuleDict, updates: int = 0) -> None:
        self.updates = updates
        if not self.overlap:
            self.net = net
        elif self.net is None:
            self.net = copy.deepcopy(net).requires_grad_(False)
            if self._prepare_net is not None:
                self._prepare_net(self.net)
            # List the tensors once: walking the modules takes longer than copying.
            pairs = zip(_tensors(self.net), _tensors(net), strict=True)
            self._copies = [(mine, new) for mine, new in pairs if mine]
        else:
            for mine, new in self._copies:
                torch._foreach_copy_(mine, new)

    def poll(
        self, values: dict[str, Tensor], stopping: Callable[[], bool] = never
    ) -> list[Collected]:
        assert self.net is not None, "publish before the first poll"
        taken: list[Collected] = []
        for i, collector in enumerate(self.collectors):
            got = collector.collect(self.net, self.rows, values, stopping)
            if got is None:
                return []  # all actors or none
            got.chunk = got.chunk._replace(source=i, version=self.updates)
            taken.append(got)
        return taken

    def barrier(self, number: int) -> list[EpisodeEnd]:
        return [episode for c in self.collectors for episode in c.barrier(number)]

    def state(self) -> State:
        return join_state([collector.state() for collector in self.collectors])

    def load_state(self, state: State) -> None:
        if state:
            parts = split_state(state, len(self.collectors))
            for collector, part in zip(self.collectors, parts, strict=True):
                collector.load_state(part)

    def metrics(self) -> dict[str, float]:
        return {}

    def pids(self) -> list[int]:
        return []

    def close(self) -> None:
        for collector in self.collectors:
            if self._lent:
                collector.drain()
            else:
                collector.close()


def _tensors(net: nn.ModuleDict) -> tuple[list[Tensor], list[Tensor]]:
    """Return parameters and buffers separately: one kernel copies a list of one dtype."""
    return list(net.parameters()), list(net.buffers())
