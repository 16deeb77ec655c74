"""Action masks: how they are read, what is wrong with one, and where else one may be found."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np

from ludus.envs.wrapper_config import written
from ludus.errors import LudusError
from ludus.types import ActionSpec, Discrete, EnvSpec, MultiDiscrete

Array: TypeAlias = np.ndarray[Any, Any]
KEY = "action_mask"  # of an info
FORM = "one entry per action (MultiDiscrete: part after part), True = allowed"


class MaskReader:
    """Reads the masks of one action space into one flat row, part after part."""

    def __init__(self, action: ActionSpec) -> None:
        assert isinstance(action, Discrete | MultiDiscrete), "boxes have no masks"
        self._parts = action.nvec if isinstance(action, MultiDiscrete) else (action.n,)
        self._starts = np.cumsum((0, *self._parts[:-1]))
        self._single = isinstance(action, Discrete)
        self.width = sum(self._parts)

    def __call__(self, given: Any) -> Array:
        """A mask [W] of an array, or of a list or tuple of one array per part."""
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
    """What is wrong and what to type, if a mask is a part of the observation and nothing else."""
    found = isinstance(spec.obs, Mapping) and KEY in spec.obs
    if not found or spec.has_action_mask or not spec.mask_width:
        return None
    what = f"obs.{KEY} is an observation like any other: forbidden actions are taken"
    return what, written("MaskFromObs")
