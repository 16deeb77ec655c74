"""How large a ring is and which fields its rows have. It allocates nothing."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from ludus.contract import Episode, NStep, Plan, Sequence
from ludus.types import EnvSpec, Extras, Field, row_fields, tree_leaves

# Bytes of a row from which copying it is the cost of a gather: then several threads help.
WIDE = 1024
# Assumed where neither the environment nor the view bounds an episode; the ring grows if need be.
UNKNOWN_LENGTH = 1000


@dataclass(frozen=True)
class Layout:
    """The size of a ring and the fields of its rows: enough to estimate memory."""

    length: int  # L, rows per environment
    num_envs: int  # N
    span: int  # rows an item reads forward before it may be drawn: n, or a sequence's length
    history: int  # rows before an item that it also reads: frame stack, previous action
    fields: Mapping[str, Field]
    states: Mapping[str, Field]  # recurrent state, kept for starts of sequences only
    starts: int = 0  # recurrent states kept per environment

    @property
    def slots(self) -> int:
        return self.length * self.num_envs

    @property
    def extras(self) -> list[str]:
        return [name for name in self.fields if name.startswith("extras.")]


def column_major_fields(layout: Layout) -> frozenset[str]:
    """Fields stored column-major in host memory: large observations that are read with their
    history, and `begin`, which is read along with them."""
    seen = {name: f for name, f in layout.fields.items() if name.split(".")[0] == "obs"}
    large = [name for name, f in seen.items() if f.row_bytes >= WIDE]
    return frozenset([*large, "begin"] if large and layout.history else [])


def is_state(name: str) -> bool:
    """Extras called `state` or `state.*` are recurrent state."""
    return name == "state" or name.startswith("state.")


def _ring_fields(spec: EnvSpec, extras: Extras, drop: tuple[str, ...]) -> dict[str, Field]:
    """`stop` and `begin` stand for `last` and `first`: streams break there, too."""
    fields = {k: f for k, f in row_fields(spec, extras).items() if k not in drop}
    return fields | {"stop": Field((), torch.bool), "begin": Field((), torch.bool, ahead=True)}


def episode_layout(
    plan: Plan, spec: EnvSpec, num_envs: int, extras: Extras | None = None
) -> Layout:
    """Room for `per_env` episodes of every environment, the running one, and a chunk."""
    view = plan.view
    assert isinstance(view, Episode) and num_envs > 0, "a view of whole episodes, and environments"
    bounds = [n for n in (view.max_length, spec.max_episode_steps) if n]
    longest = min(bounds) if bounds else UNKNOWN_LENGTH
    # One more row for each final observation, and one for the next observation.
    rows = (view.per_env + 1) * (longest + 1) + plan.chunk + 1
    fields = _ring_fields(spec, extras or {}, ("raw_reward", "last", "mask"))
    return Layout(max(math.ceil(plan.capacity / num_envs), rows), num_envs, 1, 0, fields, {})


def layout_of(plan: Plan, spec: EnvSpec, num_envs: int, extras: Extras | None = None) -> Layout:
    """The layout of a replay plan. L holds the capacity, the next observation and the history."""
    view = plan.view
    assert isinstance(view, NStep | Sequence), "unrolls and episodes have stores of their own"
    assert plan.capacity > 0 and num_envs > 0, "replay needs a capacity and an environment"
    sequence = isinstance(view, Sequence)
    span = view.burn_in + view.length if isinstance(view, Sequence) else view.n
    history = max([s.stack - 1 for s in tree_leaves(spec.obs)] + [1 if sequence else 0])
    extras = extras or {}
    states = {k: Field(tuple(s), dtype) for k, (s, dtype) in extras.items() if is_state(k)}
    assert sequence or not states, "recurrent state is only read by sequences"
    kept = {k: v for k, v in extras.items() if k not in states}
    drop = ("raw_reward", "last") if sequence else ("raw_reward", "last", "first")
    fields = _ring_fields(spec, kept, drop)
    if plan.actor_priorities:
        fields["extras.priority"] = Field()
    rows = max(math.ceil(plan.capacity / num_envs), plan.chunk + span)
    starts = 0
    if isinstance(view, Sequence) and states:
        fields["start"] = Field((), torch.int64)
        # Twice what long episodes need; many short ones push the oldest starts out early.
        starts = min(rows, 2 * math.ceil(rows / view.period) + 2)
    return Layout(rows + 1 + history, num_envs, span, history, fields, states, starts)
