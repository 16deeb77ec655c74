"""Convert the arguments of `agent.act`: one observation or a batch, masks, rewards.

Arguments that do not fit are the caller's mistake, not the environment's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ludus.envs.action_check import MaskReader
from ludus.envs.adapter import RewardShaper
from ludus.envs.config import EnvConfig
from ludus.envs.spec import ObsCodec
from ludus.errors import LudusError
from ludus.types import EnvSpec, Tree, tree_map

WHERE = "agent.act()"


class ActInputs:
    """Reads the arguments of act() for one agent."""

    def __init__(self, env: EnvConfig, codec: ObsCodec, spec: EnvSpec) -> None:
        self._env, self._codec, self._spec = env, codec, spec
        self._read_mask = MaskReader(spec.action) if spec.mask_width else None
        self._shaper, self._shaped = RewardShaper(env.model_copy(update={"num": 1})), 1

    def obs(self, obs: Any) -> tuple[Tree, int | None]:
        """Frames [n, ...] and their number; None for a single observation."""
        rows = self._codec.batch_size(obs)
        if rows == 0:
            raise _refuse("E203", "act() got an empty batch of observations")
        buffers = self._codec.buffers(rows or 1)
        try:
            for i in range(rows or 1):
                self._codec.write(obs if rows is None else _row(obs, i), buffers, i)
        except (LudusError, IndexError) as error:
            what = error.what if isinstance(error, LudusError) else "batches of different lengths"
            raise _refuse("E203", what) from None
        return tree_map(torch.from_numpy, self._codec.tree(buffers)), rows

    def masks(self, given: Any, rows: int | None) -> Tensor | None:
        """[n, W]; an agent that was trained with masks needs one."""
        if given is None and self._spec.has_action_mask:
            raise LudusError(
                "E204",
                "act() without action_mask, but the agent was trained with masks",
                where=WHERE,
                why="without one it would choose actions that the environment forbids",
                fix='agent.act(obs, action_mask=info["action_mask"])   or   '
                "action_mask=env.get_wrapper_attr('action_masks')()",
            )
        if given is None or self._read_mask is None:
            return None
        try:
            masks = [self._read_mask(mask) for mask in ([given] if rows is None else given)]
        except LudusError as error:
            raise LudusError(error.code, error.what, where=WHERE, fix=error.fix) from None
        if len(masks) != (rows or 1):
            raise _refuse("E202", f"{len(masks)} action masks for {rows} observations")
        return torch.from_numpy(np.stack(masks))

    def rewards(self, given: Any, rows: int) -> tuple[Tensor, Tensor]:
        """Rewards as the learner saw them, and the raw rewards, each [n]."""
        if rows != self._shaped:
            self._shaper = RewardShaper(self._env.model_copy(update={"num": rows}))
            self._shaped = rows
        raw = np.broadcast_to(np.asarray(given, np.float64), (rows,))
        seen = torch.from_numpy(self._shaper(raw, slice(0, rows)))
        return seen, torch.from_numpy(raw.astype(np.float32))


def _row(obs: Any, i: int) -> Any:
    if isinstance(obs, Mapping):
        return {name: _row(part, i) for name, part in obs.items()}
    return tuple(_row(part, i) for part in obs) if isinstance(obs, tuple) else obs[i]


def _refuse(code: str, what: str) -> LudusError:
    return LudusError(
        code,
        what,
        where=WHERE,
        why="act() takes one observation of the environment, or a batch with one leading dimension",
        fix="pass what  reset()  or  step()  of  agent.make_env()  returned",
    )
