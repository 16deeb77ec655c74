"""Collector: environments + `act` + its own generator -> chunks of rows. Learns nothing."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ludus import seeding
from ludus.collect.buffers import joined, known
from ludus.collect.frame_stack import FrameStacker
from ludus.collect.initial_priorities import FirstPriorities
from ludus.contract import Algorithm
from ludus.envs.adapter import Envs, EnvStep
from ludus.nets.normalize import normalizer_of
from ludus.types import (
    Before,
    Chunk,
    Ctx,
    EnvSpec,
    EpisodeEnd,
    Rows,
    Step,
    Tree,
    tree_leaves,
    tree_map,
)


def never() -> bool:
    return False


@dataclass
class Collected:
    """One chunk and what is worth knowing about it."""

    chunk: Chunk
    episodes: list[EpisodeEnd]
    env_seconds: float
    act_seconds: float
    process: int = field(default_factory=os.getpid)  # that collected it


@dataclass
class _Group:
    """One group of slots: the observation waiting for an action, and what came before it."""

    slots: slice
    state: Any
    step: Step
    rows: dict[str, np.ndarray] = field(default_factory=dict)


class Collector:
    """Steps every slot of `envs` with one policy. PULLS weights: `collect` is handed the net."""

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
    ) -> None:
        self.algorithm, self.envs, self.spec = algorithm, envs, envs.spec
        self.pipelined, self.precision = pipelined, precision
        self.seed, self.index, self.device = seed, index, torch.device(device)
        self.sequence = 0
        self.graph_seconds = 0.0  # spent on graphs of acting
        self.acting = "eager"
        self.ctx = Ctx(
            rng=torch.Generator(device=self.device), spec=self.spec, actor=index, slots=envs.num,
            seed=seed,
        )  # fmt: skip
        self.priorities: FirstPriorities | None = None
        if algorithm.plan.actor_priorities:
            self.priorities = FirstPriorities(
                algorithm, self.spec, seed=seed, index=index, device=self.device,
                precision=precision,
            )  # fmt: skip
        self.stackers = [FrameStacker(self.spec.obs, s.stop - s.start) for s in envs.groups]
        self.groups: list[_Group] = []
        self.ahead: Buffers | None = None  # pipelined: its row 0 is with the environments
        self.given_up = False  # so were the rows before the one under way
        self.fresh = True  # the next chunk follows a break in the stream
        self.remembers = False  # chunks say what was known before them, since some may be lost
        self.ended: list[EpisodeEnd] = []

    @property
    def capture_seconds(self) -> float:
        valued = self.priorities.capture_seconds if self.priorities is not None else 0.0
        return self.graph_seconds + valued

    @property
    def mode(self) -> str:
        """For the status: "captured", or "eager" and why; the same of first priorities."""
        if self.priorities is None or not self.priorities.why_eager:
            return self.acting
        return f"{self.acting}, first priorities eager: {self.priorities.why_eager}"

    def barrier(self, number: int) -> list[EpisodeEnd]:
        """Every slot starts a new episode and every generator is re-derived."""
        self.ctx.rng.manual_seed(seeding.stream_seed(self.seed, "act", self.index, number))
        cut = self.land()
        self.envs.reset(number)
        self.groups = []
        for g, slots in enumerate(self.envs.groups):
            first = self.envs.observe(g)
            cut += first.episodes
            n = slots.stop - slots.start
            self.ctx.slot = slots.start
            state = self.algorithm.begin(n, self.ctx)
            self.groups.append(_Group(slots, state, self._first_step(first, g, n)))
        if self.priorities is not None:
            self.priorities.barrier(number)
        self.fresh = True
        return self._told(cut)

    @torch.no_grad()
    def collect(
        self,
        net: nn.ModuleDict,
        rows: int,
        values: dict[str, Tensor],
        stopping: Callable[[], bool] = never,
    ) -> Collected | None:
        """`rows` rows of every slot, acted by `net`; None if told to stop before the last row.

        Pipelined, the environments are never idle: when the last row is in, the answers to it are
        on their way already, and become row 0 of the next chunk. So the first row of a chunk was
        acted by the net of the call before, the others by this one.
        """
        self.ctx.values = values
        lasting = self.envs.state()
        spent = Spent()
        whole = self._ahead if self.pipelined else self._drained
        out = whole(net, rows, stopping, spent)
        if out is None:
            self.envs.load(lasting)  # what a barrier would not undo
            return None
        before = joined(out.before) if out.before else None
        chunk = Chunk(out.rows(), self.index, self.sequence, 0, self.fresh, before=before)
        if self.priorities is not None:
            start = time.perf_counter()
            chunk = chunk._replace(priority=self.priorities.of(net, chunk, values))
            spent.act += time.perf_counter() - start
        self.sequence += 1
        self.fresh = False
        ended, self.ended = self.ended, []
        return Collected(chunk, self._told(ended), spent.env, spent.act)

    def _told(self, ended: list[EpisodeEnd]) -> list[EpisodeEnd]:
        """Episodes with what the algorithm says about their slots, such as its epsilon."""
        told = []
        for episode in ended:
            info = self.algorithm.env_info(episode.slot, self.ctx)
            told.append(episode._replace(info={**episode.info, **info}) if info else episode)
        return told

    def _drained(
        self, net: nn.ModuleDict, rows: int, stopping: Callable[[], bool], spent: Spent
    ) -> Buffers | None:
        """No answer is under way before or after."""
        out = self._buffers(rows)
        for g in range(len(self.groups)):
            self._open(g, out)
        for t in range(rows):
            for g in range(len(self.groups)):
                if t > 0:
                    self._receive(g, t - 1, out, spent)
                self._send(net, g, t, out, spent)
            if t < rows - 1 and stopping():
                self._abandon(t, out, spent)
                return None
        for g in range(len(self.groups)):
            self._receive(g, rows - 1, out, spent)
        return out

    def _ahead(
        self, net: nn.ModuleDict, rows: int, stopping: Callable[[], bool], spent: Spent
    ) -> Buffers | None:
        """One row of every group is always under way."""
        out, following = self.ahead, self._buffers(rows)
        if out is None:
            out = self._buffers(rows)
            for g in range(len(self.groups)):
                self._open(g, out)
                self._send(net, g, 0, out, spent)
        for t in range(rows):
            for g in range(len(self.groups)):
                self._receive(g, t, out, spent)
                if t + 1 < rows:
                    self._send(net, g, t + 1, out, spent)
                else:
                    self._open(g, following)
                    self._send(net, g, 0, following, spent)
            if t < rows - 1 and stopping():
                self.ahead, self.given_up = out, True
                self.ended, self.fresh = [], True
                return None
        self.ahead = following
        return out

    def land(self) -> list[EpisodeEnd]:
        """Take the answers that are under way and give their row up. Episodes that ended with it
        are still told, unless the rows before it were given up as well."""
        ended, self.ended = self.ended, []
        if self.ahead is not None:
            lasting = self.envs.state()
            for g in range(len(self.groups)):
                last = self.envs.recv(g).episodes
                ended += [] if self.given_up else last
            self.envs.load(lasting)  # what a barrier would not undo
            self.ahead = None
        self.given_up = False
        return ended

    def _abandon(self, t: int, out: Buffers, spent: Spent) -> None:
        """Give the rows so far up. Answers under way are taken, so that a barrier may follow."""
        for g in range(len(self.groups)):
            self._receive(g, t, out, spent)
        self.ended, self.fresh = [], True

    def _buffers(self, rows: int) -> Buffers:
        return Buffers(rows, self.spec, self.envs.num)

    def _open(self, g: int, out: Buffers) -> None:
        """Row 0 of the observations is what is waiting for an action already."""
        step = self.groups[g].step
        out.open(self.groups[g].slots, step, self.groups[g].state)
        if self.remembers:
            older = tree_map(
                lambda s, x: x[:, :-1] if s.stack > 1 else None, self.spec.obs, step.obs
            )
            out.before.append(known(tree_leaves(older), step.prev_action, step.prev_reward))

    def _send(self, net: nn.ModuleDict, g: int, t: int, out: Buffers, spent: Spent) -> None:
        start = time.perf_counter()
        action = self._act(net, g, t, out)
        done = time.perf_counter()
        self.envs.send(action, g)
        spent.act += done - start
        spent.env += time.perf_counter() - done

    def _act(self, net: nn.ModuleDict, g: int, t: int, out: Buffers) -> np.ndarray:
        group = self.groups[g]
        action, extras, group.state = self._answer(net, group.step, group.state)
        sent: np.ndarray = action.cpu().numpy()
        out.action[t, group.slots] = sent
        for name, value in extras.items():
            out.extra(name, value)[t, group.slots] = value.cpu().numpy()
        return sent

    def _answer(
        self, net: nn.ModuleDict, step: Step, state: Any
    ) -> tuple[Tensor, dict[str, Tensor], Any]:
        normalizer = normalizer_of(net)
        if normalizer is not None:
            step = step._replace(obs=normalizer.obs(step.obs))
        if self.precision == "fp32":
            return self.algorithm.act(net, step, state, self.ctx)
        with torch.autocast(self.device.type, torch.bfloat16, cache_enabled=False):
            return self.algorithm.act(net, step, state, self.ctx)

    def _receive(self, g: int, t: int, out: Buffers, spent: Spent) -> None:
        """Finish row t of a group with what its environments answered."""
        start = time.perf_counter()
        got = self.envs.recv(g)
        if got.episodes:
            self.ended.extend(got.episodes)
        self._finish_row(g, t, out, got)
        spent.env += time.perf_counter() - start

    def _finish_row(self, g: int, t: int, out: Buffers, got: EnvStep) -> None:
        group = self.groups[g]
        out.store(t, group.slots, got)
        frames = tree_map(lambda x: torch.from_numpy(x[t + 1, group.slots]), out.obs)
        group.step = self._step(
            self.stackers[g].push(frames, got.first),
            got,
            torch.from_numpy(out.action[t, group.slots]),
        )

    def _first_step(self, got: EnvStep, g: int, n: int) -> Step:
        frames = tree_map(lambda x: torch.from_numpy(x), got.obs)
        action = torch.zeros((n, *self.spec.action_shape), dtype=self.spec.action_dtype)
        return self._step(self.stackers[g].push(frames, got.first), got, action)

    def _step(self, obs: Tree, got: EnvStep, action: Tensor) -> Step:
        mask = got.action_mask
        step = Step(
            obs,
            torch.from_numpy(got.first),
            torch.from_numpy(got.dummy),
            action,
            torch.from_numpy(got.reward),
            torch.from_numpy(got.raw_reward),
            torch.from_numpy(got.last),
            None if mask is None else torch.from_numpy(mask),
        )
        if self.device.type == "cpu":
            return step
        moved: list[Any] = [f if f is None else tree_map(self._move, f) for f in step]
        return Step(*moved)

    def _move(self, x: Tensor) -> Tensor:
        return x.to(self.device, non_blocking=True)

    def close(self) -> None:
        self.envs.close()


@dataclass
class Spent:
    """Seconds."""

    env: float = 0.0
    act: float = 0.0


class Buffers:
    """The arrays of one chunk, [T, N, ...] and [T+1, N, ...]; new, so a store may keep them."""

    def __init__(self, rows: int, spec: EnvSpec, n: int) -> None:
        self.count, self.n, self.spec = rows, n, spec
        self.states: list[Any] = []
        self.before: list[Before] = []  # of each group
        self.extras: dict[str, Any] = {}
        self.obs = tree_map(lambda s: np.empty((rows + 1, n, *s.shape), s.dtype), spec.obs)
        kind = np.float32 if spec.action_dtype == torch.float32 else np.int64
        self.action: Any = np.empty((rows, n, *spec.action_shape), kind)
        self.reward = np.empty((rows, n), np.float32)
        self.raw_reward = np.empty((rows, n), np.float32)
        self.discount = np.empty((rows, n), np.float32)
        self.last = np.empty((rows, n), bool)
        self.mask = np.empty((rows, n), bool)
        self.first = np.empty((rows + 1, n), bool)
        self.action_mask = (
            np.empty((rows + 1, n, spec.mask_width), bool) if spec.has_action_mask else None
        )

    def open(self, slots: slice, step: Step, state: Any) -> None:
        self.states.append(state)
        for out, leaf, s in zip(
            tree_leaves(self.obs), tree_leaves(step.obs), tree_leaves(self.spec.obs), strict=True
        ):
            newest = leaf[:, -1] if s.stack > 1 else leaf
            out[0, slots] = newest.cpu().numpy()
        self.first[0, slots] = step.first.cpu().numpy()
        if self.action_mask is not None and step.action_mask is not None:
            self.action_mask[0, slots] = step.action_mask.cpu().numpy()

    def extra(self, name: str, like: Tensor) -> Any:
        if name not in self.extras:
            kind = torch.empty(0, dtype=like.dtype).numpy().dtype
            self.extras[name] = np.empty((self.count, self.n, *like.shape[1:]), kind)
        return self.extras[name]

    def store(self, t: int, slots: slice, got: EnvStep) -> None:
        for out, leaf in zip(tree_leaves(self.obs), tree_leaves(got.obs), strict=True):
            out[t + 1, slots] = leaf
        self.store_flags(t, slots, got)

    def store_flags(self, t: int, slots: slice, got: EnvStep) -> None:
        self.reward[t, slots] = got.reward
        self.raw_reward[t, slots] = got.raw_reward
        self.discount[t, slots] = got.discount
        self.last[t, slots] = got.last
        self.mask[t, slots] = got.mask
        self.first[t + 1, slots] = got.first
        if self.action_mask is not None:
            self.action_mask[t + 1, slots] = got.action_mask

    def rows(self) -> Rows:
        wrap, states = torch.from_numpy, self.states
        state = states[0] if len(states) == 1 else tree_map(lambda *x: torch.cat(x), *states)
        return Rows(
            tree_map(wrap, self.obs),
            wrap(self.action),
            wrap(self.reward),
            wrap(self.raw_reward),
            wrap(self.discount),
            wrap(self.last),
            wrap(self.first),
            wrap(self.mask),
            None if self.action_mask is None else wrap(self.action_mask),
            {k: wrap(v) for k, v in self.extras.items()},
            state,
        )
