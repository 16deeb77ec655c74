"""Wrappers by name: our own, gymnasium's, or a user's module:Class.

Refuses wrappers for work that Ludus does itself (resets, stacks, normalisation) and names the
setting to use instead.
"""

from __future__ import annotations

import difflib
import inspect
from typing import Any, TypeAlias

import gymnasium as gym
import numpy as np
from gymnasium import wrappers as gymnasium_wrappers

from ludus.envs.wrapper_config import WHERE, WrapperConfig, written
from ludus.errors import LudusError, env_faults, nearest
from ludus.process.modules import import_named, of_python
from ludus.secret_masking import masked

Array: TypeAlias = np.ndarray[Any, Any]
AnyEnv: TypeAlias = gym.Env[Any, Any]


class Obscure(gym.ObservationWrapper[Any, Any, Any]):
    """Blanks the observation with a probability (flickering, Hausknecht & Stone 2015)."""

    def __init__(self, env: AnyEnv, probability: float = 0.5) -> None:
        super().__init__(env)
        if not isinstance(env.observation_space, gym.spaces.Box):
            raise TypeError("Obscure needs a Box observation")
        if not 0 <= probability <= 1:
            raise ValueError(f"probability {probability} is not between 0 and 1")
        self._probability, self._rng = probability, np.random.default_rng(0)

    def observation(self, observation: Array) -> Array:
        blank = self._rng.random() < self._probability
        return np.zeros_like(observation) if blank else observation

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        if seed is not None:
            # A separate stream, so that the wrapper does not change the environment's randomness.
            self._rng = np.random.default_rng([seed, 1])
        return super().reset(seed=seed, options=options)


class Repeat(gym.Wrapper[Any, Any, Any, Any]):
    """Repeats each action `times` times and sums the rewards; stops at the end of an episode."""

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


