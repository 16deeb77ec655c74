"""The in-process backend: scalar gymnasium environments stepped one after another.

A backend only steps and resets environments as instructed. The adapter decides when an episode
ends, what a dummy row is, and which reward the learner sees.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from time import monotonic
from typing import Any, Protocol, TypeAlias

import gymnasium as gym
import numpy as np

from ludus.envs.action_check import MaskReader
from ludus.envs.backends.failures import Failure, Streak, close_env, env_error, failure, last_line
from ludus.envs.blueprint import Blueprint
from ludus.envs.render.viewer import USUAL_FPS, Viewer, picture_of
from ludus.envs.spec import ObsCodec
from ludus.errors import LudusError, env_faults
from ludus.seeding import env_seed

Array: TypeAlias = np.ndarray[Any, Any]
Rebuild: TypeAlias = Callable[[int], gym.Env[Any, Any]]
HEARTBEAT_SECONDS = 0.1  # least time between the heartbeats of steps; most steps are far quicker


@dataclass
class EnvArrays:
    """Results of each environment's newest step. Backends write them, the adapter reads them."""

    obs: list[Array]  # leaves [N, ...]
    reward: Array  # [N] float64, the environment's own
    terminal: Array  # [N] bool: nothing follows (discount 0); alone it is a soft terminal
    over: Array  # [N] bool: the environment must reset before it can be stepped again
    # [N] int64, from the adapter: the seed of each next episode; -1: the generator continues
    seeds: Array
    action_mask: Array | None = None  # [N, W] bool
    infos: dict[int, Mapping[str, float]] = field(default_factory=dict)  # of ended episodes
    # [N] bool, if asked for: the learner's episode ends here, the environment's continues
    life: Array | None = None
    # By group: leaves [n, ...] without another owner. The adapter returns them instead of a copy
    # of `obs`.
    fresh: dict[int, list[Array]] = field(default_factory=dict)
    # Environments that failed in the newest step or reset and were rebuilt: their observation is
    # the first of an episode.
    failures: dict[int, Failure] = field(default_factory=dict)

    @classmethod
    def of(cls, arrays: Mapping[str, Any]) -> EnvArrays:
        """From `named_arrays`; arrays of other names are left out."""
        obs = [leaf for name, leaf in arrays.items() if name.startswith("obs/")]
        return cls(obs, **{f.name: arrays[f.name] for f in fields(cls) if f.name in arrays})


class Backend(Protocol):
    """Native vector environments implement this too; `resets` then includes their own."""

    arrays: EnvArrays

    def reset(self, seeds: Sequence[int]) -> None:
        """Start a new episode in every environment, each with its own seed."""

    def send(self, actions: Array, resets: Array, group: int) -> None:
        """Step the group, but reset the environments in `resets`, with `arrays.seeds`."""

    def recv(self, group: int) -> None:
        """Wait until the group's entries of `arrays` hold the results."""

    def close(self) -> None: ...


def named_arrays(codec: ObsCodec, num: int, mask_width: int, *, lives: bool) -> dict[str, Array]:
    """The arrays of `EnvArrays` by name, leaves of observations as obs/0, obs/1 ..."""
    arrays: dict[str, Array] = {f"obs/{i}": leaf for i, leaf in enumerate(codec.buffers(num))}
    arrays |= {"reward": np.zeros(num), "seeds": np.full(num, -1, np.int64)}
    arrays |= {flag: np.zeros(num, bool) for flag in ("terminal", "over")}
    if mask_width:
        arrays["action_mask"] = np.ones((num, mask_width), bool)
    if lives:
        arrays["life"] = np.zeros(num, bool)
    return arrays


def allocate(codec: ObsCodec, num: int, mask_width: int, *, lives: bool = False) -> EnvArrays:
    return EnvArrays.of(named_arrays(codec, num, mask_width, lives=lives))


