"""Storage with one column per unroll: named tensors [rows, columns, ...]. It picks no columns.

Frames are stored singly: a column keeps the k-1 frames before its unroll, and stacks of k are
formed again when it is read.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ludus.contract import Plan, Unroll
from ludus.replay.storage.ring import allocate
from ludus.replay.unrolls.assembler import stack_frames
from ludus.types import (
    ORIGIN,
    EnvSpec,
    Extras,
    Field,
    Traj,
    Tree,
    flat_rows,
    row_fields,
    tree_leaves,
    tree_map,
    tree_paths,
    unflatten_rows,
)


def unroll_columns(plan: Plan, num_envs: int) -> int:
    """How many unrolls a plan's capacity holds; at least one of each environment."""
    assert isinstance(plan.view, Unroll) and plan.capacity > 0, "a replay of unrolls, in rows"
    return max(math.ceil(plan.capacity / plan.view.length), num_envs)


def unroll_fields(spec: EnvSpec, extras: Extras | None = None) -> dict[str, Field]:
    """The fields of `Traj`, by row. Recurrent state is not known before it is seen."""
    fields = row_fields(spec, extras)
    del fields["raw_reward"]
    fields |= {f"prev_{name}": fields[name] for name in ("action", "reward")}
    return fields | {name: Field((), torch.int64) for name in ORIGIN}


def unroll_bytes(plan: Plan, spec: EnvSpec, extras: Extras | None = None) -> int:
    """Bytes of one column, without its recurrent state."""
    assert isinstance(plan.view, Unroll)
    steps, fields = plan.view.length, unroll_fields(spec, extras)
    total = 0
    for path, s in zip(tree_paths(spec.obs), tree_leaves(spec.obs), strict=True):
        total += (s.stack - 1) * fields[path].row_bytes  # older frames
    for name, f in fields.items():  # of the previous action and reward only those before row 0
        once = name.startswith("prev_") or name in ORIGIN
        total += (1 if once else steps + f.ahead) * f.row_bytes
    return total


def _tuples(tree: Any) -> Tree:
    """JSON knows lists only."""
    if isinstance(tree, list):
        return tuple(_tuples(t) for t in tree)
    return {k: _tuples(v) for k, v in tree.items()} if isinstance(tree, dict) else tree


class UnrollColumns:
    """Allocated by the first unroll, whose fields it has."""

    def __init__(self, spec: EnvSpec, columns: int, device: torch.device) -> None:
        self.spec, self.columns, self.device = spec, columns, device
        self.obs = list(zip(tree_paths(spec.obs), tree_leaves(spec.obs), strict=True))
        self.tensors: dict[str, Tensor] = {}
        self.state: Tree = ()  # the tree of recurrent state, a name at each leaf

    def put(self, traj: Traj, columns: Tensor) -> None:
        """Overwrite these columns with those of an unroll."""
        names = iter(tree_paths(traj.state, "state"))
        self.state = tree_map(lambda _: next(names), traj.state)
        self.write(self._flat(traj), columns)

    def write(self, flat: dict[str, Tensor], columns: Tensor) -> None:
        if not self.tensors:
            # Older checkpoints have no origin; theirs counts as 0.
            origin = dict.fromkeys(ORIGIN, torch.zeros((1, 1), dtype=torch.int64))
            for name, v in (origin | flat).items():
                shape = (v.shape[0], self.columns, *v.shape[2:])
                self.tensors[name] = allocate(shape, v.dtype, self.device)
        at = columns.to(self.device)
        for name, tensor in self.tensors.items():
            if name in flat or name not in ORIGIN:
                tensor[:, at] = flat[name].to(self.device)

    def read(self, columns: Tensor) -> dict[str, Tensor]:
        """A copy of these columns, in the form that `write` takes."""
        at = columns.to(self.device)
        return {name: t.index_select(1, at) for name, t in self.tensors.items()}

    def take(self, columns: Tensor) -> Traj:
        """These columns as an unroll, frames stacked."""
        flat = self.read(columns)
        first = flat["first"]
        for path, s in self.obs:
            if s.stack > 1:  # zeros before an older episode start are in the frames already
                before = first.new_zeros((s.stack - 1, first.shape[1]))
                begin = torch.cat((before, first))
                flat[path] = stack_frames(flat[path], begin, s.stack, s.stack - 1)
        action, reward = flat["action"], flat["reward"]
        opens = first[1:].reshape(*action.shape[:2], *([1] * (action.dim() - 2)))
        flat["prev_action"] = torch.cat((flat["prev_action"], action.masked_fill(opens, 0)))
        flat["prev_reward"] = torch.cat((flat["prev_reward"], reward.masked_fill(first[1:], 0)))
        flat |= {name: flat[name][0] for name in ORIGIN}
        state = tree_map(lambda name: flat[name][0], self.state)
        return Traj(**unflatten_rows(flat, self.spec), state=state)

    def _flat(self, traj: Traj) -> dict[str, Tensor]:
        """Named tensors [rows, B, ...]. Of the previous action and reward only those before row 0:
        the others are the rows' own."""
        assert traj.prev_action is not None and traj.prev_reward is not None
        flat = flat_rows(traj) | {
            "prev_action": traj.prev_action[:1],
            "prev_reward": traj.prev_reward[:1],
        }
        for (path, s), leaf in zip(self.obs, tree_leaves(traj.obs), strict=True):
            if s.stack > 1:
                before = leaf[0, :, :-1].transpose(0, 1)  # zeros where the episode is younger
                leaf = torch.cat((before, leaf[:, :, -1]))
            flat[path] = leaf
        for name in ORIGIN:
            flat[name] = getattr(traj, name)[None]
        names = tree_paths(traj.state, "state")
        return flat | {k: v[None] for k, v in zip(names, tree_leaves(traj.state), strict=True)}

    def shape(self) -> Any:
        """For JSON: how the recurrent state is put together."""
        return self.state

    def load_shape(self, shape: Any) -> None:
        self.state = _tuples(shape)
