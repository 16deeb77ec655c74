"""Collector: environments and a policy runner, to chunks of rows. Learns nothing."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ludus import seeding
from ludus.collect.initial_priorities import FirstPriorities
from ludus.collect.policy_runner import HostRunner, PolicyRunner, RowBuffers, join_groups
from ludus.contract import ActorState, Algorithm, lasting_state, overrides
from ludus.envs.adapter import Envs
from ludus.types import Chunk, Ctx, EpisodeEnd, tree_leaves, tree_map, tree_paths, tree_unflatten


def never() -> bool:
    return False


@dataclass
class Collected:
    """One chunk, the episodes that ended in it, and the time it took."""

    chunk: Chunk
    episodes: list[EpisodeEnd]
    env_seconds: float
    act_seconds: float
    process: int = field(default_factory=os.getpid)  # that collected it


@dataclass
class _Seconds:
    env: float = 0.0
    act: float = 0.0


class Collector:
    """Steps all environments of `envs` with one policy. PULLS weights: `collect` is handed the net.

    `runner` says where the policy runs: HostRunner, or what `choose_runner` returns.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        envs: Envs,
        *,
        seed: int,
        index: int = 0,
        device: torch.device | str = "cpu",
        pipelined: bool = False,
        precision: str = "fp32",
        runner: Callable[..., PolicyRunner] = HostRunner,
    ) -> None:
        self.algorithm, self.envs, self.spec = algorithm, envs, envs.spec
        self.pipelined, self.seed, self.index = pipelined, seed, index
        device = torch.device(device)
        self.ctx = Ctx(
            torch.Generator(device=device), self.spec, actor=index, num_envs=envs.num, seed=seed
        )
        self.runner = runner(algorithm, envs, self.ctx, device=device, precision=precision)
        self.priorities: FirstPriorities | None = None
        if algorithm.plan.actor_priorities:
            self.priorities = FirstPriorities(
                algorithm, self.spec, seed=seed, index=index, device=device, precision=precision,
                captured=self.runner.captured, must_capture=self.runner.must_capture,
            )  # fmt: skip
        self._groups = range(len(envs.groups))
        self._informs = overrides(algorithm, "env_info")
        self._begun = False  # the runner has actor states
        self._loaded: Mapping[str, np.ndarray] = {}  # lasting state for the next barrier
        self.sequence = 0
        self.ahead: RowBuffers | None = None  # pipelined: the actions of its row 0 are sent already
        self.dropped = False  # pipelined: the rows before the pending one
        self.fresh = True  # the next chunk follows a break in the stream
        self.ended: list[EpisodeEnd] = []

    @property
    def capture_seconds(self) -> float:
        more = self.priorities.capture_seconds if self.priorities is not None else 0.0
        return self.runner.capture_seconds + more

    @property
    def mode(self) -> str:
        """For the status: "captured", or "eager" and why; the same of first priorities."""
        if self.priorities is None or not self.priorities.why_eager:
            return self.runner.mode
        return f"{self.runner.mode}, first priorities eager: {self.priorities.why_eager}"

    def barrier(self, number: int) -> list[EpisodeEnd]:
        """Every environment starts a new episode and every generator is re-derived."""
        self.ctx.rng.manual_seed(seeding.stream_seed(self.seed, "act", self.index, number))
        cut = self.drain()
        self.envs.reset(number)
        for g, part in enumerate(self.envs.groups):
            first = self.envs.observe(g)
            self.ctx.env = part.start
            begun = self._begin(g)
            cut += self._with_env_info(g, first.episodes, None if self._begun else begun)
            self.runner.reset(g, first, begun)
        self._begun, self._loaded = True, {}
        if self.priorities is not None:
            self.priorities.barrier(number)
        self.fresh = True
        return cut

    def _begin(self, g: int) -> Any:
        """The state of a group that starts new episodes; its lasting part goes on."""
        part = self.envs.groups[g]
        begun = self.algorithm.begin(part.stop - part.start, self.ctx)
        if not isinstance(begun, ActorState):
            return begun
        lasting = lasting_state(self.runner.state(g)) if self._begun else begun.lasting
        names = tree_paths(begun.lasting, "lasting")
        leaves = [
            torch.as_tensor(self._loaded[name][part]).to(like) if name in self._loaded else like
            for name, like in zip(names, tree_leaves(lasting), strict=True)
        ]
        return begun._replace(lasting=tree_unflatten(begun.lasting, leaves))

    def state(self) -> dict[str, np.ndarray]:
        """The state that survives a barrier: that of the environments, and the algorithm's lasting
        state as `lasting...` [num_envs, ...]."""
        groups = [lasting_state(self.runner.state(g)) for g in self._groups]
        names = tree_paths(groups[0], "lasting")
        leaves = zip(*(tree_leaves(lasting) for lasting in groups), strict=True)
        joined = [torch.cat(parts).cpu().numpy().copy() for parts in leaves]
        return self.envs.state() | dict(zip(names, joined, strict=True)) | dict(self._loaded)

    def load_state(self, state: Mapping[str, np.ndarray]) -> None:
        """Load what `state` returned. The next barrier begins with its lasting state."""
        self.envs.load(dict(state))
        self._loaded = {k: v for k, v in state.items() if k.split(".")[0] == "lasting"}

    @torch.no_grad()
    def collect(
        self,
        net: nn.ModuleDict,
        rows: int,
        values: dict[str, Tensor],
        stopping: Callable[[], bool] = never,
    ) -> Collected | None:
        """`rows` rows of every environment, acted by `net`; None if stopped before the last row.

        Pipelined, the environments are never idle: when the last row is in, the actions that follow
        it are sent already, and become row 0 of the next chunk. So the first row of a chunk was
        acted by the net of the previous call, the others by this one.
        """
        self.ctx.values = values
        rewards = self.envs.state()
        spent = _Seconds()
        collect = self._collect_pipelined if self.pipelined else self._collect_in_turns
        out = collect(net, rows, stopping, spent)
        if out is None:
            self.envs.load(rewards)  # a barrier would not undo it
            return None
        before = join_groups(out.before)
        chunk = Chunk(out.rows(), self.index, self.sequence, 0, self.fresh, before=before)
        if self.priorities is not None:
            start = time.perf_counter()
            chunk = chunk._replace(priority=self.priorities.of(net, chunk, values))
            spent.act += time.perf_counter() - start
        self.sequence += 1
        self.fresh = False
        ended, self.ended = self.ended, []
        return Collected(chunk, ended, spent.env, spent.act)

    def _with_env_info(
        self, g: int, ended: list[EpisodeEnd], state: Any = None
    ) -> list[EpisodeEnd]:
        """Episodes of a group with what the algorithm says about their environments, such as its
        epsilon, and about their actor state: as it is now, or `state`."""
        if not ended or not self._informs:
            return ended
        state = self.runner.state(g) if state is None else state
        first, out = self.envs.first_env + self.envs.groups[g].start, []
        for episode in ended:
            own = tree_map(lambda x, i=episode.env - first: x[i], state)
            info = self.algorithm.env_info(episode.env, own, self.ctx)
            out.append(episode._replace(info={**episode.info, **info}) if info else episode)
        return out

    def _collect_in_turns(
        self, net: nn.ModuleDict, rows: int, stopping: Callable[[], bool], spent: _Seconds
    ) -> RowBuffers | None:
        """Before and after, no environment has an action pending."""
        out = self.runner.buffers(rows)
        for g in self._groups:
            self.runner.open(g, out)
        for t in range(rows):
            for g in self._groups:
                if t > 0:
                    self._receive(net, g, t - 1, out, spent)
                self._send(net, g, t, out, spent)
            if t < rows - 1 and stopping():
                for g in self._groups:  # so that a barrier may follow
                    self._receive(net, g, t, out, spent)
                self.runner.undo(out)
                self.ended, self.fresh = [], True
                return None
        for g in self._groups:
            self._receive(net, g, rows - 1, out, spent)
        return out

    def _collect_pipelined(
        self, net: nn.ModuleDict, rows: int, stopping: Callable[[], bool], spent: _Seconds
    ) -> RowBuffers | None:
        """Every group always has actions pending."""
        out, following = self.ahead, self.runner.buffers(rows)
        if out is None:
            out = self.runner.buffers(rows)
            for g in self._groups:
                self.runner.open(g, out)
                self._send(net, g, 0, out, spent)
        for t in range(rows):
            for g in self._groups:
                self._receive(net, g, t, out, spent)
                if t + 1 < rows:
                    self._send(net, g, t + 1, out, spent)
                else:
                    self.runner.open(g, following)
                    self._send(net, g, 0, following, spent)
            if t < rows - 1 and stopping():
                self.runner.undo(out)
                self.ahead, self.dropped = out, True
                self.ended, self.fresh = [], True
                return None
        self.ahead = following
        return out

    def drain(self) -> list[EpisodeEnd]:
        """Receive what is pending and drop its row. Returns the episodes that ended with it, unless
        the rows before it were dropped as well."""
        ended, self.ended = self.ended, []
        if self.ahead is not None:
            rewards = self.envs.state()
            for g in self._groups:
                last = self.envs.recv(g).episodes
                ended += [] if self.dropped else self._with_env_info(g, last)
            self.envs.load(rewards)  # a barrier would not undo it
            self.runner.undo(self.ahead)
            self.ahead = None
        self.dropped = False
        return ended

    def _send(self, net: nn.ModuleDict, g: int, t: int, out: RowBuffers, spent: _Seconds) -> None:
        start = time.perf_counter()
        action = self.runner.act(net, g, t, out)
        done = time.perf_counter()
        self.envs.send(action, g)
        spent.act += done - start
        spent.env += time.perf_counter() - done

    def _receive(
        self, net: nn.ModuleDict, g: int, t: int, out: RowBuffers, spent: _Seconds
    ) -> None:
        """Finish row t of a group with what its environments return."""
        start = time.perf_counter()
        got = self.envs.recv(g)
        self.runner.receive(g, t, out, got)
        done = time.perf_counter()
        spent.env += done - start
        if self.runner.follows:
            self.runner.follow(net, g, t, out)
            spent.act += time.perf_counter() - done
        if got.episodes:
            self.ended += self._with_env_info(g, got.episodes)

    def close(self) -> None:
        self.envs.close()
