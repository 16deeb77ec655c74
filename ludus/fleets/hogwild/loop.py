"""The hogwild loop: N workers with environments train one shared network (Mnih et al. 2016).

The main process does not learn. It records the run, and pauses all workers before anything reads
the network: checkpoints, evaluations, `best`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ludus.contract import Algorithm, Fifo
from ludus.envs.backends.workers import shipped_spec
from ludus.errors import LudusError
from ludus.fleets.base import State
from ludus.fleets.health import remove_empty_dumps, stack_file
from ludus.fleets.hogwild.fleet import HogwildFleet
from ludus.fleets.hogwild.shared_parameters import (
    COUNTED,
    Board,
    TryLock,
    can_share,
    count_steps,
    move_net,
    move_statistics,
    shared_layout,
)
from ludus.fleets.hogwild.worker import Job
from ludus.learn.learner import Learner
from ludus.learn.placement import Compute
from ludus.process.fork_server import process_context
from ludus.process.shared_tensors import SharedTensors
from ludus.run.loop import Loop
from ludus.settings.resolve import Config
from ludus.track.run_dir.rundir import RunDir


@dataclass
class HogwildLoop(Loop):
    """A `Loop` whose learner and store only hold the workers' shared state and counters."""

    fleet: HogwildFleet

    def run(self) -> None:
        super().run()
        self.pause()

    def iterate(self) -> None:
        if self.fleet.all_paused:
            self.fleet.resume(self._limit())
        try:
            # Workers compute the schedules themselves; these values are for the display.
            self.fleet.poll(self.values.at(self.step))
        finally:  # also after a failure, for the final checkpoint
            self._gather()

    def flush(self) -> None:
        self.pause()
        super().flush()

    def pause(self) -> None:
        try:
            self.fleet.pause()
        finally:
            self._gather()

    def barrier(self, number: int) -> None:
        if self.fleet.over:
            return  # no worker is left; a resumed run starts new episodes
        if self.fleet.members:  # the workers have started
            for episode in self.fleet.barrier(number):
                self.record(episode)
            self.scores.barrier(number)
            return
        if self.learner.on_update is not None:
            raise LudusError(
                "E104",
                "a callback has on_update, but updates happen in other processes",
                where="run.fleet=hogwild",
                fix="run.fleet=inline run.actors=1, or a callback without on_update",
            )
        self._fill()
        self.fleet.leaving = self.is_leaving
        self.fleet.start(number)

    def _limit(self) -> int:
        """The next step at which all workers pause, because something reads the network there."""
        due = (e.next() for e in (self.checkpoint_every, self.best_every, self.eval_every))
        return min([self.steps, *(step for step in due if step is not None)])

    def _fill(self) -> None:
        """Copy the optimizer statistics and counters of a checkpoint to shared memory. The weights
        are there already."""
        fleet, slab = self.fleet, self.fleet.slab
        for copy in range(1 if self.fleet.together else fleet.workers):
            move_statistics(self.learner.optimizer, slab, copy, fill=True)
        for name, values in fleet.loaded.items():
            if name.startswith("stat"):
                slab.tensor(name).copy_(torch.from_numpy(values))
        if not self.fleet.together:  # a checkpoint's optimizer state is that of the first worker
            move_statistics(self.learner.optimizer, slab, 0, fill=False)
        store, learner = self.store, self.learner
        fleet.board.counts[0] = (
            self.step, learner.updates, learner.skipped, store.samples_drawn,
            getattr(store, "popped", 0),
        )  # fmt: skip
        fleet.board.control[COUNTED] = self.step

    def _gather(self) -> None:
        """Collect the workers' reports and counters. The step at which they pause is reached only
        when all are paused: callbacks must not read weights that still change."""
        fleet, board = self.fleet, self.fleet.board
        steps = board.steps
        if not fleet.all_paused and board.limit:
            steps = min(steps, board.limit - 1)
        self.step = max(self.step, steps)
        while fleet.reports:
            report = fleet.reports.popleft()
            self.learner.add_sums(report.sums)
            for group, rate in zip(self.learner.optimizer.param_groups, report.rates, strict=False):
                group["lr"] = rate
            for part, seconds in report.seconds.items():
                self.clock.add(part, seconds)
            for step, episode in report.episodes:
                self.scores.add(episode)
                self.actors.add(episode)
                self.hooks.episode(step, episode)
        self.learner.updates = board.total("updates")
        self.learner.skipped = board.total("skipped")
        if self.fleet.together:  # set Adam's step count for a checkpoint: each worker has its own
            for state in self.learner.optimizer.state.values():
                if "step" in state:
                    state["step"].fill_(self.learner.updates)
        numbers = self.store.state()[1] | {
            "steps_inserted": board.steps,
            "samples_drawn": board.total("samples_drawn"),
            "popped": board.total("popped"),
        }
        if fleet.all_paused:
            self.store.load({}, numbers)
            # A worker that found the lock taken left its steps to the next `count_steps`.
            count_steps(board, fleet.step_lock, self.learner.count_steps)


def build_fleet(cfg: Config, learner: Learner, compute: Compute, run: RunDir) -> HogwildFleet:
    """Move the learner's network to shared memory. The processes start at the first barrier."""
    algorithm, spec, workers = learner.algorithm, learner.ctx.spec, cfg.run.actors
    check(cfg, algorithm, learner.optimizer)
    # The fork server imports these modules, so that a hundred workers start in seconds. The first
    # optimizer makes torch import its compiler: 800 modules and 70 MB. A user's module could break
    # the server.
    own = type(algorithm).__module__
    known = (own,) if own.startswith("ludus.") else ()
    context = process_context("torch._dynamo", "ludus.fleets.hogwild.worker", *known)
    copies = 1 if cfg.run.shared_statistics else workers
    rooms = shared_layout(learner.net, learner.optimizer, copies) | Board.room(workers)
    slab = SharedTensors.like(rooms, context)
    move_net(learner.net, slab, fill=True)
    tree, registered, step_lock = cfg.tree(), shipped_spec(cfg.env), TryLock()
    every = max(0.1, 0.01 * workers)  # at most a hundred messages per second in total

    def make_job(index: int, generation: int, barrier: int, env_state: State) -> Job:
        return Job(
            tree, algorithm, slab, step_lock, index, generation, barrier, compute.precision,
            compute.order, run.crash, stack_file(run.crash, index, generation), env_state,
            registered, every,
        )  # fmt: skip

    remove_empty_dumps(run.crash)
    return HogwildFleet(cfg, spec, slab, step_lock, context, make_job, run.path)


def check(cfg: Config, algorithm: Algorithm, optimizer: torch.optim.Optimizer) -> None:
    """Raise E104 for algorithms and settings that hogwild does not support."""
    what = ""
    if not all(isinstance(sampler, Fifo) for sampler in algorithm.plan.samplers):
        what = "learns from replay, and workers share no rows"
    elif algorithm.plan.periods:
        what = "lets parameter groups step every k-th update, and workers count theirs with gaps"
    elif algorithm.plan.warmup:
        what = "has a warm-up, and every worker has a queue of its own"
    elif not can_share(optimizer):
        what = f"has an optimizer, {type(optimizer).__name__}, whose state cannot be shared"
    if what:
        raise LudusError(
            "E104",
            f"{cfg.algo_name} {what}",
            where="run.fleet=hogwild",
            fix="run.fleet=inline run.actors=1, or a3c, async-q, async-sarsa, async-nstep-q",
        )
