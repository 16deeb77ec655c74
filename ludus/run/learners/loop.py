"""GroupLoop: the loop of one learner of a group. All learners iterate together.

The first learner is the run's main process. It starts every iteration of the others, decides when
the run saves and ends, and records it (members.py). Between two such commands the others wait.
"""

from __future__ import annotations

import hashlib
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import safetensors.torch
import torch
from torch import Tensor, nn

from ludus.collect.collector import Collected
from ludus.errors import LudusError
from ludus.learn.group import LearnerGroup, LostLearnerError
from ludus.learn.learner import Learner
from ludus.process.watchdog import Call
from ludus.run.loop import Loop
from ludus.run.state import RUNNING
from ludus.track.checkpoint.optimizer import optimizer_from_tensors, optimizer_to_tensors
from ludus.types import EnvSpec, Rows, tree_map

if TYPE_CHECKING:
    from ludus.run.learners.members import Members


@dataclass
class GroupLoop(Loop):
    """`members`: the other learners; only the first learner has them."""

    members: Members | None = None
    pending: deque[Collected] = field(default_factory=deque)  # for a store that is full
    residuals: dict[str, Tensor] = field(default_factory=dict)  # of a checkpoint, by rank
    replay_metrics: list[dict[str, float]] = field(default_factory=list)  # of the others
    synced: bool = False  # the others have this learner's weights

    @property
    def group(self) -> LearnerGroup:
        group = self.learner.ctx.group
        assert isinstance(group, LearnerGroup), "the learners have not met"
        return group

    def iterate(self) -> None:
        members = self.members
        if members is not None:
            members.begin("iterate")
        try:
            self._iterate()
        except LostLearnerError as error:
            if members is None:
                raise
            raise members.lost(error) from None
        if members is not None:
            for report in members.finish():
                for episode in report.episodes:
                    self.record(episode)

    def _iterate(self) -> None:
        """As `Loop.iterate`; the learners agree on steps, updates and normalisers."""
        values = self.values.at(self.step)
        self.fleet.publish(self.learner.net, self.learner.updates)
        if not self.pending:
            self.pending.extend(self.fleet.poll(values, self.is_leaving))
        arrived = self._add()
        with self._waiting():
            steps = sum(int(got.chunk.rows.mask.sum()) for got in arrived)
            waited = time.perf_counter()
            counts = self.group.gather([steps, len(arrived)])
            self.clock.add("wait", time.perf_counter() - waited)
            before = self.step
            self._count(sum(steps for steps, _ in counts))
            for got in arrived:
                for episode in got.episodes:
                    self.record(episode)
            self._learn(self.updates.start, values)
            self._learn(self.updates.finish)
            for i in range(max(chunks for _, chunks in counts)):
                self._observe(arrived[i] if i < len(arrived) else None)
        self.learner.count_steps(before, self.step)

    def _add(self) -> list[Collected]:
        """Add chunks until the store is full. No learner may update alone to make room, so the
        others wait for the next iteration, and their actors meanwhile."""
        arrived: list[Collected] = []
        while self.pending and not self.store.full:
            got = self.pending.popleft()
            self.store.add(got.chunk)
            self.clock.add("env", got.env_seconds / self.fleet.capabilities.parallel)
            self.clock.add("act", got.act_seconds / self.fleet.capabilities.parallel)
            arrived.append(got)
        return arrived

    def _observe(self, got: Collected | None) -> None:
        """Normalisers see one chunk of every learner at a time; one may have none."""
        if self.learner.normalizer is None:
            return
        rows = got.chunk.rows if got is not None else blank_rows(self.fleet.spec)
        self.learner.observe(rows, got.chunk.source if got is not None else 0)

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        """Tell the watchdog that this learner may be waiting for another one."""
        group = self.group
        self.pulse.enter(Call(lambda: "another learner", progress=lambda: group.transfers))
        try:
            yield
        finally:
            self.pulse.leave()

    def leave(self, reason: str) -> None:
        if self.members is not None:
            self.members.leave()
        super().leave(reason)

    def barrier(self, number: int) -> None:
        if self.members is not None and not self.synced:
            self.share_state(self.members)
        while self.pending:  # rows of a full store are dropped, and not their episodes
            for episode in self.pending.popleft().episodes:
                self.record(episode)
        super().barrier(number)

    def share_state(self, members: Members) -> None:
        """Send weights, optimizer and counters, which are new or those of a checkpoint."""
        state = shared_state(self)
        members.ask("load", [
            state | {"residual": self._residual(rank)} for rank in members.ranks
        ])  # fmt: skip
        compression = self.learner.compression
        if compression is not None and "0" in self.residuals:
            compression.residual = self.residuals["0"].to(self.learner.device)
        self.synced = True

    def _residual(self, rank: int) -> Any:
        found = self.residuals.get(str(rank))
        return None if found is None else found.numpy()

    def flush(self) -> None:
        """Before a checkpoint, also check that the weights of all learners are still equal."""
        super().flush()
        members = self.members
        if members is None or not members.together:
            return
        own = digest(self.learner.net)
        others = [
            rank for rank, d in zip(members.ranks, members.ask("digest"), strict=True) if d != own
        ]
        if others:
            raise LudusError(
                "E403",
                "the learners' weights are not equal any more",
                where="learner " + ", ".join(map(str, others)),
                why="their nets were changed by something else than an update",
                fix="run.learners=1, or an algorithm that changes nets only in update hooks",
            )

    def gather(self) -> None:
        members = self.members
        if members is None or not members.together:
            return
        found = members.ask("metrics")
        for sums, _ in found:
            self.learner.add_sums(sums)
        self.replay_metrics = [replay for _, replay in found]

    def actor_metrics(self) -> dict[str, float]:
        found = super().actor_metrics()
        return found if self.members is None else {"learners": self.group.size, **found}

    def extra_tensors(self) -> dict[str, Tensor]:
        """What each learner has not sent of its gradients."""
        compression = self.learner.compression
        if compression is None or self.members is None:
            return {}
        parts = [compression.residual, *self.members.ask("residual")]
        return {
            str(rank): torch.as_tensor(part).cpu()
            for rank, part in enumerate(parts)
            if part is not None
        }

    def load_extra(self, tensors: dict[str, Tensor]) -> None:
        self.residuals = tensors

    def close(self) -> None:
        try:
            if self.members is not None:
                self.members.close()
        finally:
            super().close()


