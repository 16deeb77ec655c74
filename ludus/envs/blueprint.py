"""The spec, codecs and masks of an environment, found by making one."""

from __future__ import annotations

from typing import Any, Literal

import gymnasium as gym

from ludus.envs.backends.failures import env_error
from ludus.envs.config import EnvConfig
from ludus.envs.ids import resolve_id
from ludus.envs.spec import ActionCodec, ObsCodec
from ludus.errors import LudusError, env_faults
from ludus.types import Continuous, EnvSpec


def _mask_source(env: gym.Env[Any, Any], cfg: EnvConfig) -> Literal["info", "method"] | None:
    if env.has_wrapper_attr("action_masks"):
        return "method"
    try:
        result = env.reset(seed=0)
    except env_faults() as error:
        fix = "correct the environment; see  ludus check ENV"
        raise env_error(error, "reset", f"environment {cfg.id}", fix) from error
    info = result[1] if isinstance(result, tuple) and len(result) == 2 else {}
    return "info" if isinstance(info, dict) and "action_mask" in info else None


def make_codec(cfg: EnvConfig, env: gym.Env[Any, Any]) -> ObsCodec:
    """The observation codec for an environment and its settings."""
    return ObsCodec(
        env.observation_space,
        layout=cfg.image_layout,
        stack=cfg.stack,
        integers=cfg.integer_scale,
    )


class Blueprint:
    """The codecs, mask source and spec of an environment."""

    def __init__(self, cfg: EnvConfig, env: gym.Env[Any, Any], limit: int | None) -> None:
        for name in ("observation_space", "action_space"):
            if not isinstance(getattr(env, name, None), gym.Space):
                raise LudusError(
                    "E202",
                    f"{name} is missing",
                    where=f"environment {cfg.id}",
                    fix=f"set  self.{name}  in __init__ to a gymnasium space",
                )
        self.codec = make_codec(cfg, env)
        self.actions = ActionCodec(env.action_space)
        discrete = not isinstance(self.actions.spec, Continuous)
        # Looking for masks costs a reset. Atari games have none.
        self.masks = _mask_source(env, cfg) if discrete and cfg.atari is None else None
        self.spec = EnvSpec(
            id=resolve_id(cfg.id),
            obs=self.codec.spec,
            action=self.actions.spec,
            has_action_mask=self.masks is not None,
            max_episode_steps=limit,
        )

    @property
    def mask_width(self) -> int:
        return self.spec.mask_width if self.masks else 0