class MaskFromObs(gym.Wrapper[Any, Any, Any, Any]):
    """Uses the entry `key` of a Dict observation as action mask and removes it."""

    def __init__(self, env: AnyEnv, key: str = "action_mask") -> None:
        super().__init__(env)
        space = env.observation_space
        if not isinstance(space, gym.spaces.Dict) or key not in space.spaces:
            raise TypeError(f"the observation has no entry {key}")
        rest = {name: part for name, part in space.spaces.items() if name != key}
        if not rest:
            raise TypeError(f"the observation has nothing but {key}")
        self._key, self.observation_space = key, gym.spaces.Dict(rest)

    def _split(self, obs: Any, info: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        seen = {name: part for name, part in obs.items() if name != self._key}
        return seen, {**info, "action_mask": obs[self._key]}

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        return self._split(*self.env.reset(seed=seed, options=options))

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = self.env.step(action)
        obs, info = self._split(obs, info)
        return obs, reward, terminated, truncated, info


OWN: dict[str, type[gym.Wrapper[Any, Any, Any, Any]]] = {
    "MaskFromObs": MaskFromObs,
    "Obscure": Obscure,
    "Repeat": Repeat,
}

# Wrappers whose work Ludus does itself, correctly at episode ends and in checkpoints.
INSTEAD = {
    "Autoreset": "nothing: episodes are restarted by Ludus",
    "FrameStackObservation": "env.stack=4",
    "NormalizeObservation": "env.normalize.obs=true",
    "NormalizeReward": "env.normalize.reward=true",
    "ClipReward": "env.reward_clip=clamp",
    "TimeLimit": "env.max_episode_steps=1000",
}


def wrap(env: AnyEnv, cfg: WrapperConfig) -> AnyEnv:
    """Apply one wrapper to the environment."""
    if cfg.name in INSTEAD:
        raise LudusError(
            "E104",
            f"wrapper {cfg.name} would hide from Ludus what it has to know",
            where=WHERE,
            why="episode ends, stacks and statistics are kept right outside all wrappers",
            fix=f"use instead  {INSTEAD[cfg.name]}",
        )
    wrapper = _find(cfg)
    if not (isinstance(wrapper, type) and issubclass(wrapper, gym.Wrapper)):
        raise LudusError(
            "E201",
            f"{cfg.name} is not a gymnasium.Wrapper, and is not called",
            where=WHERE,
            why="only a class derived from gymnasium.Wrapper wraps an environment",
            fix="derive the class from gymnasium.Wrapper",
        )
    known = _check_options(wrapper, cfg)
    try:
        wrapped: AnyEnv = wrapper(env, **cfg.options)
    except env_faults() as error:
        raise LudusError(
            "E201",
            f"wrapper {cfg.name} cannot be applied: {type(error).__name__}: {error}",
            where=f"{WHERE}, options {masked(cfg.options)}",
            why=f"one of its options ({known}), the order of wrappers, or the environment's spaces",
            fix=written(cfg.name, dict.fromkeys(cfg.options, "...")),
        ) from error
    return wrapped


def _check_options(wrapper: Any, cfg: WrapperConfig) -> str:
    """Refuse unknown and missing options; return the names of all options."""
    try:
        parameters = list(inspect.signature(wrapper).parameters.values())[1:]  # without `env`
    except (TypeError, ValueError):  # no signature: rely on the constructor's own error
        return "unknown"
    anything = any(p.kind is p.VAR_KEYWORD for p in parameters)
    named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    names = [p.name for p in named]
    known = ", ".join(names) or "none"
    unknown = [option for option in cfg.options if option not in names and not anything]
    missing = [p.name for p in named if p.default is p.empty and p.name not in cfg.options]
    if unknown:
        raise LudusError(
            "E101",
            f"wrapper {cfg.name} has no option {unknown[0]}{nearest(unknown[0], names)}",
            where=f"{WHERE}, options {masked(cfg.options)}",
            why=f"the options of {cfg.name} are: {known}",
            fix=written(cfg.name, _corrected(masked(cfg.options), names)),
        )
    if missing:
        raise LudusError(
            "E102",
            f"wrapper {cfg.name} needs the option {' and '.join(missing)}",
            where=WHERE,
            why="it has no default",
            fix=written(cfg.name, {**masked(cfg.options), **dict.fromkeys(missing, "...")}),
        )
    return known


def _corrected(options: dict[str, Any], names: list[str]) -> dict[str, Any]:
    """Rename the options to their nearest names; drop those without one."""
    found = {}
    for option, value in options.items():
        close = difflib.get_close_matches(option, names, n=1, cutoff=0.5)
        found.update({close[0]: value} if close else {})
    return found


def _find(cfg: WrapperConfig) -> Any:
    name = cfg.name
    if name in OWN:
        return OWN[name]
    if ":" in name:
        return _import(cfg)
    found = vars(gymnasium_wrappers).get(name)
    if not isinstance(found, type):
        theirs = [n for n, v in vars(gymnasium_wrappers).items() if isinstance(v, type)]
        choices = [*OWN, *theirs]
        close = difflib.get_close_matches(name, choices, n=1, cutoff=0.5)
        own = "use one of gymnasium.wrappers by its class name, or  module:Class"
        raise LudusError(
            "E201",
            f"unknown wrapper  {name}{nearest(name, choices)}",
            where=WHERE,
            why=f"it is neither one of Ludus ({', '.join(OWN)}) nor of gymnasium.wrappers",
            fix=written(close[0], masked(cfg.options)) if close else own,
        )
    return found


def _import(cfg: WrapperConfig) -> Any:
    module_name, _, attribute = cfg.name.partition(":")
    if of_python(module_name):
        return None
    try:
        module = import_named(module_name)
    except ImportError as error:
        raise LudusError(
            "E201",
            f"wrapper {cfg.name} cannot be imported",
            where=WHERE,
            why=str(error),
            fix="check the spelling of  module:Class ; cd to the folder that holds the module, or  "
            "PYTHONPATH=FOLDER ludus ...",
        ) from error
    if hasattr(module, attribute):
        return getattr(module, attribute)
    names = [n for n, v in vars(module).items() if callable(v) and not n.startswith("_")]
    close = difflib.get_close_matches(attribute, names, n=1, cutoff=0.5)
    name = f"{module_name}:{close[0] if close else 'CLASS'}"
    raise LudusError(
        "E201",
        f"wrapper {cfg.name} cannot be imported{nearest(attribute, names)}",
        where=WHERE,
        why=f"module {module_name} has no {attribute}",
        fix=written(name, masked(cfg.options)),
    )
