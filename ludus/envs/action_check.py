"""Reads action masks and refuses invalid actions before they reach an environment.
Actions outside a box are valid: ActionCodec clips them (spec.py).

The check comes first because some emulators hang forever on an unknown action.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np

from ludus.envs.wrapper_config import written
from ludus.errors import LudusError
from ludus.types import ActionSpec, Continuous, Discrete, EnvSpec, MultiDiscrete

Array: TypeAlias = np.ndarray[Any, Any]
KEY = "action_mask"  # of an info
FORM = "one entry per action (MultiDiscrete: part after part), True = allowed"


def _parts(action: ActionSpec) -> tuple[int, ...]:
    """The number of choices of each part of an action."""
    if isinstance(action, MultiDiscrete):
        return action.nvec
    return (action.n,) if isinstance(action, Discrete) else ()


class MaskReader:
    """Reads the masks of one action space into one flat row, part after part."""

    def __init__(self, action: ActionSpec) -> None:
        assert isinstance(action, Discrete | MultiDiscrete), "boxes have no masks"
        parts, self._single = _parts(action), isinstance(action, Discrete)
        self._starts = np.cumsum((0, *parts[:-1]))
        self.width = sum(parts)

    def __call__(self, given: Any) -> Array:
        """A mask [W] from one array, or from a list or tuple with one array per part."""
        parts = given if isinstance(given, list | tuple) else (given,)
        mask: Array = np.concatenate([np.ravel(part) for part in parts]).astype(bool)
        if mask.size != self.width:
            raise _bad(f"action mask has {mask.size} entries, expected {self.width}")
        some = np.logical_or.reduceat(mask, self._starts)
        if b"\x00" in some.tobytes():
            empty = int(np.flatnonzero(~some)[0])
            what = "no action" if self._single else f"nothing in part {empty} of the action"
            raise _bad(f"action mask allows {what}")
        return mask

    def sample(self, mask: Array, rng: np.random.Generator) -> Array:
        """One random allowed action, counted from 0: () or [parts]."""
        parts = np.split(mask, self._starts[1:])
        chosen = np.array([rng.choice(np.flatnonzero(part)) for part in parts])
        return chosen[0] if self._single else chosen


def _bad(what: str) -> LudusError:
    return LudusError("E202", what, fix=f"{FORM};  see  ludus check ENV")


def unused_mask(spec: EnvSpec) -> tuple[str, str] | None:
    """(problem, fix) if a mask is only a part of the observation."""
    found = isinstance(spec.obs, Mapping) and KEY in spec.obs
    if not found or spec.has_action_mask or not spec.mask_width:
        return None
    what = f"obs.{KEY} is an observation like any other: forbidden actions are taken"
    return what, written("MaskFromObs")


class ActionChecker:
    """Checks the actions of one group. Ignored actions may have any value."""

    def __init__(self, spec: EnvSpec, where: Callable[[int], str]) -> None:
        self._action, self._shape, self._where = spec.action, spec.action_shape, where
        parts = _parts(spec.action)
        self._top, self._starts = np.array(parts, np.uint64), np.cumsum((0, *parts[:-1]))

    def __call__(self, actions: Array, mask: Array | None, ignored: Array) -> Array:
        """A checked copy of actions [n, ...]; `mask` [n, W] of allowed ones."""
        if actions.shape != (len(ignored), *self._shape):
            shape = (len(ignored), *self._shape)
            raise self._refuse(0, f"actions have shape {actions.shape}, expected {shape}")
        if isinstance(self._action, Continuous):
            return self._finite(actions, ignored)
        if actions.dtype.kind not in "iu":
            raise self._refuse(0, f"actions are {actions.dtype}, expected whole numbers")
        actions = actions.astype(np.int64)
        # As unsigned numbers the negative ones are huge: one comparison finds both.
        inside: Array = np.less(actions.view(np.uint64), self._top)
        if b"\x00" in inside.tobytes():
            self._drop(actions, inside, None, ignored)
        if mask is not None:
            columns = actions.reshape(len(ignored), -1) + self._starts
            self._drop(actions, np.take_along_axis(mask, columns, 1), mask, ignored)
        return actions

    def _finite(self, actions: Array, ignored: Array) -> Array:
        finite: Array = np.isfinite(actions)
        if b"\x00" in finite.tobytes():
            bad = np.flatnonzero(~finite.reshape(len(ignored), -1).all(1) & ~ignored)
            if bad.size:
                i = int(bad[0])
                raise self._refuse(i, f"action {actions[i].tolist()} is not finite")
            actions = np.where(finite, actions, 0)
        return actions.astype(np.float32)

    def _drop(self, actions: Array, good: Array, mask: Array | None, ignored: Array) -> None:
        """Zero the invalid actions that are ignored; refuse the first other one."""
        wrong = ~good.reshape(len(ignored), -1).all(1)
        seen = np.flatnonzero(wrong & ~ignored)
        if seen.size:
            i = int(seen[0])
            if mask is not None:
                expected = f"one that the action mask allows: {np.flatnonzero(mask[i]).tolist()}"
            elif isinstance(self._action, MultiDiscrete):
                expected = f"at least 0 and below {list(self._action.nvec)}"
            else:
                expected = f"0..{self._top[0] - 1}"
            raise self._refuse(i, f"action {actions[i].tolist()} is invalid, expected {expected}")
        actions[wrong] = 0

    def _refuse(self, i: int, what: str) -> LudusError:
        return LudusError(
            "E204",
            what,
            where=self._where(i),
            why="the algorithm's act() answered outside spec.action",
            fix="correct act(); the environment has not seen this action",
        )
