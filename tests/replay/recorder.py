"""A naive recorder of random episodes in Python lists: the truth that views are compared with.

It plays a fake vector environment (next-step autoreset, truncations, soft terminals), cuts it into
chunks, loses some, and remembers per column every stretch of rows that a store may know of.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch

from ludus.types import ArraySpec, Chunk, Discrete, EnvSpec, Rows


@dataclass
class Stretch:
    """Rows of one episode without a gap; frames has one more (the observation after the end)."""

    row: int  # absolute number of the first row within its column
    first: bool  # opens an episode (else it follows a lost chunk)
    frames: list = field(default_factory=list)  # ints, unique within the recording
    actions: list = field(default_factory=list)
    rewards: list = field(default_factory=list)
    discounts: list = field(default_factory=list)
    closed: bool = False  # ended or cut; an open stretch may still grow
    ended: bool = False  # ended by the environment

    def __len__(self):
        return len(self.actions)


@dataclass
class Column:
    """The environment's side, and the store's side of one slot."""

    frame: int = 0
    opens: bool = True  # the current frame is an episode's first
    dummy: bool = False  # the next action is ignored
    head: int = 0  # rows the store has been given, masked ones included
    has_next_obs: bool = False
    gap: bool = False
    open: Stretch | None = None
    stretches: list = field(default_factory=list)


def spec_of(stack: int, mask: bool = False) -> EnvSpec:
    return EnvSpec(
        "fake", ArraySpec((2,), "float32", stack=stack), Discrete(3), has_action_mask=mask
    )


class Recorder:
    def __init__(self, seed: int, columns: int, sources: int = 1, end: float = 0.15) -> None:
        self.rng = np.random.default_rng(seed)
        self.width = columns // sources
        self.columns = [Column() for _ in range(columns)]
        self.next = [0] * sources
        self.end, self.frames = end, 0

    def _frame(self) -> int:
        self.frames += 1
        return self.frames

    def chunk(self, steps: int, source: int = 0, lost: bool = False) -> Chunk:
        """T rows of one source; a lost chunk is played but never reaches the store."""
        mine = self.columns[source * self.width : (source + 1) * self.width]
        data = [self._play(c, steps, lost) for c in mine]

        def at(name, dtype):
            return torch.tensor(np.array([d[name] for d in data]).T.copy(), dtype=dtype)

        frames = at("frame", torch.float32)
        rows = Rows(
            obs=torch.stack((frames, -frames), -1),  # [T+1, B, 2]
            action=at("action", torch.int64),
            reward=at("reward", torch.float32),
            raw_reward=at("reward", torch.float32),
            discount=at("discount", torch.float32),
            last=at("last", torch.bool),
            first=at("first", torch.bool),
            mask=at("mask", torch.bool),
            extras={"state": frames[:-1] * 2, "noise": frames[:-1] * 3},
        )
        chunk = Chunk(rows, source, self.next[source])
        self.next[source] += 1
        return chunk

    def _play(self, c: Column, steps: int, lost: bool) -> dict:
        out: dict = {k: [] for k in ("frame", "action", "reward", "discount", "last", "mask")}
        out["first"] = []
        if c.frame == 0:
            c.frame = self._frame()
        if lost:
            c.gap = True  # the store learns of it when the next chunk comes
        elif c.gap:
            self.cut(c)
            c.gap = False
        if not lost and not c.has_next_obs and not c.dummy:
            c.open = Stretch(c.head, c.opens, [c.frame])
        for _ in range(steps):
            out["frame"].append(c.frame)
            out["first"].append(c.opens)
            row = self._row(c)
            for key, value in row.items():
                out[key].append(value)
            if not lost:
                self._record(c, row)
        out["frame"].append(c.frame)
        out["first"].append(c.opens)
        c.has_next_obs = c.has_next_obs or not lost
        return out

    def _row(self, c: Column) -> dict:
        """One step of the environment."""
        action = int(self.rng.integers(3))
        if c.dummy:
            c.dummy, c.opens, c.frame = False, True, self._frame()
            return {"action": action, "reward": 0.0, "discount": 1.0, "last": False, "mask": False}
        last = bool(self.rng.random() < self.end)
        over = last and self.rng.random() < 0.5
        soft = not last and self.rng.random() < 0.1  # a lost life: discount 0, the episode goes on
        c.opens, c.dummy, c.frame = False, last, self._frame()
        reward = float(np.float32(self.rng.normal()))
        discount = 0.0 if over or soft else 1.0
        return {
            "action": action, "reward": reward, "discount": discount, "last": last, "mask": True,
        }  # fmt: skip

    def _record(self, c: Column, row: dict) -> None:
        c.head += 1
        if not row["mask"]:
            c.open = Stretch(c.head, True, [c.frame])
            return
        s = c.open
        s.actions.append(row["action"])
        s.rewards.append(row["reward"])
        s.discounts.append(row["discount"])
        s.frames.append(c.frame)
        if len(s) == 1:
            c.stretches.append(s)
        if row["last"]:
            s.closed, s.ended, c.open = True, True, None

    def cut(self, c: Column) -> None:
        """The stream ends here: the store turns the observation after the newest row into a row."""
        if c.open is not None:
            c.open.closed = True
        c.open = None
        if c.has_next_obs:
            c.head += 1
        c.has_next_obs = False

    def restart(self) -> None:
        """A barrier: every environment starts a new episode, all streams are cut."""
        for c in self.columns:
            self.cut(c)
            c.frame, c.opens, c.dummy = self._frame(), True, False

    def items(self, span: int, length: int, history: int) -> dict:
        """id -> (stretch, t) of every row whose window is complete and still in the ring."""
        n, out = len(self.columns), {}
        for k, c in enumerate(self.columns):
            oldest = c.head + 1 + history - length
            for s in c.stretches:
                for t in range(len(s)):
                    complete = s.closed or t + span <= len(s)
                    if complete and s.row + t >= oldest:
                        out[(s.row + t) * n + k] = (s, t)
        return out


def stacked(s: Stretch, t: int, k: int) -> list:
    """The k newest frames at t, newest last, zeros before the first."""
    frames = [0] * (k - 1) + s.frames
    return frames[t : t + k]


def n_step(s: Stretch, t: int, n: int, gamma: float) -> tuple[float, float, int]:
    """Sum of rewards, discount, and where it bootstraps."""
    total, product = 0.0, 1.0
    end = min(t + n, len(s))
    for j in range(t, end):
        total += product * s.rewards[j]
        product *= gamma * s.discounts[j]
    return total, product, end
