"""Trees of tensors, descriptions of environments, rows, and the chunks that collectors send."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property, partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from ludus.types.samples import Traj

# A tensor, or a dict, tuple or NamedTuple of trees. Leaves share their leading dimensions.
Tree: TypeAlias = Any


def tree_map(fn: Callable[..., Any], tree: Tree, *rest: Tree) -> Tree:
    """Apply `fn` to each leaf, together with the corresponding leaves of the trees in `rest`."""
    if isinstance(tree, Mapping):
        return {k: tree_map(fn, tree[k], *(r[k] for r in rest)) for k in tree}
    if isinstance(tree, tuple):
        parts = [tree_map(fn, t, *(r[i] for r in rest)) for i, t in enumerate(tree)]
        return type(tree)(*parts) if hasattr(tree, "_fields") else tuple(parts)
    return fn(tree, *rest)


def tree_leaves(tree: Tree) -> list[Any]:
    """Return the leaves of a tree in a fixed order (dicts in insertion order)."""
    if isinstance(tree, Mapping):
        return [leaf for k in tree for leaf in tree_leaves(tree[k])]
    if isinstance(tree, tuple):
        return [leaf for t in tree for leaf in tree_leaves(t)]
    return [tree]


def tree_unflatten(like: Tree, leaves: Iterable[Any]) -> Tree:
    """Return a tree like `like` with these leaves: the inverse of `tree_leaves`."""
    rest = iter(leaves)
    return tree_map(lambda _: next(rest), like)


def tree_paths(tree: Tree, prefix: str = "obs") -> list[str]:
    """Return a name for each leaf, in the order of `tree_leaves`: obs, obs.camera, obs.0 ..."""
    if isinstance(tree, Mapping):
        return [p for k in tree for p in tree_paths(tree[k], f"{prefix}.{k}")]
    if isinstance(tree, tuple):
        names = getattr(tree, "_fields", range(len(tree)))
        return [p for k, t in zip(names, tree, strict=True) for p in tree_paths(t, f"{prefix}.{k}")]
    return [prefix]


@dataclass(frozen=True)
class ArraySpec:
    """One leaf of an observation, as the environment returns it and the ring stores it.

    With stack = k > 1 the environment returns (and the ring stores) one frame of `shape`. The
    Collector and the views stack frames to [k, *shape], newest last, for the policy and the loss.
    """

    shape: tuple[int, ...]
    dtype: str = "float32"  # numpy name
    low: float | None = None
    high: float | None = None
    stack: int = 1
    layout: str | None = None  # "chw", "hwc", "hw" for images, None for vectors
    scale: tuple[float, float] = (0.0, 255.0)  # uint8 values that the network sees as 0 and 1
    rounded: bool = False  # float32 cannot represent all of its integers

    @property
    def seen_shape(self) -> tuple[int, ...]:
        """The shape a network sees."""
        return (self.stack, *self.shape) if self.stack > 1 else self.shape

    @cached_property
    def torch_dtype(self) -> torch.dtype:
        dtype: torch.dtype = torch.from_numpy(np.zeros(0, self.dtype)).dtype
        return dtype

    @property
    def is_image(self) -> bool:
        return self.layout is not None


@dataclass(frozen=True)
class Discrete:
    n: int


@dataclass(frozen=True)
class Continuous:
    """A box of actions. The adapter clips actions outside it."""

    shape: tuple[int, ...]
    low: tuple[float, ...]  # flattened
    high: tuple[float, ...]


@dataclass(frozen=True)
class MultiDiscrete:
    nvec: tuple[int, ...]


ActionSpec: TypeAlias = Discrete | Continuous | MultiDiscrete


@dataclass(frozen=True)
class EnvSpec:
    """The description of an environment that an algorithm may use."""

    id: str
    obs: Tree  # of ArraySpec
    action: ActionSpec
    has_action_mask: bool = False
    max_episode_steps: int | None = None
    # Of the whole training run, over all actors. Not a property of the environment itself.
    num_envs: int = field(default=1, compare=False)

    @property
    def num_actions(self) -> int:
        assert isinstance(self.action, Discrete), "only discrete actions have a number"
        return self.action.n

    @property
    def action_shape(self) -> tuple[int, ...]:
        """Shape of one stored action: () discrete, (k,) multi-discrete, the box's shape."""
        if isinstance(self.action, Discrete):
            return ()
        if isinstance(self.action, MultiDiscrete):
            return (len(self.action.nvec),)
        return self.action.shape

    @property
    def action_dtype(self) -> torch.dtype:
        return torch.float32 if isinstance(self.action, Continuous) else torch.int64

    @property
    def mask_width(self) -> int:
        """Length of one action mask: n actions, or the sum of a MultiDiscrete's choices."""
        if isinstance(self.action, MultiDiscrete):
            return sum(self.action.nvec)
        return self.action.n if isinstance(self.action, Discrete) else 0


