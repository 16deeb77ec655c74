"""Converts gymnasium spaces to an EnvSpec, and observations and actions between the two.

Knows nothing about episodes. Observation leaves stay uint8 (the network scales them) or become
float32; other integers are scaled here by the bounds of their space.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

import numpy as np
from gymnasium import spaces

from ludus.envs.config import IntegerScale
from ludus.errors import LudusError
from ludus.types import (
    ActionSpec,
    ArraySpec,
    Continuous,
    Discrete,
    MultiDiscrete,
    Tree,
    tree_leaves,
    tree_map,
    tree_paths,
)

EXACT = 2**24  # float32 holds every integer up to here
_WIDE = 2**53  # the same for float64


@dataclass(frozen=True, eq=False)
class Scaling:
    """(x - low) / span by element, before anything is rounded to float32."""

    low: Array  # 0 where the space has no bounds
    span: Array  # 1 where the space has no bounds
    bounded: bool  # every element has bounds

    def __call__(self, values: Array) -> Array:
        scaled: Array = (values.astype(self.low.dtype) - self.low) / self.span
        return scaled

    @property
    def exact(self) -> bool:
        """Whether float32 can represent every integer between the bounds."""
        return not self.bounded or float(self.span.max(initial=1)) <= EXACT


def explain_rounding(path: str) -> tuple[str, str]:
    """(problem, fix) for an observation whose scaling is not exact."""
    what = f"{path}: float32 cannot tell apart all integers between its bounds"
    return what, "declare tighter low and high, or split the number in a wrapper"


def byte_bounds(space: spaces.Box, how: IntegerScale) -> tuple[float, float] | None:
    """The bytes that a network sees as 0 and 1; None where they differ by element."""
    if how == "bytes":
        return 0.0, 255.0
    if how == "none" or space.low.size == 0:
        return 0.0, 1.0
    if np.ptp(space.low) or np.ptp(space.high):
        return None
    low, high = float(space.low.flat[0]), float(space.high.flat[0])
    return low, max(high, low + 1)


def scaling_of(space: spaces.Box, how: IntegerScale) -> Scaling | None:
    """The scaling of a box of integers; None: no scaling."""
    dtype = np.dtype(space.dtype)
    if dtype.kind not in "iu" or how == "bytes":
        return None
    bounded = _bounded(space, dtype) if how == "bounds" else np.zeros(space.shape, bool)
    largest = max((abs(int(v)) for b in (space.low, space.high) for v in b[bounded]), default=0)
    number = np.longdouble if largest > _WIDE else np.float64
    low: Array = np.where(bounded, space.low, 0).astype(number)
    high: Array = np.where(bounded, space.high, 1).astype(number)
    span: Array = np.maximum(high - low, 1)
    if dtype.itemsize <= 2 and not low.any() and (span == 1).all():
        return None  # the identity, exact in float32
    return Scaling(low, span, bool(bounded.all()))


def _bounded(space: spaces.Box, dtype: np.dtype[Any]) -> Array:
    """Which elements have bounds. The limits of a type of 32 bits or more do not count."""
    bounded: Array = space.bounded_below & space.bounded_above
    if dtype.itemsize >= 4:
        limits = np.iinfo(dtype)
        bounded = bounded & (space.high < limits.max)
        if dtype.kind == "i":
            bounded = bounded & (space.low > limits.min)
    return bounded


SMALLEST_IMAGE = 8  # pixels per side; anything smaller is not an image
Array: TypeAlias = np.ndarray[Any, Any]
AnySpace: TypeAlias = spaces.Space[Any]


@dataclass(frozen=True)
class Leaf:
    """How one leaf of an observation is read from the environment and written to its buffer."""

    path: str
    spec: ArraySpec
    kind: Literal["box", "onehot"]
    given_shape: tuple[int, ...]
    given_dtype: np.dtype[Any]
    keys: tuple[Any, ...]  # path from the observation to this leaf
    offsets: tuple[int, ...] = ()  # first column of each one-hot part, less its smallest value
    lows: tuple[int, ...] = ()
    highs: tuple[int, ...] = ()
    scaling: Scaling | None = None  # of integers


@dataclass(frozen=True)
class _Reading:
    """The settings for observations."""

    layout: str
    stack: int
    integers: IntegerScale


def _layout(shape: tuple[int, ...], dtype: np.dtype[Any], wanted: str) -> str | None:
    if len(shape) == 2 and dtype == np.uint8 and min(shape) >= SMALLEST_IMAGE:
        return "hw"
    if len(shape) != 3:
        return None
    if wanted != "auto":
        return wanted
    # The shorter of the two sides has the channels; on a tie, the last, as in gymnasium.
    layout, sides = ("chw", shape[1:]) if shape[0] < shape[2] else ("hwc", shape[:2])
    return layout if min(sides) >= SMALLEST_IMAGE else None


def _bound(values: Array, pick: str) -> float | None:
    if values.size == 0:
        return None
    value = float(getattr(values, pick)())
    return value if np.isfinite(value) else None


def _box_leaf(space: spaces.Box, path: str, keys: tuple[Any, ...], how: _Reading) -> Leaf:
    assert space.dtype is not None
    dtype = np.dtype(space.dtype)
    spec = ArraySpec(
        shape=tuple(int(n) for n in space.shape),
        low=_bound(space.low, "min"),
        high=_bound(space.high, "max"),
        stack=how.stack,
        layout=_layout(space.shape, dtype, how.layout),
    )
    scale = byte_bounds(space, how.integers) if dtype == np.uint8 else None
    if scale is not None:
        return Leaf(path, replace(spec, dtype="uint8", scale=scale), "box", spec.shape, dtype, keys)
    scaling = scaling_of(space, how.integers)
    if scaling is not None and how.integers == "bounds":
        low, high = (0.0, 1.0) if scaling.bounded else (None, None)
        spec = replace(spec, low=low, high=high, rounded=not scaling.exact)
    return Leaf(path, spec, "box", spec.shape, dtype, keys, scaling=scaling)


def _leaf(space: AnySpace, path: str, keys: tuple[Any, ...], how: _Reading) -> Leaf:
    if isinstance(space, spaces.Box):
        return _box_leaf(space, path, keys, how)
    given: tuple[int, ...]
    if isinstance(space, spaces.Discrete):
        counts, starts, given = [int(space.n)], [int(space.start)], ()
    elif isinstance(space, spaces.MultiDiscrete):
        counts = [int(n) for n in space.nvec.flatten()]
        starts = [int(n) for n in space.start.flatten()]
        given = tuple(space.nvec.shape)
    elif isinstance(space, spaces.MultiBinary):
        # Already zeros and ones, so read as a box.
        spec = ArraySpec(shape=tuple(space.shape), low=0.0, high=1.0, stack=how.stack)
        return Leaf(path, spec, "box", spec.shape, np.dtype(np.int8), keys)
    else:
        raise LudusError(
            "E204",
            f"observation {path} is a {type(space).__name__}, which no network here can read",
            where=f"observation space: {space}",
            why="supported: Box, Discrete, MultiDiscrete, MultiBinary, and Dict or Tuple of these",
            fix="convert it in a gymnasium wrapper and name that in  env.wrappers",
        )
    offsets = np.concatenate([[0], np.cumsum(counts)[:-1]]) - starts
    spec = ArraySpec(shape=(sum(counts),), low=0.0, high=1.0, stack=how.stack)
    return Leaf(
        path,
        spec,
        "onehot",
        given,
        np.dtype(np.int64),
        keys,
        tuple(int(o) for o in offsets),
        tuple(starts),
        tuple(s + c for s, c in zip(starts, counts, strict=True)),
    )


def _tree(space: AnySpace, how: _Reading, path: str = "obs", keys: tuple[Any, ...] = ()) -> Tree:
    if isinstance(space, spaces.Dict):
        return {k: _tree(s, how, f"{path}.{k}", (*keys, k)) for k, s in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_tree(s, how, f"{path}.{i}", (*keys, i)) for i, s in enumerate(space.spaces))
    return _leaf(space, path, keys, how)


class ObsCodec:
    """Writes observations of one space into preallocated rows; refuses misfits."""

    def __init__(
        self,
        space: AnySpace,
        *,
        layout: str = "auto",
        stack: int = 1,
        integers: IntegerScale = "bounds",
    ) -> None:
        tree = _tree(space, _Reading(layout, stack, integers))
        self.leaves: list[Leaf] = tree_leaves(tree)
        self.spec: Tree = tree_map(lambda leaf: leaf.spec, tree)
        assert tree_paths(self.spec) == [leaf.path for leaf in self.leaves]
        only = self.leaves[0] if len(self.leaves) == 1 and not self.leaves[0].keys else None
        plain = only is not None and only.kind == "box" and only.scaling is None
        # The shape and dtype of the fast path; None if there is none.
        self.plain = (only.given_shape, only.given_dtype) if only is not None and plain else None

    def buffers(self, n: int) -> list[Array]:
        return [np.zeros((n, *leaf.spec.shape), leaf.spec.dtype) for leaf in self.leaves]

    def write(self, obs: Any, buffers: list[Array], i: int) -> None:
        """Put one observation into row i of every buffer."""
        for leaf, buffer in zip(self.leaves, buffers, strict=True):
            value = obs
            for key in leaf.keys:
                try:
                    value = value[key]
                except (KeyError, IndexError, TypeError):
                    got = list(value) if isinstance(value, Mapping) else type(value).__name__
                    raise _misfit(leaf, f"no entry {key!r} (got {got})") from None
            if leaf.kind == "box":
                array = _as_box(leaf, value)
                buffer[i] = array if leaf.scaling is None else _scaled(leaf, leaf.scaling, array)
            else:
                _write_onehot(leaf, value, buffer[i])

    def batch_size(self, obs: Any) -> int | None:
        """The length of a batch of observations, from its first leaf; None if it is not a batch."""
        leaf, value = self.leaves[0], obs
        try:
            for key in leaf.keys:
                value = value[key]
            shape = np.shape(value)
        except (KeyError, IndexError, TypeError, ValueError):
            return None
        return shape[0] if len(shape) > 0 and shape[1:] == leaf.given_shape else None

    def tree(self, leaves: list[Array]) -> Tree:
        """Arrange the leaves as in the observation."""
        rest = iter(leaves)
        return tree_map(lambda _: next(rest), self.spec)


def _misfit(leaf: Leaf, got: str) -> LudusError:
    return LudusError(
        "E203",
        f"{leaf.path} does not fit its own space: {got}, expected shape {leaf.given_shape} "
        f"{leaf.given_dtype}",
        why="the environment returns something else than its observation_space says",
        fix="correct observation_space or what reset() and step() return; see  ludus check ENV",
    )


def _as_box(leaf: Leaf, value: Any) -> Array:
    try:
        array = np.asarray(value)
    except ValueError:
        raise _misfit(leaf, "got a ragged list") from None
    if array.shape != leaf.given_shape:
        raise _misfit(leaf, f"got shape {array.shape} {array.dtype}")
    if array.dtype.kind not in "buif":
        raise _misfit(leaf, f"got values of type {array.dtype}")
    if leaf.given_dtype == np.uint8 and array.dtype != np.uint8:
        whole = array.dtype.kind in "bui"
        if not whole or array.min(initial=0) < 0 or array.max(initial=0) > 255:
            raise _misfit(leaf, f"got shape {array.shape} {array.dtype}")
    return array


def _scaled(leaf: Leaf, scaling: Scaling, array: Array) -> Array:
    scaled = scaling(array)
    large = np.abs(scaled)
    if large.max(initial=0) > EXACT:
        raise LudusError(
            "E203",
            f"{leaf.path} holds {array.flat[int(large.argmax())]}; float32 holds integers exactly "
            f"up to {EXACT} only",
            why="its space declares no bounds by which it could be scaled",
            fix="give observation_space its true low and high (with env.integer_scale=bounds), or "
            "split the number in a wrapper",
        )
    return scaled


def _write_onehot(leaf: Leaf, value: Any, row: Array) -> None:
    array = np.asarray(value)
    if array.shape != leaf.given_shape or array.dtype.kind not in "bui":
        raise _misfit(leaf, f"got shape {array.shape} {array.dtype}")
    row[:] = 0
    parts = zip(array.reshape(-1).tolist(), leaf.offsets, leaf.lows, leaf.highs, strict=True)
    for number, offset, low, high in parts:
        if not low <= number < high:
            raise _misfit(leaf, f"got {number}, which is not in {low}..{high - 1}")
        row[offset + number] = 1


class ActionCodec:
    """Converts checked actions of the learner for `env.step`; clips those of boxes."""

    def __init__(self, space: AnySpace) -> None:
        self.spec: ActionSpec
        self._start: Any = 0
        self._dtype: Any = np.int64
        self._shape: tuple[int, ...] = tuple(space.shape or ())
        if isinstance(space, spaces.Discrete):
            self.spec, self._start = Discrete(int(space.n)), int(space.start)
        elif isinstance(space, spaces.MultiDiscrete):
            self.spec = MultiDiscrete(tuple(int(n) for n in space.nvec.flatten()))
            self._start, self._dtype = space.start.flatten(), space.dtype
        elif isinstance(space, spaces.MultiBinary):
            self.spec = MultiDiscrete((2,) * int(np.prod(space.shape)))
            self._dtype = space.dtype
        elif isinstance(space, spaces.Box) and np.dtype(space.dtype).kind == "f":
            low, high = (tuple(float(v) for v in b.flatten()) for b in (space.low, space.high))
            self.spec = Continuous(tuple(int(n) for n in space.shape), low, high)
            self._dtype, self._box = space.dtype, space
        else:
            raise LudusError(
                "E204",
                f"actions of type {type(space).__name__} are not supported",
                where=f"action space: {space}",
                why="supported are Discrete, MultiDiscrete, MultiBinary and Box of floats",
                fix="convert them in a gymnasium wrapper and name that in  env.wrappers",
            )

    @property
    def dtype(self) -> str:
        """The dtype of the actions that `decode` takes."""
        return "float32" if isinstance(self.spec, Continuous) else "int64"

    def decode(self, actions: Array) -> list[Any]:
        """One action per environment, ready for `env.step`."""
        if isinstance(self.spec, Discrete):
            if self._start:
                actions = actions + self._start
            numbers: list[Any] = actions.tolist()  # Python ints: environments check them fastest
            return numbers
        if isinstance(self.spec, MultiDiscrete):
            actions = actions + self._start
        else:
            # Clip with bounds in the dtype of the space: float32 may round them.
            actions = np.minimum(np.maximum(actions, self._box.low), self._box.high)
        return list(actions.astype(self._dtype).reshape(len(actions), *self._shape))
