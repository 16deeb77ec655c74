"""Collector: environments + `act` + its own generator -> chunks of rows. Learns nothing."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ludus import seeding
from ludus.contract import Algorithm
from ludus.envs.adapter import Envs, EnvStep
from ludus.nets.normalize import normalizer_of
from ludus.run.stacker import FrameStacker
from ludus.types import Chunk, Ctx, EpisodeEnd, Rows, Step, Tree, tree_leaves, tree_map


def never() -> bool:
    return False


@dataclass
class Collected:
    """One chunk and what is worth knowing about it."""

    chunk: Chunk
    episodes: list[EpisodeEnd]
    env_seconds: float
    act_seconds: float


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
    ) -> None:
        self.algorithm, self.envs, self.spec = algorithm, envs, envs.spec
        self.seed, self.index, self.device = seed, index, torch.device(device)
        self.sequence = 0
        self.ctx = Ctx(rng=torch.Generator(device=self.device), spec=self.spec, actor=index)
        self.stackers = [FrameStacker(self.spec.obs, s.stop - s.start) for s in envs.groups]
        self.groups: list[_Group] = []
        self.fresh = True  # the next chunk follows a break in the stream
        self.ended: list[EpisodeEnd] = []

    def barrier(self, number: int) -> list[EpisodeEnd]:
        """Every slot starts a new episode and every generator is re-derived."""
        self.ctx.rng.manual_seed(seeding.stream_seed(self.seed, "act", self.index, number))
        self.envs.reset(number)
        self.groups, cut = [], []
        for g, slots in enumerate(self.envs.groups):
            first = self.envs.observe(g)
            cut += first.episodes
            n = slots.stop - slots.start
            state = self.algorithm.begin(n, self.ctx)
            self.groups.append(_Group(slots, state, self._first_step(first, g, n)))
        self.fresh = True
        return cut

    @torch.no_grad()
    def collect(
        self,
        net: nn.ModuleDict,
        rows: int,
        values: dict[str, Tensor],
        stopping: Callable[[], bool] = never,
    ) -> Collected | None:
        """`rows` rows of every slot, acted by `net`; None if told to stop before the last row."""
        self.ctx.values = values
        out = _Buffers(rows, self)
        env_seconds = act_seconds = 0.0
        clock = time.perf_counter
        states, lasting = tuple(g.state for g in self.groups), self.envs.state()
        for t in range(rows):
            for g, group in enumerate(self.groups):
                start = clock()
                if t > 0:
                    self._receive(g, t - 1, out)
                mark = clock()
                env_seconds += mark - start
                action = self._act(net, group, out, t)
                done = clock()
                act_seconds += done - mark
                self.envs.send(action, g)
                env_seconds += clock() - done
            if t < rows - 1 and stopping():
                self._abandon(t, out)
                self.envs.load(lasting)  # what a barrier would not undo
                return None
        start = clock()
        for g in range(len(self.groups)):
            self._receive(g, rows - 1, out)
        env_seconds += clock() - start
        chunk = Chunk(out.rows(states), self.index, self.sequence, 0, self.fresh)
        self.sequence += 1
        self.fresh = False
        ended, self.ended = self.ended, []
        return Collected(chunk, ended, env_seconds, act_seconds)

    def _abandon(self, t: int, out: _Buffers) -> None:
        """Give the rows so far up. Answers under way are taken, so that a barrier may follow."""
        for g in range(len(self.groups)):
            self._receive(g, t, out)
        self.ended, self.fresh = [], True

    def _act(self, net: nn.ModuleDict, group: _Group, out: _Buffers, t: int) -> np.ndarray:
        step = group.step
        normalizer = normalizer_of(net)
        if normalizer is not None:
            step = step._replace(obs=normalizer.obs(step.obs))
        action, extras, group.state = self.algorithm.act(net, step, group.state, self.ctx)
        sent: np.ndarray = action.cpu().numpy()
        out.action[t, group.slots] = sent
        for name, value in extras.items():
            out.extra(name, value)[t, group.slots] = value.cpu().numpy()
        return sent

    def _receive(self, g: int, t: int, out: _Buffers) -> None:
        """Finish row t of a group with what its environments answered."""
        group = self.groups[g]
        got = self.envs.recv(g)
        out.store(t, group.slots, got)
        if got.episodes:
            self.ended.extend(got.episodes)
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


class _Buffers:
    """The arrays of one chunk, [T, N, ...] and [T+1, N, ...]; new, so a store may keep them."""

    def __init__(self, rows: int, collector: Collector) -> None:
        spec, n = collector.spec, collector.envs.num
        self.count, self.n = rows, n
        self.obs = tree_map(lambda s: np.empty((rows + 1, n, *s.shape), s.dtype), spec.obs)
        kind = np.float32 if spec.action_dtype == torch.float32 else np.int64
        self.action = np.empty((rows, n, *spec.action_shape), kind)
        self.reward = np.empty((rows, n), np.float32)
        self.raw_reward = np.empty((rows, n), np.float32)
        self.discount = np.empty((rows, n), np.float32)
        self.last = np.empty((rows, n), bool)
        self.mask = np.empty((rows, n), bool)
        self.first = np.empty((rows + 1, n), bool)
        self.action_mask = (
            np.empty((rows + 1, n, spec.mask_width), bool) if spec.has_action_mask else None
        )
        self.extras: dict[str, np.ndarray] = {}
        for group in collector.groups:
            self._open(group.slots, group.step, spec)

    def _open(self, slots: slice, step: Step, spec: Any) -> None:
        """Row 0 of the observations is what is waiting for an action already."""
        for out, leaf, s in zip(
            tree_leaves(self.obs), tree_leaves(step.obs), tree_leaves(spec.obs), strict=True
        ):
            newest = leaf[:, -1] if s.stack > 1 else leaf
            out[0, slots] = newest.cpu().numpy()
        self.first[0, slots] = step.first.cpu().numpy()
        if self.action_mask is not None and step.action_mask is not None:
            self.action_mask[0, slots] = step.action_mask.cpu().numpy()

    def extra(self, name: str, like: Tensor) -> np.ndarray:
        if name not in self.extras:
            kind = torch.empty(0, dtype=like.dtype).numpy().dtype
            self.extras[name] = np.empty((self.count, self.n, *like.shape[1:]), kind)
        return self.extras[name]

    def store(self, t: int, slots: slice, got: EnvStep) -> None:
        for out, leaf in zip(tree_leaves(self.obs), tree_leaves(got.obs), strict=True):
            out[t + 1, slots] = leaf
        self.reward[t, slots] = got.reward
        self.raw_reward[t, slots] = got.raw_reward
        self.discount[t, slots] = got.discount
        self.last[t, slots] = got.last
        self.mask[t, slots] = got.mask
        self.first[t + 1, slots] = got.first
        if self.action_mask is not None:
            self.action_mask[t + 1, slots] = got.action_mask

    def rows(self, states: tuple[Any, ...]) -> Rows:
        wrap = torch.from_numpy
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
