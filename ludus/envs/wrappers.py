"""Wrappers by name: our own, gymnasium's, or a user's module:Class.

What the adapter does itself (resets, stacks, normalisation) is refused here, with the setting to
use instead.
"""

from __future__ import annotations

import importlib
from typing import Any, TypeAlias

import gymnasium as gym
import numpy as np
from gymnasium import wrappers as gymnasium_wrappers

from ludus.envs.config import WrapperConfig
from ludus.errors import LudusError, nearest

Array: TypeAlias = np.ndarray[Any, Any]
AnyEnv: TypeAlias = gym.Env[Any, Any]


class Obscure(gym.Wrapper[Any, Any, Any, Any]):
    """With a probability the whole observation is blanked (Hausknecht & Stone 2015, flickering)."""

    def __init__(self, env: AnyEnv, probability: float = 0.5) -> None:
        super().__init__(env)
        if not isinstance(env.observation_space, gym.spaces.Box):
            raise TypeError("Obscure needs a Box observation")
        if not 0 <= probability <= 1:
            raise ValueError(f"probability {probability} is not between 0 and 1")
        self._probability, self._rng = probability, np.random.default_rng(0)

    def _see(self, obs: Array) -> Array:
        return np.zeros_like(obs) if self._rng.random() < self._probability else obs

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        obs, info = self.env.reset(seed=seed, options=options)
        if seed is not None:
            # A stream of its own: the environment's draws stay what they are without the wrapper.
            self._rng = np.random.default_rng([seed, 1])
        return self._see(obs), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = self.env.step(action)
        return self._see(obs), reward, terminated, truncated, info


class Repeat(gym.Wrapper[Any, Any, Any, Any]):
    """Each action is taken `times` times; rewards add up, an episode's end stops the rest."""

    def __init__(self, env: AnyEnv, times: int = 4) -> None:
        super().__init__(env)
        if times < 1:
            raise ValueError(f"times={times} is not a positive number")
        self._times = times

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        total = 0.0
        for _ in range(self._times):
            obs, reward, terminated, truncated, info = self.env.step(action)
            total += float(reward)
            if terminated or truncated:
                break
        return obs, total, terminated, truncated, info


OWN: dict[str, type[gym.Wrapper[Any, Any, Any, Any]]] = {"Obscure": Obscure, "Repeat": Repeat}

# Wrappers whose work is done elsewhere, where it is right at episode ends and in checkpoints.
INSTEAD = {
    "Autoreset": "nothing: episodes are restarted by Ludus",
    "FrameStackObservation": "env.stack=4",
    "NormalizeObservation": "env.normalize.obs=true",
    "NormalizeReward": "env.normalize.reward=true",
    "ClipReward": "env.reward_clip=clamp",
    "TimeLimit": "env.max_episode_steps=1000",
}


def wrap(env: AnyEnv, cfg: WrapperConfig) -> AnyEnv:
    """The environment inside one more wrapper."""
    if cfg.name in INSTEAD:
        raise LudusError(
            "E104",
            f"wrapper {cfg.name} would hide from Ludus what it has to know",
            where="env.wrappers",
            fix=f"use instead  {INSTEAD[cfg.name]}",
        )
    wrapper = _find(cfg.name)
    try:
        wrapped = wrapper(env, **cfg.options)
    except Exception as error:
        raise LudusError(
            "E201",
            f"wrapper {cfg.name} cannot be applied: {type(error).__name__}: {error}",
            where=f"env.wrappers, options {cfg.options}",
            fix="check its options, the order of wrappers and the environment's spaces",
        ) from error
    if not isinstance(wrapped, gym.Env):
        raise LudusError(
            "E201",
            f"wrapper {cfg.name} did not return an environment",
            where="env.wrappers",
            why=f"it is a function that lacks its return, or no wrapper: it gave {wrapped!r:.80}",
            fix="return a gymnasium.Env from it",
        )
    return wrapped


def _find(name: str) -> Any:
    if name in OWN:
        return OWN[name]
    if ":" in name:
        module_name, _, attribute = name.partition(":")
        try:
            return getattr(importlib.import_module(module_name), attribute)
        except (ImportError, AttributeError) as error:
            raise LudusError(
                "E201",
                f"wrapper {name} cannot be imported",
                where="env.wrappers",
                why=str(error),
                fix="check the spelling; write  module:Class",
            ) from error
    found = getattr(gymnasium_wrappers, name, None)
    if found is None:
        choices = [*OWN, *gymnasium_wrappers.__all__]
        raise LudusError(
            "E201",
            f"unknown wrapper  {name}{nearest(name, choices)}",
            where="env.wrappers",
            fix="use one of gymnasium.wrappers by its class name, or  module:Class",
        )
    return found
