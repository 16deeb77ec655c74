"""Plan.periods: which parameter groups step in which update, and a captured graph for each case."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from itertools import combinations
from typing import Any

import torch

from ludus.compute.cuda_graph import Graph
from ludus.errors import LudusError, nearest
from ludus.types import Ctx


class Periods:
    """A group with the period k steps in the updates k, 2k, ...; every other group in all.

    Updates are numbered as they are tried: a skipped one keeps its number, so that the order of
    steps does not depend on when the host hears of it.
    """

    def __init__(self, periods: Mapping[str, int], optimizer: torch.optim.Optimizer) -> None:
        self.periods = {name: k for name, k in periods.items() if k > 1}
        names = [group.get("name", "") for group in optimizer.param_groups]
        self.names = frozenset(name for name in names if name)
        self._check(periods, names)

    def _check(self, periods: Mapping[str, int], names: list[str]) -> None:
        for name in periods:
            if name not in self.names:
                known = ", ".join(sorted(self.names)) or "none has a name"
                raise LudusError(
                    "E104",
                    f"periods names the parameter group {name}{nearest(name, self.names)}, "
                    "which the optimizer does not have",
                    where="the algorithm's plan",
                    why=f"the names of its groups: {known}",
                    fix="name the group in optimizer(), or correct periods",
                )
        if names and all(name in self.periods for name in names):
            raise LudusError(
                "E104",
                f"every parameter group has a period: {self.periods}",
                where="the algorithm's plan",
                why="nothing would be learned in the first update",
                fix="a period of 1 for at least one group",
            )

    def at(self, number: int) -> frozenset[str]:
        """The named groups that step in update `number`, counted from 1."""
        if not self.periods:
            return self.names
        return frozenset(n for n in self.names if number % self.periods.get(n, 1) == 0)

    def cases(self) -> list[frozenset[str]]:
        """Every set that `at` returns, without counting up to the common multiple of all."""
        lengths = sorted(set(self.periods.values()))
        chosen = (c for size in range(len(lengths) + 1) for c in combinations(lengths, size))
        return list(dict.fromkeys(self.at(math.lcm(*c)) for c in chosen))


class UpdateGraphs:
    """One graph of an update for every set of groups that may step; the host picks among them.

    `ctx.stepping` is set when a graph is captured. `launch` runs the graph for update `number()`.
    """

    def __init__(
        self,
        periods: Periods,
        ctx: Ctx,
        number: Callable[[], int],
        capture: Callable[[Callable[[], Any]], Graph],
        fn: Callable[[], Any],
    ) -> None:
        self.periods, self.number = periods, number

        def once(stepping: frozenset[str]) -> Callable[[], None]:
            def run() -> None:
                ctx.stepping = stepping
                fn()

            return run

        self.graphs = {case: capture(once(case)) for case in periods.cases()}

    def launch(self) -> None:
        self.graphs[self.periods.at(self.number())].launch()
