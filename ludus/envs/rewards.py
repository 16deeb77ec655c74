"""What the learner sees of a reward: scaled, then clipped. Scores never pass through here."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

from ludus.envs.config import EnvConfig

Array: TypeAlias = np.ndarray[Any, Any]


class RewardShaper:
    """One per adapter. The running maximum is kept per slot, so slots stay independent."""

    def __init__(self, cfg: EnvConfig) -> None:
        self._scale, self._clip, self._clamp = cfg.reward_scale, cfg.reward_clip, cfg.reward_clamp
        self.largest = np.zeros(cfg.num_envs)  # |raw reward| seen so far, by slot
        self.idle = self._scale == 1.0 and self._clip == "none"

    def __call__(self, raw: Array, part: slice) -> Array:
        """Learner's rewards [n] float32 of raw ones [n] float64."""
        if self.idle:
            return raw.astype(np.float32)
        if self._scale == "running_max":
            largest = np.maximum(self.largest[part], np.abs(raw))
            self.largest[part] = largest
            reward = raw / np.where(largest > 0, largest, 1.0)
        else:
            reward = raw * self._scale
        if self._clip == "sign":
            reward = np.sign(reward)
        elif self._clip == "clamp":
            reward = np.clip(reward, -self._clamp, self._clamp)
        elif self._clip == "soft_asymmetric":
            # Espeholt et al. 2018, table D.1: losses weigh 0.3 of gains, both saturate near 5.
            squeezed = np.tanh(reward / 5.0)
            reward = np.where(reward < 0, 0.3 * squeezed, squeezed) * 5.0
        return reward.astype(np.float32)


# Below any loss a game can really deal out in one step.
ROLLED_OVER = -900_000


def undo_rollover(raw: Array) -> None:
    """Score counters of six digits and more start again at 0, which reads as a huge loss: add the
    power of ten that was passed, in place. Only for scores: a learner sees what the game says."""
    if raw.min() < ROLLED_OVER:
        low = raw < ROLLED_OVER
        raw[low] += 10.0 ** np.ceil(np.log10(-raw[low]))
