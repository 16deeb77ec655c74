"""The learner of one hogwild worker: gradients of a local copy, applied to the shared weights.

Mnih et al. 2016, section 4: updates take no lock.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor

from ludus import seeding
from ludus.fleets.hogwild.shared_parameters import (
    Board,
    move_net,
    move_statistics,
    shared_names,
)
from ludus.learn.learner import Learner
from ludus.process.shared_tensors import SharedTensors
from ludus.types import Loss


class WorkerLearner(Learner):
    """`net` acts and computes gradients; `shared` is the same network in memory that all workers
    write.

    Only trained parameters are copied. Targets and normalisers are read from shared memory.
    """

    def __init__(
        self,
        *args: Any,
        slab: SharedTensors,
        board: Board,
        index: int,
        together: bool,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.board, self.index = board, index
        self.together = together  # one set of statistics for all workers
        self.shared = copy.deepcopy(self.net)
        move_net(self.shared, slab, fill=False)
        self.optimizer = self.algorithm.optimizer(self.shared)
        self.shared_params = [p for g in self.optimizer.param_groups for p in g["params"]]
        move_statistics(self.optimizer, slab, 0 if together else index, fill=False)
        trained = {id(p) for p in self.params}
        for name, t in shared_names(self.net).items():
            if id(t) not in trained:
                t.data = slab.tensor(f"net/{name}")
        counted = [s for s in self.optimizer.state.values() if "step" in s]
        if together:
            # Adam increments this count and then divides by a function of it. If another worker
            # reset a shared count to 0 in between, Adam would divide by zero.
            for state in counted:
                state["step"] = state["step"].clone()
        self.steps = [state["step"] for state in counted]
        self.again = self.plan.epochs * self.plan.minibatches > 1

    def reseed(self, barrier: int) -> None:
        self.ctx.rng.manual_seed(seeding.stream_seed(self.seed, "learner", self.index, barrier))

    @torch.no_grad()
    def refresh(self) -> None:
        """Copy the shared weights to the local network."""
        torch._foreach_copy_(self.params, self.shared_params)

    def _gradients(self, batch: Any, weight: Tensor | None) -> tuple[Loss, Tensor]:
        loss, total = super()._gradients(batch, weight)
        for mine, shared in zip(self.params, self.shared_params, strict=True):
            shared.grad = mine.grad  # a reference, only in this process
        return loss, total

    def _step(self) -> None:
        if self.together:
            self.prepare_step()
        self.optimizer.step()
        self.updates += 1
        self.board.add(self.index, "updates", 1)
        self.board.beat(self.index)
        # Update numbers may repeat or be skipped, unlike steps: see docs/contract.md.
        self.algorithm.after_update(self.shared, self.board.total("updates"))
        if self.again:
            self.refresh()

    def prepare_step(self) -> None:
        """Set Adam's step to the number of updates of all workers. A shared counter could lose
        concurrent increments."""
        done = self.board.total("updates")
        for step in self.steps:
            step.fill_(done)

    @torch.no_grad()
    def count_steps(self, before: int, steps: int) -> None:
        self.algorithm.after_steps(self.shared, before, steps)
