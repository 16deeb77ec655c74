"""Checks a user's environment and lists its problems, for `ludus check`. Does not raise for the
environment's faults."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, TypeAlias

import gymnasium as gym
import numpy as np

from ludus.envs.action_check import MaskReader, unused_mask
from ludus.envs.backends.failures import last_line
from ludus.envs.blueprint import Blueprint
from ludus.envs.config import EnvConfig
from ludus.envs.ids import version_notes
from ludus.envs.make import make_one
from ludus.envs.spec import EXACT, Leaf, explain_rounding
from ludus.errors import LudusError, env_faults

AnyEnv: TypeAlias = gym.Env[Any, Any]
Level: TypeAlias = Literal["error", "warning", "ok"]
LEVELS: tuple[Level, ...] = ("error", "warning", "ok")
LONG_EPISODE = 10_000  # steps without an end, then warn of a missing time limit
TINY = 0.1  # warn below this share of the declared range


class Finding(NamedTuple):
    level: Level
    text: str
    fix: str = ""


def check_env(
    target: str | EnvConfig | Callable[[], AnyEnv], *, steps: int = 500, seconds: float = 20.0
) -> list[Finding]:
    """Findings about an id, a module:Class, a configuration or a function that makes one.

    Errors come first; the last findings say what is fine. An environment without errors trains.
    """
    cfg = EnvConfig(id=target) if isinstance(target, str) else target
    try:
        env, limit = make_one(cfg) if isinstance(cfg, EnvConfig) else (cfg(), None)
    except LudusError as error:
        return [Finding("error", f"{error.what}. {error.why}".strip(". ") + ".", error.fix)]
    except env_faults() as error:
        return [Finding("error", f"it cannot be made: {type(error).__name__}: {error}")]
    check = _Check(env, cfg if isinstance(cfg, EnvConfig) else None, limit)
    check.run(steps, seconds)
    return sorted(check.findings, key=lambda f: LEVELS.index(f.level))


class _Check:
    """The checks of one environment and their findings, without duplicates."""

    def __init__(self, env: AnyEnv, cfg: EnvConfig | None, limit: int | None) -> None:
        self.env, self.cfg, self.limit = env, cfg, limit
        self.findings: list[Finding] = []
        for note in version_notes(cfg.id) if cfg is not None else ():
            self.add("warning", note)

    def add(self, level: Level, text: str, fix: str = "") -> None:
        if text not in {f.text for f in self.findings}:
            self.findings.append(Finding(level, text, fix))

    def run(self, steps: int, seconds: float) -> None:
        try:
            if self._spaces() and self._reset():
                self._steps(steps, seconds)
            if not any(f.level == "error" for f in self.findings):
                self._seed()
                self._render()
        except LudusError as error:
            self.add("error", error.what, error.fix)
        except env_faults() as error:
            what = f"its own code failed: {type(error).__name__}: {error} ({last_line(error)})"
            self.add("error", what, "correct the line it names")
        finally:
            self._close()

    def _spaces(self) -> bool:
        """False when no network can read its observations or choose its actions."""
        try:
            cfg = self.cfg or EnvConfig(id=type(self.env.unwrapped).__name__)
            self.blueprint = blueprint = Blueprint(cfg, self.env, None)
        except LudusError as error:
            self.add("error", f"{error.what}. {error.where}", error.fix)
            return False
        space, leaves = self.env.action_space, len(blueprint.codec.leaves)
        self.low, self.high = [np.inf] * leaves, [-np.inf] * leaves  # inputs of the network so far
        self.add("ok", f"observations: {self.env.observation_space}; actions: {space}")
        if isinstance(space, gym.spaces.Box):
            if not (np.isfinite(space.low).all() and np.isfinite(space.high).all()):
                self.add("warning", "the action box has no finite bounds", "give low and high")
            elif not np.allclose(space.low, -space.high):
                options = "{min_action: -1, max_action: 1}"
                fix = f"wrap it:  env.wrappers=[{{name: RescaleAction, options: {options}}}]"
                self.add("warning", "the action box is not symmetric; policies start around 0", fix)
        if blueprint.masks:
            where = "info" if blueprint.masks == "info" else "action_masks()"
            self.add("ok", f"action masks come from {where}")
        unused = unused_mask(blueprint.spec)
        if unused is not None:
            self.add("warning", *unused)
        return True

    def _obs(self, obs: Any, call: str) -> bool:
        """False when the observation cannot be used at all."""
        codec = self.blueprint.codec
        buffers = codec.buffers(1)
        try:
            codec.write(obs, buffers, 0)
        except LudusError as error:
            self.add("error", f"{call}: {error.what}", error.fix)
            return False
        if not all(np.isfinite(b).all() for b in buffers):
            fix = "look for a division by zero or an overflow"
            self.add("error", f"{call} returned an observation with NaN or infinity", fix)
            return False
        for i, (leaf, buffer) in enumerate(zip(codec.leaves, buffers, strict=True)):
            if buffer.size:
                self.low[i] = min(self.low[i], _seen(leaf, float(buffer.min())))
                self.high[i] = max(self.high[i], _seen(leaf, float(buffer.max())))
        only = codec.leaves[0]
        if only.kind == "box" and not only.keys:
            given, expected = np.asarray(obs), only.given_dtype
            if given.dtype != expected:
                what = f"{call} returned {given.dtype} where observation_space says {expected}"
                self.add("warning", what, f"return  obs.astype(np.{expected})")
                obs = given.astype(expected)
        if not self.env.observation_space.contains(obs):
            what = f"{call} returned an observation outside observation_space's bounds"
            self.add("warning", what, "widen low and high, or scale the observation")
        return True

    def _reset(self) -> bool:
        try:
            result: Any = self.env.reset(seed=1)
        except TypeError as error:
            if "seed" not in str(error):
                raise
            fix = "def reset(self, *, seed=None, options=None): super().reset(seed=seed); ..."
            self.add("error", "reset() does not take a seed", fix)
            return False
        if not isinstance(result, tuple) or len(result) != 2:
            self.add("error", "reset() does not return two values", "return  obs, info")
            return False
        if not isinstance(result[1], dict):
            self.add("error", "reset() returns an info that is not a dict", "return  obs, {}")
            return False
        return self._obs(result[0], "reset()")

    def _step(self, result: Any) -> bool:
        """False when the five values cannot be used."""
        if not isinstance(result, tuple) or len(result) != 5:
            size = f"{len(result)} values" if isinstance(result, tuple) else type(result).__name__
            fix = "return  obs, reward, terminated, truncated, info"
            self.add("error", f"step() returned {size}, expected five values", fix)
            return False
        obs, reward, terminated, truncated, info = result
        try:
            number = float(reward)
        except (TypeError, ValueError):
            self.add("error", f"the reward is {reward!r}, not a number", "return a float")
            return False
        if not np.isfinite(number):
            self.add("error", f"the reward is {number}", "return finite rewards")
            return False
        for name, flag in (("terminated", terminated), ("truncated", truncated)):
            if not isinstance(flag, bool | np.bool_):
                self.add("warning", f"{name} is a {type(flag).__name__}", f"return  bool({name})")
        if not isinstance(info, dict):
            self.add("error", f"info is a {type(info).__name__}", "return a dict, {} will do")
            return False
        return self._obs(obs, "step()")

    def _steps(self, steps: int, seconds: float) -> None:
        act = _Actor(self.env, self.blueprint, seed=1)
        began, taken, ended, length, spent = time.monotonic(), 0, 0, 0, 0.0
        info: Any = self.env.reset(seed=1)[1]
        # Until an episode ends, within reasonable time.
        while (taken < steps or not ended) and taken < LONG_EPISODE:
            if time.monotonic() - began > seconds:
                break
            start = time.perf_counter()
            result = self.env.step(act(info))
            spent += time.perf_counter() - start
            taken, length = taken + 1, length + 1
            if not self._step(result):
                return
            info = result[4]
            if result[2] or result[3] or (self.limit is not None and length >= self.limit):
                ended, length = ended + 1, 0
                obs, info = self.env.reset()
                self._obs(obs, "reset()")
        if ended:
            self.add("ok", f"{ended} episodes ended in {taken} random steps")
        else:
            fix = "if it can continue forever, set  env.max_episode_steps=1000  (a truncation)"
            self.add("warning", f"no episode ended in {taken} random steps", fix)
        for leaf, low, high in zip(self.blueprint.codec.leaves, self.low, self.high, strict=True):
            if low <= high:
                self._range(leaf, low, high)
        rate = taken / max(spent, 1e-9)
        fix = "step it in processes:  env.workers=4" if rate < 1000 else ""
        self.add("warning" if fix else "ok", f"{rate:,.0f} steps per second in one process", fix)

    def _range(self, leaf: Leaf, low: float, high: float) -> None:
        """The range of a leaf as the network sees it."""
        range_, text = _range(leaf), f"{leaf.path}: the network sees {low:.3g} to {high:.3g}"
        text += f" ({range_})" if range_ else ""
        integers = leaf.given_dtype.kind in "iu"
        if self.cfg is not None and self.cfg.normalize.obs:
            self.add("ok", f"{text}, then normalised by running statistics")
        elif range_ and leaf.kind == "box" and integers and high - low < TINY:
            text += ": the values use little of the range that observation_space declares"
            fix = (
                "env.normalize.obs=true, env.integer_scale=none, or declare the true low and high "
                "(in a wrapper if the environment is not yours)"
            )
            self.add("warning", text, fix)
        elif leaf.scaling is None and integers and max(abs(low), abs(high)) > EXACT:
            text += f": float32 holds integers exactly up to {EXACT} only"
            self.add("warning", text, "env.integer_scale=bounds, or split them in a wrapper")
        else:
            self.add("ok", text)
        if leaf.spec.rounded:
            self.add("warning", *explain_rounding(leaf.path))

    def _seed(self) -> None:
        """Check that the same seed and actions give the same trajectory."""
        runs = []
        for _ in range(2):
            obs, info = self.env.reset(seed=7)
            act, seen = _Actor(self.env, self.blueprint, seed=7), [_flat(obs)]
            for _ in range(30):
                obs, reward, terminated, truncated, info = self.env.step(act(info))
                seen += [_flat(obs), np.array([float(reward)])]
                if terminated or truncated:
                    break
            runs.append(seen)
        same = [np.array_equal(a, b) for a, b in zip(*runs, strict=False)]
        if len(runs[0]) == len(runs[1]) and all(same):
            self.add("ok", "the same seed gives the same episode")
            return
        which = "the first observation" if not same[0] else "what follows the same actions"
        what = f"reset(seed=7) twice: {which} differs, so no run can be repeated"
        self.add(
            "error", what, "call  super().reset(seed=seed)  and draw only from  self.np_random"
        )

    def _render(self) -> None:
        if "rgb_array" not in self.env.metadata.get("render_modes", []):
            fix = 'metadata = {"render_modes": ["rgb_array"]}  and  render()  returning an image'
            self.add("warning", "it cannot be filmed: no render mode rgb_array", fix)

    def _close(self) -> None:
        try:
            self.env.close()
        except env_faults() as error:
            self.add("warning", f"close() failed: {type(error).__name__}: {error}")


class _Actor:
    """Random allowed actions, the same for the same seed."""

    def __init__(self, env: AnyEnv, blueprint: Blueprint, seed: int) -> None:
        self._env, self._rng = env, np.random.default_rng(seed)
        env.action_space.seed(seed)
        self._actions, source = blueprint.actions, blueprint.masks
        self._read = MaskReader(blueprint.actions.spec) if source else None
        self._masks = env.get_wrapper_attr("action_masks") if source == "method" else None

    def __call__(self, info: Any) -> Any:
        mask = self._masks() if self._masks else info.get("action_mask")
        if mask is None or self._read is None:
            return self._env.action_space.sample()
        action = self._read.sample(self._read(mask), self._rng)
        return self._actions.decode(np.asarray(action)[None])[0]


def _flat(obs: Any) -> Any:
    if isinstance(obs, dict):
        return np.concatenate([_flat(obs[k]) for k in sorted(obs)])
    if isinstance(obs, tuple):
        return np.concatenate([_flat(o) for o in obs])
    return np.asarray(obs, np.float64).ravel()


def _seen(leaf: Leaf, value: float) -> float:
    if leaf.spec.dtype != "uint8":
        return value
    low, high = leaf.spec.scale
    return (value - low) / (high - low)


def _range(leaf: Leaf) -> str:
    """Which values the network sees as 0 and 1; empty if unscaled."""
    if leaf.kind != "box":
        return "one-hot"
    if leaf.spec.dtype == "uint8":
        low, high = leaf.spec.scale
    elif leaf.scaling is None or not leaf.scaling.bounded:
        return ""
    else:
        ends = leaf.scaling.low, leaf.scaling.low + leaf.scaling.span
        if any(np.ptp(end) for end in ends):
            return f"low to high of {leaf.given_dtype} as 0 to 1, each by its own bounds"
        low, high = (float(end.flat[0]) for end in ends)
    return f"{low:.15g} to {high:.15g} of {leaf.given_dtype} as 0 to 1"
