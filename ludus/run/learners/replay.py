"""The replays of all learners in one checkpoint: each learner packs its own, the first writes them.

Segments of learner 1 have names that begin with `learner1-`; those of the first have no prefix.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Any

import numpy as np

from ludus.run.learners.loop import GroupLoop
from ludus.run.loop import Loop
from ludus.run.replay_state import ReplayFiles, Segments
from ludus.settings.sections import Switch
from ludus.track.checkpoint.writer import Segment

Arrays = dict[str, np.ndarray[Any, Any]]


@dataclass(frozen=True)
class PartReader:
    """The segments of one learner among those of a checkpoint."""

    reader: Segments
    prefix: str

    @property
    def names(self) -> tuple[str, ...]:
        mine = (name for name in self.reader.names if _prefix_of(name) == self.prefix)
        return tuple(name.removeprefix(self.prefix) for name in mine)

    def load(self, name: str, limit: int | None = None) -> Arrays:
        return self.reader.load(f"{self.prefix}{name}", limit)


@dataclass(frozen=True)
class ReceivedReader:
    """Segments that came from the first learner."""

    arrays: Mapping[str, Arrays]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.arrays)

    def load(self, name: str, limit: int | None = None) -> Arrays:
        return self.arrays[name]


class PartReplay(ReplayFiles):
    """The replay of another learner, which reads and writes no file."""

    def pack_arrays(self, linkable: Set[str]) -> tuple[list[tuple[str, Any]] | None, Any]:
        parts, state = self.pack(linkable)
        return (None if parts is None else [(part.name, part.arrays) for part in parts]), state

    def restore_arrays(self, arrays: Mapping[str, Arrays] | None, state: dict[str, Any]) -> None:
        self.restore(None if arrays is None else ReceivedReader(arrays), state)


class GroupReplayFiles(ReplayFiles):
    """The replays of all learners."""

    def __init__(self, loop: GroupLoop, save: Switch, bytes_: int) -> None:
        super().__init__(loop.store, save, bytes_)
        self.loop = loop
        self._missing = 0  # rows that the other learners collect again

    @property
    def _members(self) -> Any:
        assert self.loop.members is not None
        return self.loop.members

    @property
    def missing(self) -> int:
        return super().missing + self._missing

    def pack(self, linkable: Set[str]) -> tuple[list[Segment] | None, dict[str, Any]]:
        """If a learner has gone, no replay is saved: a resumed run collects it again."""
        members = self._members
        known = [_own(linkable, _prefix(rank)) for rank in members.ranks]
        answers = members.ask("pack", known)
        lost = any(answer is None for answer in answers)
        saves, self.saves = self.saves, self.saves and not lost
        parts, state = super().pack(_own(linkable, ""))
        self.saves = saves
        if lost:  # the counters of the first learner are close to its own
            return None, state | {"learners": [a[1] if a else state for a in answers]}
        state = state | {"learners": [answer[1] for answer in answers]}
        for rank, (arrays, _) in zip(members.ranks, answers, strict=True):
            if parts is not None:
                parts += [Segment(_prefix(rank) + name, part) for name, part in arrays]
        return parts, state

    def restore(self, reader: Segments | None, state: dict[str, Any]) -> None:
        members = self._members
        super().restore(None if reader is None else PartReader(reader, ""), state)
        sent = []
        for rank, own in zip(members.ranks, state["learners"], strict=True):
            part = None if reader is None else PartReader(reader, _prefix(rank))
            limit = None  # each learner's own
            arrays = None if part is None else {n: part.load(n, limit) for n in part.names}
            sent.append((arrays, own))
        self._missing = sum(members.ask("restore", sent))

    def metrics(self) -> dict[str, float]:
        """The size of all; means of the other numbers."""
        parts = [super().metrics(), *self.loop.replay_metrics]
        found = {k: sum(part.get(k, 0.0) for part in parts) for k in parts[0]}
        return {k: v if k == "size" else v / len(parts) for k, v in found.items()}


def replay_files(loop: Loop, save: Switch, bytes_: int) -> ReplayFiles:
    """The replay of a run, of one learner or of several."""
    if isinstance(loop, GroupLoop):
        return GroupReplayFiles(loop, save, bytes_)
    return ReplayFiles(loop.store, save, bytes_)


def _prefix(rank: int) -> str:
    return f"learner{rank}-"


def _prefix_of(name: str) -> str:
    return f"{name.partition('-')[0]}-" if name.startswith("learner") else ""


def _own(names: Set[str], prefix: str) -> frozenset[str]:
    return frozenset(name.removeprefix(prefix) for name in names if _prefix_of(name) == prefix)
