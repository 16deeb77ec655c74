"""Replay of unrolls: drawn uniformly with replacement, overwritten where the inserter says.

Replay ratio, generator and checkpoints as in replay_store.py. An item is a whole unroll: this is
for algorithms that correct for stale actions or tolerate them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from ludus.contract import Plan, Unroll
from ludus.replay.checkpoint import Segment
from ludus.replay.replay_store import PacedStore, ReplayRatio
from ludus.replay.samplers.device import DeviceSampler
from ludus.replay.samplers.uniform import Ranking, UniformSampler
from ludus.replay.unrolls.assembler import Assembler
from ludus.replay.unrolls.storage import UnrollColumns, unroll_columns
from ludus.seeding import generator
from ludus.types import HERE, Chunk, EnvSpec, Origin, Sample, Traj

Json = dict[str, Any]
Numbers = np.ndarray[Any, Any]  # [n] int64


class Inserter(Protocol):
    """Picks the columns that new unrolls overwrite. It sees no data."""

    def pick(self, count: int, rng: torch.Generator) -> Numbers:
        """Numbers for `count` new unrolls, all different. Empty columns come first, in order."""

    def state(self) -> dict[str, int]:
        """The numbers that `load` needs to continue."""

    def load(self, state: dict[str, int]) -> None: ...


class FifoInserter:
    """Ring order: the oldest goes."""

    def __init__(self, columns: int) -> None:
        self.columns, self.at = columns, 0

    def pick(self, count: int, rng: torch.Generator) -> Numbers:
        assert count <= self.columns, "more unrolls at once than the store holds"
        chosen: Numbers = (self.at + np.arange(count)) % self.columns
        self.at = (self.at + count) % self.columns
        return chosen

    def state(self) -> dict[str, int]:
        return {"at": self.at}

    def load(self, state: dict[str, int]) -> None:
        self.at = int(state["at"])


class UnrollRing(PacedStore):
    """ids are serial * columns + column, the serial counting unrolls in the order of arrival."""

    beta, full = 0.0, False
    sampler: UniformSampler | DeviceSampler

    def __init__(
        self,
        plan: Plan,
        spec: EnvSpec,
        num_envs: int,
        *,
        seed: int,
        device: str | torch.device = "cpu",
        inserter: Inserter | None = None,
        on_device: bool | None = None,
        origin: Origin = HERE,
    ) -> None:
        assert isinstance(plan.view, Unroll)
        self.plan, self.seed, self.device = plan, seed, torch.device(device)
        count = unroll_columns(plan, num_envs)
        self.columns = UnrollColumns(spec, count, self.device)
        self.assembler = Assembler(spec, plan.view.length)
        self.inserter = inserter or FifoInserter(count)
        if on_device if on_device is not None else self.device.type != "cpu":
            self.sampler = DeviceSampler(None, count, self.device)
        else:
            self.sampler = UniformSampler(count, self.device)
        self.ratio = ReplayRatio(plan.replay_ratio, plan.warmup)
        self.count_on(self.device, 0, plan.view.length)  # dummies train nothing
        self.assembler.origin = origin
        self.serial = np.full(count, -1, np.int64)  # of the unroll in each column
        self.added = 0  # unrolls; the next serial
        self.reseed(0)

    @property
    def capacity(self) -> int:
        """In unrolls."""
        return len(self.serial)

    @property
    def fill(self) -> float:
        return self.size / self.capacity

    @property
    def rows(self) -> int:
        """Steps (mask=True) held."""
        return int(self.columns.tensors["mask"][:, self._held()].sum()) if self.size else 0

    def _held(self) -> Tensor:
        return torch.from_numpy(np.flatnonzero(self.serial >= 0)).to(self.device)

    def add(self, chunk: Chunk) -> None:
        for traj in self.assembler.add(chunk):
            self._insert(traj)
        self.ratio.insert(int(chunk.rows.mask.sum()))

    def _insert(self, traj: Traj) -> None:
        count = traj.reward.shape[1]
        chosen = self.inserter.pick(count, self.rng)
        self.columns.put(traj, torch.from_numpy(chosen))
        self.serial[chosen] = np.arange(self.added, self.added + count)
        self.added += count
        yes = np.ones(count, bool)
        self.sampler.put(chosen, yes, yes, None)

    def sample(self, items: int | None = None) -> Sample:
        assert self.size > 0, "nothing to draw: ask ready() first"
        # Empty columns are filled first and in order, so the drawable ones are the first ones.
        draw = self.sampler.draw(items or self.plan.batch, self.rng, self.size)
        batch = self.gather(draw.slots)
        self.ratio.samples_drawn += int(batch.mask.sum())
        columns = draw.slots.cpu()
        ids = torch.from_numpy(self.serial)[columns] * self.capacity + columns
        return Sample(batch, ids.to(self.device), self.sampler.weights(draw.value, self.beta))

    def gather(self, slots: Tensor) -> Traj:
        return self.columns.take(slots)

    def feedback(self, ids: Tensor, priority: Tensor) -> None:
        """Uniform sampling has no use for priorities."""

    def rank(self, ids: Tensor, features: Tensor) -> None:
        """The features of unrolls, for a sampler that needs them."""
        columns = ids.cpu() % self.capacity
        current = torch.from_numpy(self.serial)[columns] == ids.cpu() // self.capacity
        if current.any() and isinstance(self.sampler, Ranking):
            self.sampler.rank(columns[current], features[current.to(features.device)])

    def break_streams(self) -> None:
        """Drop rows that do not fill an unroll yet; whole unrolls stay."""
        self.assembler.reset()

    def reseed(self, barrier: int) -> None:
        self.rng = generator(self.seed, "sampler", self.assembler.origin.feed, barrier)
        if isinstance(self.sampler, DeviceSampler):  # in place: a graph may know this one
            self.sampler.rng.manual_seed(self.rng.initial_seed())
            self.rng = self.sampler.rng

    def state(self) -> tuple[dict[str, Tensor], Json]:
        """All but the unrolls. Rows that wait for the rest of theirs are not in it either: a
        resumed stream never continues the old one."""
        self.read_count()
        tensors, numbers = self.sampler.state()
        tensors |= {"rng": self.rng.get_state(), "serial": torch.from_numpy(self.serial.copy())}
        return tensors, {
            "columns": self.capacity,
            **self.ratio.state(),
            "added": self.added,
            "sampler": numbers,
            "inserter": self.inserter.state(),
            "state": self.columns.shape(),
        }

    def load(self, tensors: dict[str, Tensor], numbers: Json) -> None:
        """The inverse of `state`; the unrolls come through `restore`."""
        if numbers["columns"] != self.capacity:
            raise ValueError(f"saved replay is {numbers['columns']} unrolls, not {self.capacity}")
        self.sampler.load(tensors, numbers["sampler"])
        self.serial[:] = tensors["serial"].numpy()
        self.inserter.load(numbers["inserter"])
        self.columns.load_shape(numbers["state"])
        self.forget(tensors, numbers)

    def forget(self, tensors: dict[str, Tensor], numbers: Json) -> None:
        """Generator and counters go on; the unrolls stay as they are."""
        if self.rng.get_state().shape == tensors["rng"].shape:  # else of another device
            self.rng.set_state(tensors["rng"])
        self.added = int(numbers["added"])
        self.ratio.load(numbers)
        self.drop_count()
        self.assembler.reset()

    def marker(self) -> Json:
        return {"added": self.added}

    def new_rows_since(self, since: Json | None) -> Segment:
        """The unrolls that came after the marker (None: ever) and are still here."""
        lo = int(since["added"]) if since else 0
        new = np.flatnonzero(self.serial >= lo)
        columns = torch.from_numpy(new)
        tensors = {k: v.cpu() for k, v in self.columns.read(columns).items()}
        meta = {"unrolls": [lo, self.added]}
        return Segment(tensors | {"column": columns}, meta)

    def is_live(self, meta: Json) -> bool:
        """Whether a segment taken earlier still holds an unroll that is here."""
        lo, hi = meta["unrolls"]
        return bool(((self.serial >= lo) & (self.serial < hi)).any())

    def restore(self, segments: Sequence[Segment]) -> None:
        """Write segments, oldest first, into a store of the same size. `load` follows."""
        for tensors, _ in segments:
            fields = dict(tensors)
            columns = fields.pop("column")
            if len(columns):
                self.columns.write(fields, columns)
