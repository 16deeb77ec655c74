"""The learner of one hogwild worker: gradients at weights of its own, applied to the shared ones.

Mnih et al. 2016, section 4: no lock around an update. Not the owner of anything but its copy.
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
    """`net` acts and is differentiated; `shared` is the same net in memory that all workers write.

    Only what the optimizer trains is copied. Targets and normalisers are read where they lie.
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
            # Adam raises this count and then divides by what comes of it: a worker that began its
            # first update in between, with 0 done, would make that a division by zero.
            for state in counted:
                state["step"] = state["step"].clone()
        self.steps = [state["step"] for state in counted]
        self.again = self.plan.epochs * self.plan.minibatches > 1

    def reseed(self, barrier: int) -> None:
        self.ctx.rng.manual_seed(seeding.stream_seed(self.seed, "learner", self.index, barrier))

    @torch.no_grad()
    def refresh(self) -> None:
        """Shared to local."""
        torch._foreach_copy_(self.params, self.shared_params)

    def _gradients(self, batch: Any, weight: Tensor | None) -> tuple[Loss, Tensor]:
        loss, total = super()._gradients(batch, weight)
        for mine, shared in zip(self.params, self.shared_params, strict=True):
            shared.grad = mine.grad  # lent, in this process alone
        return loss, total

    def _step(self) -> None:
        if self.together:
            self.prepare_step()
        self.optimizer.step()
        self.updates += 1
        self.board.add(self.index, "updates", 1)
        self.board.beat(self.index)
        # Not every number once, unlike steps: docs/contract.md says so.
        self.algorithm.after_update(self.shared, self.board.total("updates"))
        if self.again:
            self.refresh()

    def prepare_step(self) -> None:
        """Adam corrects its bias by the number of updates of all workers, not by a counter that two
        of them may raise at once."""
        done = self.board.total("updates")
        for step in self.steps:
            step.fill_(done)

    @torch.no_grad()
    def count_steps(self, before: int, steps: int) -> None:
        self.algorithm.after_steps(self.shared, before, steps)