class Step(NamedTuple):
    """The input of `act`, one entry per environment [B]. `prev_*` belong to the row before."""

    obs: Tree
    first: Tensor  # [B] bool, obs is the first of an episode
    dummy: Tensor  # [B] bool, the environment will ignore this action (it is resetting)
    prev_action: Tensor
    prev_reward: Tensor  # after clipping and scaling, as the learner sees it
    prev_raw_reward: Tensor  # as the environment returned it
    prev_last: Tensor
    action_mask: Tensor | None  # [B, mask_width] bool, True = allowed


class Rows(NamedTuple):
    """T rows of B environments, and T+1 observations. Row t: obs_t, action_t and their results.

    After row t with last=True, obs_{t+1} is the true final observation; row t+1 is the dummy
    (mask=False), row t+2 has first=True. Where an environment failed, row t is a dummy without a
    `last` before it: its episode ends, as if truncated, with obs_t.
    """

    obs: Tree  # [T+1, B, ...] single frames where the spec has stack > 1
    action: Tensor  # [T, B, ...]
    reward: Tensor  # [T, B] float32
    raw_reward: Tensor  # [T, B] float32
    discount: Tensor  # [T, B] float32: 0 where the episode terminated (or a soft terminal), else 1
    last: Tensor  # [T, B] bool: terminated or truncated
    first: Tensor  # [T+1, B] bool
    mask: Tensor  # [T, B] bool: False = dummy row, ignored by the loss
    action_mask: Tensor | None = None  # [T+1, B, W] bool
    extras: Mapping[str, Tensor] = {}  # [T, B, ...] returned by `act` with the action
    state: Any = ()  # actor state before row 0, leaves [B, ...]


# Fields of Rows and Traj that have T+1 entries for T rows. The others have T, `state` has one.
AHEAD = frozenset(("obs", "first", "action_mask", "prev_action", "prev_reward"))
# Fields of Transition and Traj that say where an item comes from, one entry each: [B] int64.
ORIGIN = ("feed", "env", "version")
# The extras that `act` returns with the action: name -> (shape of a row, dtype).
Extras: TypeAlias = Mapping[str, tuple[tuple[int, ...], torch.dtype]]


@cache
def numpy_dtype(dtype: torch.dtype) -> np.dtype[Any]:
    found: np.dtype[Any] = torch.empty(0, dtype=dtype).numpy().dtype
    return found


@dataclass(frozen=True)
class Field:
    """One field of a row."""

    shape: tuple[int, ...] = ()
    dtype: torch.dtype = torch.float32
    ahead: bool = False  # T rows have T+1 entries

    @property
    def row_bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


def row_fields(spec: EnvSpec, extras: Extras | None = None) -> dict[str, Field]:
    """Return the table of row fields: each tensor of `Rows` except its state. Buffers, shared
    memory, rings and checkpoints use it. Names: `tree_paths` for obs, `extras.<name>`."""
    leaves = zip(tree_paths(spec.obs), tree_leaves(spec.obs), strict=True)
    fields = {path: (leaf.shape, leaf.torch_dtype) for path, leaf in leaves}
    fields["action"] = (spec.action_shape, spec.action_dtype)
    fields |= {name: ((), torch.float32) for name in ("reward", "raw_reward", "discount")}
    fields |= {name: ((), torch.bool) for name in ("last", "first", "mask")}
    if spec.has_action_mask:
        fields["action_mask"] = ((spec.mask_width,), torch.bool)
    fields |= {f"extras.{name}": extra for name, extra in (extras or {}).items()}
    return {
        name: Field(tuple(shape), dtype, name.split(".")[0] in AHEAD)
        for name, (shape, dtype) in fields.items()
    }


def flat_rows(rows: Rows | Traj) -> dict[str, Tensor]:
    """Return the tensors of rows by their names in `row_fields`, without state and origin."""
    flat = dict(zip(tree_paths(rows.obs), tree_leaves(rows.obs), strict=True))
    for name, value in rows._asdict().items():
        if value is not None and name not in ("obs", "extras", "state", *ORIGIN):
            flat[name] = value
    return flat | {f"extras.{name}": value for name, value in rows.extras.items()}