def blank_rows(spec: EnvSpec) -> Rows:
    """One row of no environment."""
    flags, numbers = torch.zeros(1, 0, dtype=torch.bool), torch.zeros(1, 0)
    obs = tree_map(lambda leaf: torch.zeros(2, 0, *leaf.shape), spec.obs)
    first = torch.zeros(2, 0, dtype=torch.bool)
    return Rows(obs, numbers, numbers, numbers, numbers, flags, first, flags)


def digest(net: nn.ModuleDict) -> int:
    """A number that differs when weights or statistics do. Running returns are each learner's."""
    found = hashlib.sha256()
    for name, x in net.state_dict().items():
        if name != RUNNING:
            found.update(x.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return int.from_bytes(found.digest()[:7], "big")


def shared_state(loop: Loop) -> dict[str, Any]:
    """What every learner starts from. Tensors as bytes: torch would share their memory."""
    learner = loop.learner
    optim, meta = optimizer_to_tensors(learner.optimizer)
    return {
        "model": to_bytes(learner.net.state_dict()),
        "optim": to_bytes(optim),
        "meta": meta,
        "updates": learner.updates,
        "skipped": learner.skipped,
        "step": loop.step,
        "refill": loop.refill,
    }


def load_shared(loop: Loop, state: dict[str, Any]) -> None:
    learner: Learner = loop.learner
    learner.net.load_state_dict(safetensors.torch.load(state["model"]))
    optimizer_from_tensors(learner.optimizer, safetensors.torch.load(state["optim"]), state["meta"])
    learner.set_counts(state["updates"], state["skipped"])
    loop.step, loop.refill = state["step"], state["refill"]


def to_bytes(tensors: dict[str, Tensor]) -> bytes:
    plain = {k: v.detach().cpu().contiguous().clone() for k, v in tensors.items()}
    return safetensors.torch.save(plain)