class Serial:
    """N environments, one generator each, stepped in a minimal loop."""

    def __init__(
        self,
        envs: Sequence[gym.Env[Any, Any]],
        blueprint: Blueprint,
        arrays: EnvArrays,
        *,
        groups: Sequence[slice],
        first_env: int,
        viewer: Viewer | None,
        rebuild: Rebuild | None,
    ) -> None:
        """`rebuild(env)` makes a replacement for a failed environment; None: raise."""
        self.arrays, self._viewer, self._rebuild = arrays, viewer, rebuild
        self._envs, self._codec, self._actions = list(envs), blueprint.codec, blueprint.actions
        self._groups, self._masks, self._first_env = list(groups), blueprint.masks, first_env
        self._read_mask = MaskReader(blueprint.actions.spec) if self._masks else None
        self._inbox: dict[int, tuple[Array, Array]] = {}
        self.heartbeat: Callable[[], None] | None = None  # called as environments advance
        self._next_beat = 0.0  # time of the next heartbeat of a step
        self.at, self.resetting = 0, False  # the environment being stepped or reset
        self._steps: list[Callable[[Any], Any]] = [env.step for env in self._envs]
        self._mask_methods: list[Callable[[], Any]] = (
            [env.get_wrapper_attr("action_masks") for env in self._envs]
            if self._masks == "method"
            else []
        )
        self._seeds: list[int | None] = [None] * len(self._envs)  # the newest of each
        self._streaks = [Streak() for _ in self._envs]
        self._restarts, self._rows = [0] * len(self._envs), [0] * len(self._groups)

    def reset(self, seeds: Sequence[int]) -> None:
        self._inbox.clear()
        for i, seed in enumerate(seeds):
            self._begin(i, seed)
        if self._viewer is not None:
            self._viewer.show()

    def send(self, actions: Array, resets: Array, group: int) -> None:
        self._inbox[group] = (actions, resets)

    def recv(self, group: int) -> None:
        actions, resets = self._inbox.pop(group)
        self._rows[group] += 1
        part, arrays = self._groups[group], self.arrays
        arrays.terminal[part] = False
        arrays.over[part] = False
        if arrays.life is not None:
            arrays.life[part] = False
        decoded = self._actions.decode(actions)
        skip = resets.tolist()
        shape, dtype = self._codec.plain or (None, None)
        steps, reward_of, row_of = self._steps, arrays.reward, arrays.obs[0]
        beats, due = self.heartbeat is not None, self._next_beat
        for i, (action, begin) in enumerate(zip(decoded, skip, strict=True), part.start):
            if begin:
                self._begin(i, int(arrays.seeds[i]))
                continue
            self.at = i
            try:
                result = steps[i](action)
            except env_faults() as error:
                self._restart(i, "step", error)
                continue
            try:
                obs, reward, terminated, truncated, info = result
            except (TypeError, ValueError):
                raise self._misshapen(i, result) from None
            if type(obs) is np.ndarray and obs.shape == shape and obs.dtype == dtype:
                row_of[i] = obs
            else:
                self._write(i, obs)
            reward_of[i] = reward if type(reward) is float else self._number(i, reward)
            if terminated or truncated or info or self._masks:
                self._note(i, bool(terminated), bool(terminated or truncated), info)
            if beats and monotonic() >= due:
                due = self._beat()
        if self._viewer is not None:
            self._viewer.show()

    def close(self) -> None:
        if self._viewer is not None:
            self._viewer.close()
        for i, env in enumerate(self._envs):
            close_env(env, self._where(i))
        self._envs, self._steps = [], []

    def picture(self, env: int) -> Array:
        """The rendered picture of an environment that was made with rgb_array."""
        return picture_of(self._envs[env], _name(self._envs[env]))

    def pace(self, env: int) -> float:
        """Steps per second at real-time speed."""
        return float(self._envs[env].metadata.get("render_fps") or USUAL_FPS)

    def _begin(self, i: int, seed: int) -> None:
        """Reset an environment; with -1 its generator continues."""
        self.at, self.resetting = i, True
        if seed >= 0:
            self._seeds[i] = seed
        try:
            result = self._envs[i].reset(seed=seed) if seed >= 0 else self._envs[i].reset()
        except env_faults() as error:
            self._restart(i, "reset", error)
            return
        self.resetting = False
        if not isinstance(result, tuple) or len(result) != 2:
            raise self._contract(
                i, f"reset() returned {_kind(result)}", "return  obs, info  (info may be {})"
            )
        self._write(i, result[0])
        arrays = self.arrays
        arrays.reward[i], arrays.terminal[i], arrays.over[i] = 0.0, False, False
        if self._masks:
            self._note(i, False, False, result[1])
        self._beat()

    def _restart(self, i: int, call: str, raised: BaseException) -> None:
        """Replace a failed environment and start its first episode, or raise."""
        error = self._failed(i, call, raised)
        error.__cause__ = raised
        self._streaks[i].add(error, self._rows_of(i), restarts=self._rebuild is not None)
        assert self._rebuild is not None
        failed = failure(error, self._seeds[i])
        with suppress(Exception):  # it already failed
            self._envs[i].close()
        try:
            env = self._rebuild(i)
        except env_faults() as again:
            self._restart(i, "__init__", again)
            self.arrays.failures[i] = failed  # the first cause
            return
        self._envs[i], self._steps[i] = env, env.step
        if self._mask_methods:
            self._mask_methods[i] = env.get_wrapper_attr("action_masks")
        self._restarts[i] += 1
        # A new seed, so that it does not repeat the episode that failed.
        self._begin(i, env_seed(self._seeds[i] or 0, "restart", i, self._restarts[i]))
        self.arrays.failures[i] = failed

    def _rows_of(self, i: int) -> int:
        """Steps of an environment so far."""
        groups = zip(self._groups, self._rows, strict=True)
        return next(rows for part, rows in groups if part.start <= i < part.stop)

    def _beat(self) -> float:
        """Send a heartbeat; return the time of the next one."""
        if self.heartbeat is not None:
            self.heartbeat()
        self._next_beat = monotonic() + HEARTBEAT_SECONDS
        return self._next_beat

    def _note(self, i: int, terminated: bool, over: bool, info: Any) -> None:
        """Handle the rare cases: episode ends, soft terminals, action masks."""
        if not isinstance(info, Mapping):
            raise self._contract(i, f"info is {_kind(info)}", "return a dict as info, {} will do")
        arrays = self.arrays
        arrays.over[i] = over
        # Life loss: discount 0, no reset, no dummy row.
        arrays.terminal[i] = terminated or bool(info.get("soft_terminal", False))
        if arrays.life is not None:
            arrays.life[i] = bool(info.get("life_lost", False)) and not over
        if over:
            self._streaks[i].count = 0
            arrays.infos[i] = {
                str(k): float(v)
                for k, v in info.items()
                if isinstance(v, bool | int | float | np.number | np.bool_)
            }
        if arrays.action_mask is not None:
            self._write_mask(i, arrays.action_mask, info, over)

    def _write_mask(self, i: int, masks: Array, info: Mapping[str, Any], over: bool) -> None:
        given = self._ask_mask(i) if self._masks == "method" else info.get("action_mask")
        if over:  # no action follows a final observation, so its mask is unused
            masks[i] = True
            return
        if given is None:
            raise self._contract(
                i, "info has no action_mask this time", 'put "action_mask" into every info'
            )
        assert self._read_mask is not None
        try:
            masks[i] = self._read_mask(given)
        except LudusError as error:
            raise self._placed(i, error) from None

    def _ask_mask(self, i: int) -> Any:
        try:
            return self._mask_methods[i]()
        except env_faults() as error:
            raise self._failed(i, "action_masks", error) from error

    def _write(self, i: int, obs: Any) -> None:
        try:
            self._codec.write(obs, self.arrays.obs, i)
        except LudusError as error:
            raise self._placed(i, error) from None

    def _placed(self, i: int, error: LudusError) -> LudusError:
        """The same error, with the environment in `where`."""
        return LudusError(
            error.code, error.what, where=self._where(i), why=error.why, fix=error.fix
        )

    def _number(self, i: int, reward: Any) -> float:
        try:
            return float(reward.item() if isinstance(reward, np.ndarray) else reward)
        except (TypeError, ValueError):
            raise self._contract(
                i, f"reward is {reward!r} ({_kind(reward)}), expected a number", "return a float"
            ) from None

    def _where(self, i: int) -> str:
        return f"environment {self._first_env + i} of {_name(self._envs[i])}"

    def _contract(self, i: int, what: str, fix: str) -> LudusError:
        return LudusError("E202", what, where=self._where(i), fix=f"{fix};  see  ludus check ENV")

    def _misshapen(self, i: int, result: Any) -> LudusError:
        old = isinstance(result, tuple) and len(result) == 4
        what = f"step() returned {_kind(result)}, expected five values"
        if isinstance(result, tuple):
            what = f"step() returned {len(result)} values, expected five"
        fix = "return  obs, reward, terminated, truncated, info"
        return LudusError(
            "E202", what, where=self._where(i), why="the old gym interface" if old else "", fix=fix
        )

    def _failed(self, i: int, call: str, error: BaseException) -> LudusError:
        fix = "correct the environment; --debug prints the whole traceback"
        return env_error(error, call, f"{self._where(i)}; {last_line(error)}", fix)


def set_heartbeat(backend: Backend, beat: Callable[[], None] | None) -> None:
    """Call `beat` between environments of a serial backend: together they may take long. Other
    backends step all environments at once."""
    if isinstance(backend, Serial):
        backend.heartbeat = beat


def _kind(value: Any) -> str:
    size = f" of {len(value)}" if isinstance(value, tuple | list) else ""
    return f"a {type(value).__name__}{size}"


def _name(env: gym.Env[Any, Any]) -> str:
    spec = env.spec
    return spec.id if spec is not None else type(env.unwrapped).__name__