def unflatten_rows(flat: Mapping[str, Tensor], spec: EnvSpec) -> dict[str, Any]:
    """Return the arguments of Rows or Traj except the state: the inverse of `flat_rows`."""
    obs = tree_unflatten(spec.obs, (flat[path] for path in tree_paths(spec.obs)))
    extras = {k.removeprefix("extras."): v for k, v in flat.items() if k.startswith("extras.")}
    plain = {k: v for k, v in flat.items() if k.split(".")[0] not in ("obs", "extras", "state")}
    return {"obs": obs, "extras": extras} | plain


AnyRows = TypeVar("AnyRows", "Rows", "Traj")


def map_rows(fn: Callable[..., Tensor], *rows: AnyRows) -> AnyRows:
    """Apply `fn(ahead, *tensors)` to each field of the given rows, and keep the first's state and
    origin."""
    made: dict[str, Any] = {}
    for name in rows[0]._fields:
        values = [getattr(r, name) for r in rows]
        if name not in ("state", *ORIGIN) and values[0] is not None:
            made[name] = tree_map(partial(fn, name in AHEAD), *values)
    return rows[0]._replace(**made)


def map_fields(fn: Any, data: Any) -> Any:
    """Apply `fn` to each tensor of a NamedTuple of trees; None stays None."""
    return type(data)(*(x if x is None else tree_map(fn, x) for x in data))


class Before(NamedTuple):
    """The frames, action and reward before a chunk, in case the previous chunk is lost."""

    frames: tuple[Tensor, ...]  # per leaf of obs [stack - 1, B, ...], the newest last
    action: Tensor  # [B, ...] of the row before
    reward: Tensor  # [B] of the row before


class Chunk(NamedTuple):
    """Rows that a collector sends to the store."""

    rows: Rows
    source: int = 0  # index of the collector
    sequence: int = 0  # chunk number of this source; a gap means that a chunk was lost
    version: int = 0  # of the acting weights; pipelined, the first row is one chunk older
    breaks: bool = False  # the stream was cut before this chunk (barrier, restart)
    # First priorities from the actor, [span - 1 + T, B]: of earlier rows whose windows may end in
    # this chunk, and of its own rows. A window that is open at the end of the chunk gets a
    # priority as if the stream broke there; the next chunk corrects it.
    priority: Tensor | None = None
    before: Before | None = None  # only if chunks may be lost


class EpisodeEnd(NamedTuple):
    """One finished (or cut) episode of one environment."""

    env: int
    score: float  # sum of raw rewards
    length: int  # agent steps
    end: str  # terminated | truncated | checkpoint | error
    info: Mapping[str, float] = {}
    error: str = ""  # if the environment failed and was made again: one line, then a traceback

    @property
    def whole(self) -> bool:
        """Whether its score counts: it was not cut by a checkpoint or an error."""
        return self.end in ("terminated", "truncated")


class ActorState(NamedTuple):
    """The actor state of n environments by where it goes; leaves [n, ...]. An algorithm without
    `private` and `lasting` may use its `stored` state alone."""

    stored: Any = ()  # starts every chunk and every replayed sequence: an LSTM's state
    private: Any = ()  # never leaves the collector: an episodic memory
    lasting: Any = ()  # survives episodes, barriers and checkpoints: the counts of a bandit


def stored_state(state: Any) -> Any:
    """The part that travels with chunks."""
    return state.stored if isinstance(state, ActorState) else state


def lasting_state(state: Any) -> Any:
    """The part that a checkpoint keeps."""
    return state.lasting if isinstance(state, ActorState) else ()


class Origin(NamedTuple):
    """Where the rows of a store come from, for the items it hands out."""

    feed: int = 0  # the index in Plan.feeds
    first_env: int = 0  # of the store, counted over all actors

    def fields(self, env: Any, version: Any) -> tuple[Tensor, Tensor, Tensor]:
        """`feed`, `env` and `version` [B] of items; `env` counts those of the store."""
        env = torch.as_tensor(env)
        if self.first_env:
            env = env + self.first_env
        feed = torch.full_like(env, self.feed) if self.feed else torch.zeros_like(env)
        return feed, env, torch.as_tensor(version)


HERE = Origin()  # the only feed, from the first environment on
