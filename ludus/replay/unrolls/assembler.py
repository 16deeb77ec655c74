"""Chunks into unrolls: joins or cuts them to `length` rows and forms frame stacks across chunks.

Per source it keeps the rows that do not fill an unroll yet.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ludus.types import (
    HERE,
    ORIGIN,
    Before,
    Chunk,
    EnvSpec,
    Rows,
    Traj,
    Tree,
    map_rows,
    tree_leaves,
    tree_map,
)


def stack_frames(frames: Tensor, begin: Tensor, k: int, skip: int) -> Tensor:
    """[H+T, B, ...] single frames -> [T, B, k, ...] stacks of the rows from `skip` = H on.

    Newest last; zeros before a frame with begin=True, and before the first frame given.
    """
    total = frames.shape[0]
    out = frames.new_zeros((total - skip, frames.shape[1], k, *frames.shape[2:]))
    alive = torch.ones_like(begin[skip:])
    for j in range(k):  # j frames back
        lo = max(0, j - skip)  # rows whose frame is not in hand stay zero
        source = frames[skip + lo - j : total - j]
        keep = alive[lo:].reshape(*alive[lo:].shape, *([1] * (source.dim() - 2)))
        out[lo:, :, k - 1 - j] = torch.where(keep, source, source.new_zeros(()))
        alive[lo:] &= ~begin[skip + lo - j : total - j]
    return out


def join(trajs: Sequence[Traj]) -> Traj:
    """Columns of several unrolls side by side."""
    return map_rows(lambda _, *x: torch.cat(x, 1), *trajs)._replace(
        **_map_items(lambda *x: torch.cat(x), *trajs)
    )


def narrow(traj: Traj, lo: int, hi: int) -> Traj:
    """Columns [lo, hi) of an unroll."""
    return map_rows(lambda _, x: x[:, lo:hi], traj)._replace(**_map_items(lambda x: x[lo:hi], traj))


def _map_items(fn: Callable[..., Tensor], *trajs: Traj) -> dict[str, Any]:
    """Apply `fn` to the fields that have one entry for each column: state and origin."""
    columns = {name: [getattr(t, name) for t in trajs] for name in ("state", *ORIGIN)}
    return {k: tree_map(fn, *values) for k, values in columns.items() if values[0] is not None}


class _Pending:
    """Rows of one source beyond its last whole unroll, and frames before them for stacks."""

    def __init__(self) -> None:
        self.rows: list[Rows] = []
        self.steps = 0
        self.version = 0  # of the weights that acted in the oldest of these rows
        self.frames: list[Tensor | None] = []  # per leaf [<= stack-1, B, ...]
        self.begin: Tensor | None = None  # [<= stack-1, B]
        self.prev: tuple[Tensor, Tensor] | None = None  # action and reward of the row before
        self.sequence: int | None = None

    def recall(self, before: Before) -> None:
        """Start from the actor's own frames, because the chunk before was lost. They are zero
        where an episode had just begun, so none of them begins one."""
        longest = max(before.frames, key=len)
        self.frames = [x if len(x) else None for x in before.frames]
        self.begin = torch.zeros(longest.shape[:2], dtype=torch.bool, device=longest.device)
        self.prev = before.action, before.reward


class Assembler:
    def __init__(self, spec: EnvSpec, length: int) -> None:
        self.spec, self.length = spec, length
        self.stacks = [s.stack for s in tree_leaves(spec.obs)]
        self.pending: dict[int, _Pending] = {}
        self.origin = HERE

    def reset(self) -> None:
        """Streams are cut: drop incomplete unrolls and the frames before them."""
        for source, p in self.pending.items():
            fresh = _Pending()
            fresh.sequence = p.sequence
            self.pending[source] = fresh

    def add(self, chunk: Chunk) -> list[Traj]:
        """The unrolls that this chunk completes, oldest first."""
        p = self.pending.setdefault(chunk.source, _Pending())
        if p.sequence is not None and (chunk.breaks or chunk.sequence != p.sequence + 1):
            p = self.pending[chunk.source] = _Pending()
        p.sequence = chunk.sequence
        if p.begin is None and not p.rows and chunk.before is not None:
            p.recall(chunk.before)
        if not p.rows:
            p.version = chunk.version
        p.rows.append(_together(chunk.rows))
        p.steps += chunk.rows.reward.shape[0]
        out = []
        while p.steps >= self.length:
            rows = p.rows[0] if len(p.rows) == 1 else _concat(p.rows)
            made = self._unroll(p, _cut(rows, 0, self.length))
            out.append(self._with_origin(made, chunk.source, p.version))
            p.version = chunk.version  # only rows of this chunk are left
            p.steps -= self.length
            p.rows = []
            if p.steps:
                if tree_leaves(rows.state):
                    raise ValueError("actor state is known at chunk starts: choose chunk=length")
                p.rows = [_cut(rows, self.length, self.length + p.steps)]
        return out

    def _unroll(self, p: _Pending, rows: Rows) -> Traj:
        leaves, old = tree_leaves(rows.obs), p.frames or [None] * len(self.stacks)
        first = rows.first
        begin = first.clone()
        if p.begin is None:
            begin[0] = True
        flags = begin if p.begin is None else torch.cat((p.begin, begin))
        seen: list[Tensor] = []
        p.frames = []
        for leaf, k, before in zip(leaves, self.stacks, old, strict=True):
            if k == 1:
                seen.append(leaf)
                p.frames.append(None)
                continue
            frames = leaf if before is None else torch.cat((before, leaf))
            skip = frames.shape[0] - leaf.shape[0]
            seen.append(stack_frames(frames, flags[flags.shape[0] - frames.shape[0] :], k, skip))
            p.frames.append(frames[:-1][-(k - 1) :].clone())  # the newest opens the next unroll
        keep = max(self.stacks)
        p.begin = flags[:-1][-(keep - 1) :].clone() if keep > 1 else flags[:0]
        it = iter(seen)
        action, reward = self._previous(p, rows)
        obs: Tree = tree_map(lambda _: next(it), self.spec.obs)
        return Traj(
            obs, rows.action, rows.reward, rows.discount, _ends(rows), first, rows.mask,
            rows.action_mask, rows.extras, rows.state, action, reward,
        )  # fmt: skip

    def _with_origin(self, traj: Traj, source: int, version: int) -> Traj:
        width, device = traj.reward.shape[1], traj.reward.device
        env = torch.arange(source * width, (source + 1) * width, device=device)
        feed, env, version_ = self.origin.fields(env, torch.full_like(env, version))
        return traj._replace(feed=feed, env=env, version=version_)

    def _previous(self, p: _Pending, rows: Rows) -> tuple[Tensor, Tensor]:
        """Action and reward of the row before each observation; zero where an episode opens."""
        if p.prev is None:
            p.prev = torch.zeros_like(rows.action[0]), torch.zeros_like(rows.reward[0])
        action = torch.cat((p.prev[0][None], rows.action))
        reward = torch.cat((p.prev[1][None], rows.reward))
        p.prev = rows.action[-1], rows.reward[-1]
        open_ = rows.first.reshape(*rows.first.shape, *([1] * (action.dim() - 2)))
        return action.masked_fill_(open_, 0), reward.masked_fill_(rows.first, 0)


def _ends(rows: Rows) -> Tensor:
    """Rows after which nothing follows. An environment that failed leaves a dummy row without a
    `last` before it: the row before bootstraps from the observation that was there."""
    last = rows.last.clone()
    last[:-1] |= rows.mask[:-1] & ~rows.mask[1:]
    return last


def _together(rows: Rows) -> Rows:
    """All on the observations' device; a collector there leaves flags and rewards on the host."""
    device = tree_leaves(rows.obs)[0].device
    if device.type == "cpu":
        return rows
    moved: list[Any] = [
        x if x is None else tree_map(lambda t: t.to(device, non_blocking=True), x) for x in rows
    ]
    return Rows(*moved)


def _cut(rows: Rows, lo: int, hi: int) -> Rows:
    """Rows [lo, hi) and the observation after them."""
    if lo == 0 and hi == rows.reward.shape[0]:
        return rows
    part = map_rows(lambda ahead, x: x[lo : hi + ahead], rows)
    return part if lo == 0 else part._replace(state=())


def _concat(parts: list[Rows]) -> Rows:
    """Consecutive rows of one source. The observation between two chunks is in both."""

    def join_in_time(ahead: bool, *values: Tensor) -> Tensor:
        return torch.cat([*(v[:-1] for v in values[:-1]), values[-1]] if ahead else values)

    return map_rows(join_in_time, *parts)
