"""Which rows of the ring may be drawn (`Items`, `Starts`), and what the learner sees of them:
n-step transitions, sequences and frame stacks, built by index arithmetic when it samples.

The views run on numpy arrays (ring on the CPU) and on tensors (ring on a device) alike; `Items` and
`Starts` see flags only and work on the host.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ludus.contract import NStep, Sequence
from ludus.replay.native.bindings import WIDE, Columns, Reading, Scratch, Stacks, pick
from ludus.replay.storage.ring import Array, Numbers, Ring, allocate, tensor
from ludus.types import (
    ORIGIN,
    EnvSpec,
    Traj,
    Transition,
    Tree,
    tree_leaves,
    tree_map,
    tree_paths,
    tree_unflatten,
)

Flags = Numbers  # of bools


class Tail(NamedTuple):
    """The newest rows of a source whose windows may still be open, [<= span - 1, B]."""

    stop: Flags  # the row ends its episode or its stream
    candidate: Flags  # an item may start here
    decided: Flags  # whether its item is drawable is known
    opens: Flags | None = None  # the row opens an episode; known where `least` is above 1


class Items:
    """An item at row t reads rows t .. t+span-1, or up to the first `stop` row among them.

    It may be drawn once that window and the observation after it are written, and if the window
    has at least `least` rows, or opens an episode.
    """

    def __init__(self, span: int, least: int = 1) -> None:
        self.span, self.least = span, least
        self.tails: dict[int, Tail] = {}

    def extend(
        self, source: int, stop: Flags, candidate: Flags, opens: Flags | None = None
    ) -> tuple[int, Flags]:
        """Add T rows. Returns how many older rows are looked at again, k, and for those and the
        new ones whether an item became drawable just now, [k + T, B]."""
        if self.span == 1:
            return 0, candidate
        tail = self.tails.get(source)
        decided = np.zeros_like(stop)
        k = 0
        if tail is not None:
            k = len(tail.stop)
            stop = np.concatenate((tail.stop, stop))
            candidate = np.concatenate((tail.candidate, candidate))
            decided = np.concatenate((tail.decided, decided))
            if opens is not None:
                known = np.zeros_like(tail.stop) if tail.opens is None else tail.opens
                opens = np.concatenate((known, opens))
        rows = len(stop)
        at = np.arange(rows)[:, None]
        ends = np.where(stop, at, rows)[::-1]
        end = np.minimum.accumulate(ends, 0)[::-1]  # the first stop at or after each row
        done = (end < rows) | (at + self.span <= rows)
        fresh = done & ~decided & candidate
        if opens is not None:
            fresh &= (np.minimum(end + 1 - at, self.span) >= self.least) | opens
        keep = max(0, rows - self.span + 1)
        kept = None if opens is None else opens[keep:].copy()
        self.tails[source] = Tail(stop[keep:], candidate[keep:].copy(), done[keep:], kept)
        return k, fresh

    def cut(self, source: int, cut: Flags) -> None:
        """The newest row turned out to be the last of its stream where `cut` [B]."""
        if source in self.tails and len(self.tails[source].stop):
            self.tails[source].stop[-1] |= cut


class Starts:
    """Where sequences start, and the recurrent state kept for those rows only.

    A start is every `period`-th row counted from an episode's first; states live in a ring of their
    own, so a start leaves when its row is overwritten or when its state is.
    """

    def __init__(self, period: int, ring: Ring) -> None:
        self.period, self.ring = period, ring
        n, slots = ring.num_envs, ring.layout.starts
        self.age = np.zeros(n, np.int64)  # rows since the episode's first, per environment
        self.count = np.zeros(n, np.int64)  # starts so far, per environment
        self.row = np.full((max(slots, 1), n), -1, np.int64)  # the row of each state
        self.states: dict[str, Tensor] = {
            name: allocate((slots, n, *f.shape), f.dtype, ring.device)
            for name, f in ring.layout.states.items()
        }

    def mark(self, begin: Flags, mask: Flags, env: int) -> Flags:
        """Which of T new rows are starts, [T, B]."""
        age = self.age[env : env + begin.shape[1]]
        out = np.zeros_like(mask)
        for t in range(len(mask)):
            age[begin[t]] = 0
            out[t] = mask[t] & (age % self.period == 0)
            age += 1
        return out

    def keep(
        self, starts: Flags, row: int, env: int, extras: dict[str, Tensor]
    ) -> list[tuple[int, int]]:
        """Store the state of each start; returns the (row, env) of starts pushed out."""
        number = np.full(starts.shape, -1, np.int64)
        evicted = []
        for t, b in zip(*np.nonzero(starts), strict=True):
            c = env + b
            number[t, b] = self.count[c]
            slot = int(self.count[c]) % len(self.row)
            if self.row[slot, c] >= 0:
                evicted.append((int(self.row[slot, c]), int(c)))
            self.row[slot, c] = row + t
            for name, table in self.states.items():
                table[slot, c] = extras[name][t, b]
            self.count[c] += 1
        self.ring.write("start", row, env, self.ring.index(number))
        return evicted

    def read(self, name: str, env: int, lo: int, hi: int) -> Tensor:
        """States of starts lo .. hi-1 of an environment."""
        slots = torch.arange(lo, hi) % len(self.row)
        return self.states[name][slots, env].cpu()


class Reader:
    """Observations and extras of flat slots."""

    def __init__(self, ring: Ring, spec: EnvSpec) -> None:
        self.ring, self.spec = ring, spec
        self.xp: Any = np if ring.on_host else torch
        self.n, self.slots = ring.num_envs, ring.layout.slots
        self.obs_fields = list(zip(tree_paths(spec.obs), tree_leaves(spec.obs), strict=True))
        self.plain = self.obs_fields == [("obs", spec.obs)] and spec.obs.stack == 1
        # Stacked leaves whose frames are large and in host memory.
        self.wide = {
            path
            for path, leaf in self.obs_fields
            if ring.on_host and leaf.stack > 1 and ring.layout.fields[path].row_bytes >= WIDE
        }
        self.extras = [
            (name.removeprefix("extras."), name)
            for name in ring.layout.extras
            if name != "extras.priority"
        ]
        self.has_action_mask = spec.has_action_mask
        self._scratch = Scratch()
        self._stacks: dict[tuple[str, int], Stacks] = {}

    def observe(self, slots: Array) -> Tree:
        """Observations as the network sees them, [*slots.shape, ...]."""
        if self.plain:
            return self._rows("obs", slots)
        leaves = [self._leaf(path, slots, spec.stack) for path, spec in self.obs_fields]
        return tree_unflatten(self.spec.obs, leaves)

    def pair(self, slots: Array, after: Array) -> Callable[[], tuple[Tree, Tree]]:
        """Observations of rows and of the rows after them, in the slots `after`. Call the result to
        get them; threads copy in the meantime.

        Large frames on the host are copied once for both, and the two overlap in memory: with
        stacks of 4 that is 5 frames in place of 8.
        """
        if not self.wide:
            return self.both(slots, after)
        path, spec = next((p, s) for p, s in self.obs_fields if p in self.wide)
        started = self._of(path, spec.stack + 1).begin(after)  # helpers take one at a time
        return lambda: self._finish_pair(slots, after, path, started)

    def both(self, slots: Array, after: Array) -> Callable[[], tuple[Tree, Tree]]:
        """As `pair`, for rows at any distance."""
        return lambda: (self.observe(slots), self.observe(after))

    def _finish_pair(
        self, slots: Array, after: Array, first: str, started: Reading
    ) -> tuple[Tree, Tree]:
        one, two = [], []
        for path, spec in self.obs_fields:
            if path in self.wide:
                begun = started if path == first else self._of(path, spec.stack + 1).begin(after)
                found, opened = begun.finish()
                if opened:  # then the two stacks differ in more than one frame
                    return self.observe(slots), self.observe(after)
                frames = torch.from_numpy(found)
                one.append(frames[:, :-1])
                two.append(frames[:, 1:])
            else:
                one.append(self._leaf(path, slots, spec.stack))
                two.append(self._leaf(path, after, spec.stack))
        return tree_unflatten(self.spec.obs, one), tree_unflatten(self.spec.obs, two)

    def _of(self, path: str, k: int) -> Stacks:
        if (path, k) not in self._stacks:
            self._stacks[path, k] = Stacks(self.ring, path, k, self._scratch)
        return self._stacks[path, k]

    def _read(self, path: str, slots: Array, k: int) -> Tensor:
        return torch.from_numpy(self._of(path, k).begin(slots).finish()[0])

    def _rows(self, path: str, slots: Array) -> Tensor:
        if self.ring.on_host and self.ring.layout.fields[path].row_bytes >= WIDE:
            return self._read(path, slots, 1)
        return tensor(self.ring.rows(path, slots))

    def _leaf(self, path: str, slots: Array, k: int) -> Tensor:
        if k == 1:
            return self._rows(path, slots)
        return self._read(path, slots, k) if self.ring.on_host else self._stack(path, slots, k)

    def _stack(self, path: str, slots: Tensor, k: int) -> Tensor:
        """As `Stacks`, on a device, without asking whether a frame is missing: the host would have
        to wait for the answer."""
        begin = self.ring.flat["begin"]
        at, alive, before = [slots], [], None
        for _ in range(k - 1):
            opened = pick(begin, at[-1])
            before = opened if before is None else before | opened
            alive.append(~before)
            at.append((at[-1] - self.n) % self.slots)
        index = torch.stack(at[::-1], -1)  # [..., k]
        frames: Tensor = pick(self.ring.flat[path], index)
        kept = torch.stack(alive[::-1], -1)  # [..., k-1]
        _blank(frames.narrow(kept.dim() - 1, 0, k - 1), kept)
        return frames

    def masks(self, slots: Array) -> Tensor | None:
        if not self.has_action_mask:
            return None
        return self._rows("action_mask", slots)

    def extra(self, slots: Array) -> dict[str, Tensor]:
        return {short: self._rows(name, slots) for short, name in self.extras}


class NStepView:
    """R = sum_j (prod_{i<j} gamma d_i) r_j over k rows; k = n, or fewer at a stop.

    discount = prod over the k rows of gamma d_i; the bootstrap is the observation after row k-1.
    """

    def __init__(self, view: NStep, ring: Ring, spec: EnvSpec) -> None:
        self.ring, self.gamma, self.n = ring, view.gamma, view.n
        self.reader = Reader(ring, spec)
        self.xp = self.reader.xp
        offsets = np.arange(view.n)[:, None] * ring.num_envs
        self.offsets = ring.index(offsets)
        # Longer windows add rewards and discounts up instead.
        sums = ["reward", "discount"] if view.n == 1 else []
        self.names = ["action", "version", *sums, *(name for _, name in self.reader.extras)]
        self.read = Columns(ring, self.names).read

    def gather(self, slots: Array) -> Transition:
        return self.begin(slots)()

    def begin(self, slots: Array) -> Callable[[], Transition]:
        """Start to read; call the result to get the batch. Threads copy frames in the meantime."""
        reader = self.reader
        if self.n == 1:
            after = slots + self.ring.num_envs
            after %= self.ring.layout.slots
            observations = reader.pair(slots, after)
        else:
            reward, discount, after = self._accumulate(slots)
            after %= self.ring.layout.slots
            observations = reader.both(slots, after)
        small = dict(zip(self.names, self.read(slots), strict=True))
        if self.n == 1:
            reward, discount = small["reward"], small["discount"] * self.gamma
        action, masks = tensor(small["action"]), (reader.masks(slots), reader.masks(after))
        extras = {short: tensor(small[name]) for short, name in reader.extras}
        sums = tensor(reward), tensor(discount)
        origin = self.ring.origin.fields(slots % self.ring.num_envs, small["version"])

        def finish() -> Transition:
            obs, next_obs = observations()
            return Transition(obs, action, *sums, next_obs, *masks, extras, *origin)

        return finish

    def _accumulate(self, slots: Array) -> tuple[Array, Array, Array]:
        flat, where = self.ring.flat, self.xp.where
        index = (slots + self.offsets) % self.ring.layout.slots  # [n, B]
        reward = pick(flat["reward"], index)
        factor = pick(flat["discount"], index) * self.gamma
        alive = (~pick(flat["stop"], index[:-1])).cumprod(0) > 0  # [n-1, B], of rows 1..n-1
        factor[1:] = where(alive, factor[1:], 1.0)
        factor = factor.cumprod(0)
        reward = reward[0] + where(alive, reward[1:] * factor[:-1], 0.0).sum(0)
        return reward, factor[-1], slots + (1 + alive.sum(0)) * self.ring.num_envs


class SequenceView:
    """burn_in + length rows from a start row on; after the episode's end zeros with mask=False.

    Rows of the burn-in keep their data and have mask=False; a start that opens its episode has
    none. `last` is also True before a stream break, so that traces are cut there.
    """

    def __init__(self, view: Sequence, ring: Ring, spec: EnvSpec) -> None:
        self.ring, self.reader = ring, Reader(ring, spec)
        self.steps = view.burn_in + view.length
        self.offsets = ring.index(np.arange(self.steps + 1)[:, None] * ring.num_envs)
        self.early: Tensor | None = None  # [T, 1] rows of the burn-in
        if view.burn_in:
            self.early = tensor(ring.index(np.arange(self.steps)[:, None] < view.burn_in))
        self.states: dict[str, Tensor] = {}  # name -> [starts, N, ...], shared with the store

    def begin(self, slots: Array) -> Callable[[], Traj]:
        """As `NStepView.begin`, but all is read at the end."""
        return lambda: self.gather(slots)

    def gather(self, slots: Array) -> Traj:
        flat, reader = self.ring.flat, self.reader
        index = (slots + self.offsets) % self.ring.layout.slots  # [T+1, B]
        rows = index[:-1]
        stop = tensor(pick(flat["stop"], rows))
        real = torch.ones(index.shape, dtype=torch.bool, device=stop.device)  # [T+1, B]
        real[2:] = (~stop[:-1]).cumprod(0) > 0
        held, seen = real[1:], real  # row t is real iff observation t+1 is seen
        action = _blank(tensor(pick(flat["action"], rows)), held)
        reward = _blank(tensor(pick(flat["reward"], rows)), held)
        first = torch.zeros(index.shape, dtype=torch.bool, device=stop.device)
        first[0] = tensor(pick(flat["first"], slots))
        opened = ~tensor(self.ring.rows("begin", slots))
        before = (slots - self.ring.num_envs) % self.ring.layout.slots
        masks = reader.masks(index)
        burn_in = None if self.early is None else self.early & ~first[0]
        env, version = slots % self.ring.num_envs, self.ring.rows("version", slots)
        origin = dict(zip(ORIGIN, self.ring.origin.fields(env, version), strict=True))
        return Traj(
            obs=tree_map(lambda x: _blank(x, seen), reader.observe(index)),
            action=action,
            reward=reward,
            discount=_blank(tensor(pick(flat["discount"], rows)), held),
            last=stop & held,
            first=first,
            mask=held if burn_in is None else held & ~burn_in,
            action_mask=None if masks is None else masks | ~seen[..., None],
            extras={k: _blank(v, held) for k, v in reader.extra(rows).items()},
            state=self._state(slots),
            prev_action=_shift(_blank(tensor(pick(flat["action"], before)), opened), action),
            prev_reward=_shift(_blank(tensor(pick(flat["reward"], before)), opened), reward),
            burn_in=burn_in,
            **origin,
        )

    def _state(self, slots: Array) -> Tree:
        """The state stored at the start: a tensor, or a dict by the part after `state.`."""
        if not self.states:
            return ()
        start = tensor(pick(self.ring.flat["start"], slots))  # number of the start
        env = tensor(slots) % self.ring.num_envs
        found = {k: v[start % v.shape[0], env] for k, v in self.states.items()}
        return found["state"] if "state" in found else {k[6:]: v for k, v in found.items()}


def _blank(x: Tensor, keep: Tensor) -> Tensor:
    """Zeros where not `keep`; x may have more dimensions."""
    return x.masked_fill_(~keep.reshape(*keep.shape, *([1] * (x.dim() - keep.dim()))), 0)


def _shift(before: Tensor, x: Tensor) -> Tensor:
    return torch.cat((before[None], x))
