"""The processes fleet: N actors in separate processes (fleets/processes/actor.py).

In lockstep every iteration requests one chunk from each actor, collected with the newest weights,
and returns them in the order of the actors: results do not depend on timing. Free actors collect
as fast as they can, and the learner takes the chunks that have arrived. In both modes the replay
ratio of the store decides how many updates follow.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from ludus.collect.collector import Collected, never
from ludus.compute.cuda_graph import EMULATED, captures
from ludus.compute.probe_act import extras_of
from ludus.contract import Algorithm, NStep, Plan, Unroll
from ludus.contract import Sequence as SequenceView
from ludus.envs.backends.workers import shipped_spec
from ludus.envs.render.screenshots import Camera
from ludus.fleets.base import State
from ludus.fleets.processes.actor import Job
from ludus.fleets.processes.actor_pool import LOOK, ActorPool
from ludus.fleets.processes.transport import ChunkLayout, Mailbox, MailboxError, WeightsBoard
from ludus.run.compatibility import rows_of
from ludus.settings.resolve import Config
from ludus.settings.sections import FLEETS
from ludus.types import Ctx, EnvSpec, EpisodeEnd


class ProcessFleet(ActorPool):
    """N actor processes. Actor i has the i-th part of the `num_envs` environments."""

    def __init__(
        self,
        algorithm: Algorithm,
        spec: EnvSpec,
        plan: Plan,
        net: nn.ModuleDict,
        cfg: Config,
        *,
        precision: str = "fp32",
        capture: str = "auto",
        order: str = "",
        overlap: bool = False,
        crash: Path | None = None,
        camera: Camera | None = None,
    ) -> None:
        super().__init__(cfg, (*plan.schedules, "warming"), crash)
        n = cfg.env.num_envs
        self.spec, self.num_envs = spec, self.actors * n
        self.capabilities = replace(FLEETS["processes"], parallel=self.actors)
        self.lockstep, self.publish_every = cfg.lockstep, cfg.actor.publish_every
        ctx = Ctx(torch.Generator().manual_seed(0), spec, actors=self.actors)
        state = algorithm.begin(n, ctx)
        rows = rows_of(cfg, plan, state)
        # A ring copies its input rows; a queue keeps them and needs a copy.
        self.copy = not isinstance(plan.view, NStep | SequenceView)
        self.layout = ChunkLayout.of(
            spec, extras_of(algorithm, net, spec), state, rows, n,
            valued=_valued(plan, rows), before=self._loses(plan),
        )  # fmt: skip
        self.board = WeightsBoard(net, self.context)
        self.updates = 0  # of the learner
        self.version = -1  # updates of the newest published weights
        self.lag = 0.0  # running mean of updates between acting and arrival
        self.late_episodes: list[EpisodeEnd] = []  # of lost chunks
        self.running = False
        self.claimed: list[tuple[Mailbox, int]] = []
        device = "cpu" if cfg.actor.device == "auto" else str(cfg.actor.device)
        self.planned = _planned(capture, device)
        self.start([
            Job(
                index=i, actors=self.actors, env=cfg.env, algorithm=algorithm, rows=rows,
                seed=cfg.run.seed, device=device_of_actor(device, i), precision=precision,
                capture=capture, names=self.names, pipelined=overlap and self.lockstep,
                remembers=self.layout.remembers, order=order, camera=camera if i == 0 else None,
                lockstep=self.lockstep, pull_every=cfg.actor.pull_every,
                registered=shipped_spec(cfg.env),
            )
            for i in range(self.actors)
        ])  # fmt: skip

    def _loses(self, plan: Plan) -> bool:
        """Whether unrolls may follow a gap in the stream. Replay never samples across a gap."""
        waits = self.lockstep or self.cfg.actor.overflow == "wait"
        return not waits and isinstance(plan.view, Unroll)

    @property
    def acting(self) -> str:
        processes = "1 process" if self.actors == 1 else f"{self.actors} processes"
        words = [f"in {processes}", "lockstep" if self.lockstep else "free"]
        if self.fell_back:
            words += [f"{'some ' if self.actors > 1 else ''}{mode}" for mode in self.fell_back]
        elif self.planned:
            words.append(self.planned)
        return ", ".join(words)

    @property
    def learner_bound(self) -> bool | None:
        """Whether chunks are dropped because the learner is too slow. Chunks lost with a dead actor
        do not count."""
        return None if self.lockstep else any(m.mailbox.dropped for m in self.members)

    # Methods that the loop calls.
    def publish(self, net: nn.ModuleDict, updates: int = 0) -> None:
        self.release()
        due = self.version < 0 or self.lockstep or updates - self.version >= self.publish_every
        if due and (self.lockstep or updates != self.version):
            self.board.publish(net, updates)
            self.version = updates
        self.updates = updates

    def poll(
        self, values: dict[str, Tensor], stopping: Callable[[], bool] = never
    ) -> list[Collected]:
        self.release()
        self.values[:] = [float(values[name]) for name in self.names]
        if self.lockstep:
            return self._together(stopping)
        if not self.running:
            self.running = True
            for member in self.members:
                self._send(member, "run", None)
        deadline = time.monotonic() + LOOK
        while not self.notices and time.monotonic() < deadline and not stopping():
            self._listen(min(LOOK, max(0.0, deadline - time.monotonic())))
        self._listen(0.0)
        return self._take()

    def _together(self, stopping: Callable[[], bool]) -> list[Collected]:
        names, numbers = self.names, self.values.tolist()
        for member in self.members:
            member.asked, member.gave_up = dict(zip(names, numbers, strict=True)), False
            if member.ready:  # otherwise `_handle` asks it once it is ready
                self._send(member, "collect", member.asked)
        while any(m.asked is not None for m in self.members):
            if stopping():
                self.orders[0] = 1
            self._listen(LOOK)
        if any(m.gave_up for m in self.members):
            self.notices.clear()  # all actors or none
            return []
        self.notices = deque(sorted(self.notices, key=lambda notice: notice[0].index))
        return self._take()

    def _take(self) -> list[Collected]:
        """Read the announced chunks."""
        taken = []
        while self.notices:
            member, place, sequence, episodes, spent = self.notices.popleft()
            chunk = None
            if place is not None:
                with suppress(MailboxError):  # the actor was stopped while it held the lock
                    chunk = member.mailbox.claim(place, sequence, member.index, copy=self.copy)
            if chunk is None or place is None:
                self.lost += 1
                self.late_episodes += episodes  # reported with the next chunk
                continue
            self.claimed.append((member.mailbox, place))
            self.lag += 0.05 * (self.updates - chunk.version - self.lag)
            taken.append(Collected(chunk, self.late_episodes + episodes, *spent))
            self.late_episodes = []
        return taken

    def release(self) -> None:
        """Free the places of returned chunks: they have been copied or used."""
        for mailbox, place in self.claimed:
            mailbox.release(place)
        self.claimed.clear()

    def barrier(self, number: int) -> list[EpisodeEnd]:
        self.number = number
        self.release()
        answers = self._ask("barrier", number)
        return [episode for answer in answers if answer for episode in answer]

    def state(self) -> State:
        parts = [part for part in self._ask("state", None) if part]
        if len(parts) < self.actors:
            return {}
        return {key: np.concatenate([np.atleast_1d(p[key]) for p in parts]) for key in parts[0]}

    def load_state(self, state: State) -> None:
        if not state:
            return
        for i, member in enumerate(self.members):
            part = {k: np.array_split(v, self.actors)[i] for k, v in state.items()}
            self._send(member, "load", part)
        self._answers("load")

    def metrics(self) -> dict[str, float]:
        return {
            "alive": sum(m.ready and m.process.is_alive() for m in self.members),
            "restarts": self.restarts.count,
            "waiting_chunks": sum(m.mailbox.waiting for m in self.members),
            "dropped_chunks": self.lost,
            "policy_lag": self.lag,
        }


def _valued(plan: Plan, rows: int) -> int:
    """Number of first priorities per chunk, including earlier rows whose windows end in it."""
    if plan.actor_priorities and isinstance(plan.view, NStep):
        return plan.view.n - 1 + rows
    return 0


def _planned(capture: str, device: str) -> str:
    """The expected mode of acting; empty on a CPU without capture."""
    if captures(capture, device):
        return EMULATED if device == "cpu" else "captured"
    return "" if device == "cpu" else "eager"


def device_of_actor(device: str, index: int) -> str:
    """Distribute the actors over all GPUs."""
    if device != "cuda":
        return device
    return f"cuda:{index % max(1, torch.cuda.device_count())}"


__all__ = ["ProcessFleet"]
