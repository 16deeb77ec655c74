"""Checks a user's environment and lists its problems, for `ludus check`. Does not raise for the
environment's faults."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import gymnasium as gym
import numpy as np

from ludus.envs.action_check import MaskReader, unused_mask
from ludus.envs.backends.failures import last_line
from ludus.envs.blueprint import Blueprint
from ludus.envs.check_obs import Finding, Level, ObsRanges
from ludus.envs.config import EnvConfig
from ludus.envs.ids import version_notes
from ludus.envs.make import make_one
from ludus.envs.spec import ObsCodec
from ludus.errors import LudusError, env_faults

AnyEnv: TypeAlias = gym.Env[Any, Any]
LONG_EPISODE = 10_000  # steps without an end, then warn of a missing time limit


@dataclass
class _Report:
    """Findings without duplicates."""

    findings: list[Finding] = field(default_factory=list)

    def add(self, level: Level, text: str, fix: str = "") -> None:
        if text not in {f.text for f in self.findings}:
            self.findings.append(Finding(level, text, fix))

    @property
    def broken(self) -> bool:
        return any(f.level == "error" for f in self.findings)


def check_env(
    target: str | EnvConfig | Callable[[], AnyEnv], *, steps: int = 500, seconds: float = 20.0
) -> list[Finding]:
    """Findings about an id, a module:Class, a configuration or a function that makes one.

    Errors come first; the last findings say what is fine. An environment without errors trains.
    """
    report = _Report()
    cfg = EnvConfig(id=target) if isinstance(target, str) else target
    for note in version_notes(cfg.id) if isinstance(cfg, EnvConfig) else ():
        report.add("warning", note)
    try:
        env, limit = make_one(cfg) if isinstance(cfg, EnvConfig) else (cfg(), None)
    except LudusError as error:
        return [Finding("error", f"{error.what}. {error.why}".strip(". ") + ".", error.fix)]
    except env_faults() as error:
        return [Finding("error", f"it cannot be made: {type(error).__name__}: {error}")]
    try:
        made = _check_spaces(env, cfg if isinstance(cfg, EnvConfig) else None, report)
        if made is not None and _check_reset(env, made, report):
            _check_steps(env, made, report, steps=steps, limit=limit, seconds=seconds)
        if made is not None and not report.broken:
            _check_seed(env, made, report)
            _check_render(env, report)
    except LudusError as error:
        report.add("error", error.what, error.fix)
    except env_faults() as error:
        report.add(
            "error",
            f"its own code failed: {type(error).__name__}: {error} ({last_line(error)})",
            "correct the line it names",
        )
    finally:
        _close(env, report)
    order = {"error": 0, "warning": 1, "ok": 2}
    return sorted(report.findings, key=lambda f: order[f.level])


@dataclass(frozen=True)
class _Made:
    """The blueprint of an environment, and the range of its observations so far."""

    blueprint: Blueprint
    ranges: ObsRanges

    @property
    def codec(self) -> ObsCodec:
        return self.blueprint.codec


def _check_spaces(env: AnyEnv, cfg: EnvConfig | None, report: _Report) -> _Made | None:
    try:
        blueprint = Blueprint(cfg or EnvConfig(id=type(env.unwrapped).__name__), env, None)
    except LudusError as error:
        report.add("error", f"{error.what}. {error.where}", error.fix)
        return None
    report.add("ok", f"observations: {env.observation_space}; actions: {env.action_space}")
    space = env.action_space
    if isinstance(space, gym.spaces.Box):
        if not (np.isfinite(space.low).all() and np.isfinite(space.high).all()):
            report.add("warning", "the action box has no finite bounds", "give low and high")
        elif not np.allclose(space.low, -space.high):
            options = "{min_action: -1, max_action: 1}"
            fix = f"wrap it:  env.wrappers=[{{name: RescaleAction, options: {options}}}]"
            report.add("warning", "the action box is not symmetric; policies start around 0", fix)
    if blueprint.masks:
        where = "info" if blueprint.masks == "info" else "action_masks()"
        report.add("ok", f"action masks come from {where}")
    unused = unused_mask(blueprint.spec)
    if unused is not None:
        report.add("warning", *unused)
    normalized = cfg is not None and cfg.normalize.obs
    return _Made(blueprint, ObsRanges(blueprint.codec, normalized=normalized))


def _check_obs(env: AnyEnv, made: _Made, obs: Any, call: str, report: _Report) -> bool:
    """False when the observation cannot be used at all."""
    codec = made.codec
    buffers = codec.buffers(1)
    try:
        codec.write(obs, buffers, 0)
    except LudusError as error:
        report.add("error", f"{call}: {error.what}", error.fix)
        return False
    if not all(np.isfinite(b).all() for b in buffers):
        fix = "look for a division by zero or an overflow"
        report.add("error", f"{call} returned an observation with NaN or infinity", fix)
        return False
    made.ranges.add(buffers)
    only = codec.leaves[0]
    if only.kind == "box" and not only.keys:
        given, expected = np.asarray(obs), only.given_dtype
        if given.dtype != expected:
            report.add(
                "warning",
                f"{call} returned {given.dtype} where observation_space says {expected}",
                f"return  obs.astype(np.{expected})",
            )
            obs = given.astype(expected)
    if not env.observation_space.contains(obs):
        report.add(
            "warning",
            f"{call} returned an observation outside observation_space's bounds",
            "widen low and high, or scale the observation",
        )
    return True


def _check_reset(env: AnyEnv, made: _Made, report: _Report) -> bool:
    try:
        result: Any = env.reset(seed=1)
    except TypeError as error:
        if "seed" not in str(error):
            raise
        fix = "def reset(self, *, seed=None, options=None): super().reset(seed=seed); ..."
        report.add("error", "reset() does not take a seed", fix)
        return False
    if not isinstance(result, tuple) or len(result) != 2:
        report.add("error", "reset() does not return two values", "return  obs, info")
        return False
    if not isinstance(result[1], dict):
        report.add("error", "reset() returns an info that is not a dict", "return  obs, {}")
        return False
    return _check_obs(env, made, result[0], "reset()", report)


def _check_step(env: AnyEnv, made: _Made, result: Any, report: _Report) -> bool:
    """False when the five values cannot be used."""
    if not isinstance(result, tuple) or len(result) != 5:
        size = f"{len(result)} values" if isinstance(result, tuple) else type(result).__name__
        fix = "return  obs, reward, terminated, truncated, info"
        report.add("error", f"step() returned {size}, expected five values", fix)
        return False
    obs, reward, terminated, truncated, info = result
    try:
        number = float(reward)
    except (TypeError, ValueError):
        report.add("error", f"the reward is {reward!r}, not a number", "return a float")
        return False
    if not np.isfinite(number):
        report.add("error", f"the reward is {number}", "return finite rewards")
        return False
    for name, flag in (("terminated", terminated), ("truncated", truncated)):
        if not isinstance(flag, bool | np.bool_):
            report.add("warning", f"{name} is a {type(flag).__name__}", f"return  bool({name})")
    if not isinstance(info, dict):
        report.add("error", f"info is a {type(info).__name__}", "return a dict, {} will do")
        return False
    return _check_obs(env, made, obs, "step()", report)


def _check_steps(
    env: AnyEnv,
    made: _Made,
    report: _Report,
    *,
    steps: int,
    limit: int | None,
    seconds: float,
) -> None:
    act = _Actor(env, made.blueprint, seed=1)
    began, taken, ended, length, spent = time.monotonic(), 0, 0, 0, 0.0
    info: Any = env.reset(seed=1)[1]
    # Until an episode ends, within reasonable time.
    while (taken < steps or not ended) and taken < LONG_EPISODE:
        if time.monotonic() - began > seconds:
            break
        start = time.perf_counter()
        result = env.step(act(info))
        spent += time.perf_counter() - start
        taken, length = taken + 1, length + 1
        if not _check_step(env, made, result, report):
            return
        info = result[4]
        if result[2] or result[3] or (limit is not None and length >= limit):
            ended, length = ended + 1, 0
            info = _restart(env, made, report)
    if not ended:
        report.add(
            "warning",
            f"no episode ended in {taken} random steps",
            "if it can continue forever, set  env.max_episode_steps=1000  (a truncation)",
        )
    else:
        report.add("ok", f"{ended} episodes ended in {taken} random steps")
    for finding in made.ranges.findings():
        report.add(*finding)
    rate = taken / max(spent, 1e-9)
    fix = "step it in processes:  env.workers=4" if rate < 1000 else ""
    report.add("warning" if fix else "ok", f"{rate:,.0f} steps per second in one process", fix)


def _restart(env: AnyEnv, made: _Made, report: _Report) -> Any:
    """Reset after an episode end, without a seed; return the info."""
    obs, info = env.reset()
    _check_obs(env, made, obs, "reset()", report)
    return info


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


def _check_seed(env: AnyEnv, made: _Made, report: _Report) -> None:
    """Check that the same seed and actions give the same trajectory."""
    runs = []
    for _ in range(2):
        obs, info = env.reset(seed=7)
        act, seen = _Actor(env, made.blueprint, seed=7), [_flat(obs)]
        for _ in range(30):
            obs, reward, terminated, truncated, info = env.step(act(info))
            seen += [_flat(obs), np.array([float(reward)])]
            if terminated or truncated:
                break
        runs.append(seen)
    same = [np.array_equal(a, b) for a, b in zip(*runs, strict=False)]
    if len(runs[0]) != len(runs[1]) or not all(same):
        what = "the first observation" if not same[0] else "what follows the same actions"
        report.add(
            "error",
            f"reset(seed=7) twice: {what} differs, so no run can be repeated",
            "call  super().reset(seed=seed)  and draw only from  self.np_random",
        )
    else:
        report.add("ok", "the same seed gives the same episode")


def _flat(obs: Any) -> Any:
    if isinstance(obs, dict):
        return np.concatenate([_flat(obs[k]) for k in sorted(obs)])
    if isinstance(obs, tuple):
        return np.concatenate([_flat(o) for o in obs])
    return np.asarray(obs, np.float64).ravel()


def _check_render(env: AnyEnv, report: _Report) -> None:
    modes = env.metadata.get("render_modes", [])
    if "rgb_array" not in modes:
        fix = 'metadata = {"render_modes": ["rgb_array"]}  and  render()  returning an image'
        report.add("warning", "it cannot be filmed: no render mode rgb_array", fix)


def _close(env: AnyEnv, report: _Report) -> None:
    try:
        env.close()
    except env_faults() as error:
        report.add("warning", f"close() failed: {type(error).__name__}: {error}")
