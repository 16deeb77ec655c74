"""The fixed binary layout of a chunk: named arrays, in shared memory or in one array of bytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

from ludus.process.shared_tensors import Place, places_of, view_of
from ludus.types import (
    Before,
    Chunk,
    EnvSpec,
    Extras,
    Rows,
    flat_rows,
    numpy_dtype,
    row_fields,
    tree_leaves,
    tree_map,
    unflatten_rows,
)  # fmt: skip

Bytes: TypeAlias = np.ndarray[Any, np.dtype[np.uint8]]


class Head(NamedTuple):
    """The numbers of a chunk; see `Chunk`."""

    sequence: int
    version: int
    breaks: bool


@dataclass(frozen=True)
class ChunkLayout:
    """The arrays of a chunk of `rows` rows of `n` environments."""

    spec: EnvSpec
    state: Any  # an example of the actor state, for its tree, shapes and dtypes
    names: tuple[str, ...]  # of row fields
    fields: dict[str, tuple[tuple[int, ...], np.dtype[Any]]]  # shape, dtype

    @classmethod
    def of(
        cls,
        spec: EnvSpec,
        extras: Extras,
        state: Any,
        rows: int,
        n: int,
        *,
        valued: int = 0,
        before: bool = False,
    ) -> ChunkLayout:
        """Lay out the arrays. `valued`: number of rows with a first priority, see `Chunk.priority`.
        `before`: include `Chunk.before`."""
        fields = row_fields(spec, extras)
        shapes: dict[str, tuple[tuple[int, ...], np.dtype[Any]]] = {
            name: ((rows + f.ahead, n, *f.shape), numpy_dtype(f.dtype))
            for name, f in fields.items()
        }
        if before:
            shapes["before.action"] = ((n, *spec.action_shape), numpy_dtype(spec.action_dtype))
            shapes["before.reward"] = ((n,), np.dtype(np.float32))
            for i, leaf in enumerate(tree_leaves(spec.obs)):
                shapes[f"before.{i}"] = ((leaf.stack - 1, n, *leaf.shape), np.dtype(leaf.dtype))
        if valued:
            shapes["priority"] = ((valued, n), np.dtype(np.float32))
        for i, leaf in enumerate(tree_leaves(state)):
            shapes[f"state.{i}"] = (tuple(leaf.shape), numpy_dtype(leaf.dtype))
        return cls(spec, state, tuple(fields), shapes)

    def zeros(self) -> dict[str, np.ndarray[Any, Any]]:
        """New arrays for one chunk."""
        return {name: np.zeros(*field) for name, field in self.fields.items()}

    def write(self, chunk: Chunk, out: Mapping[str, np.ndarray[Any, Any]]) -> None:
        rows = chunk.rows
        leaves = flat_rows(rows)
        leaves |= {f"state.{i}": leaf for i, leaf in enumerate(tree_leaves(rows.state))}
        if chunk.priority is not None:
            leaves["priority"] = chunk.priority
        if chunk.before is not None:
            leaves |= {f"before.{i}": frames for i, frames in enumerate(chunk.before.frames)}
            leaves["before.action"] = chunk.before.action
            leaves["before.reward"] = chunk.before.reward
        for name, place in out.items():
            if place.size:  # there may be no older frames
                place[...] = leaves[name].detach().cpu().numpy()

    def read(self, arrays: Mapping[str, np.ndarray[Any, Any]], *, copy: bool) -> Rows:
        """Return rows that share this memory, or a copy."""

        def wrap(name: str) -> Tensor:
            tensor = torch.from_numpy(arrays[name])
            return tensor.clone() if copy else tensor

        numbers = iter(range(len(tree_leaves(self.state))))
        # Always copy the state: a queue may keep it longer than the rows.
        state = tree_map(
            lambda _: torch.from_numpy(arrays[f"state.{next(numbers)}"]).clone(), self.state
        )
        flat = {name: wrap(name) for name in self.names}
        return Rows(**unflatten_rows(flat, self.spec), state=state)

    def chunk(
        self, arrays: Mapping[str, np.ndarray[Any, Any]], source: int, head: Head, *, copy: bool
    ) -> Chunk:
        """Return the chunk that `write` wrote; its rows share this memory, or are a copy."""
        valued = arrays.get("priority")
        priority = None if valued is None else torch.from_numpy(valued.copy())
        rows = self.read(arrays, copy=copy)
        return Chunk(rows, source, *head, priority, self.read_before(arrays))

    def pack(self, chunk: Chunk) -> Bytes:
        """Copy a chunk into one array of bytes."""
        packed = np.zeros(self._places[1], np.uint8)
        self.write(chunk, self.arrays(packed))
        return packed

    def arrays(self, packed: Bytes) -> dict[str, np.ndarray[Any, Any]]:
        """Return the arrays in a packed chunk; they share its memory."""
        places, size = self._places
        if packed.shape != (size,) or packed.dtype != np.uint8:
            raise ValueError(f"a chunk has {size} bytes, this one {packed.nbytes}")
        return {name: view_of(packed, place) for name, place in places.items()}

    @cached_property
    def _places(self) -> tuple[dict[str, Place], int]:
        return places_of(self.fields)

    @property
    def remembers(self) -> bool:
        return "before.action" in self.fields

    def read_before(self, arrays: Mapping[str, np.ndarray[Any, Any]]) -> Before | None:
        """Return a copy of `Chunk.before`, if the layout includes it."""
        if not self.remembers:
            return None

        def own(name: str | int) -> Tensor:
            return torch.from_numpy(arrays[f"before.{name}"].copy())

        frames = tuple(own(i) for i in range(len(tree_leaves(self.spec.obs))))
        return Before(frames, own("action"), own("reward"))
