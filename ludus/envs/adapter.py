"""The adapter: the only place that handles episode ends. Everything else sees rows.

Not a gymnasium VectorEnv: `send` and `recv` work on groups of environments, and every returned
array belongs to the caller.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from ludus.envs.action_check import ActionChecker
from ludus.envs.backends.serial import Backend, Serial
from ludus.envs.config import EnvConfig
from ludus.envs.render.screenshots import Camera
from ludus.envs.spec import ObsCodec
from ludus.errors import LudusError
from ludus.process.watchdog import Call, Pulse
from ludus.seeding import env_seed
from ludus.types import EnvSpec, EpisodeEnd, Tree

Array: TypeAlias = np.ndarray[Any, Any]
ROLLED_OVER = -900_000  # below any loss a game can give in one step
_sum = np.add.reduce  # the method .sum() takes twice as long on a handful of numbers


class EnvStep(NamedTuple):
    """The results of one action in each of the n environments of a group.

    After `last` the observation is the final one and the next action is ignored (`dummy`); the
    step after that has mask=False, reward 0 and the first observation of the next episode.

    If an environment failed and was rebuilt (env.on_error=restart), the row has mask=False and the
    first observation of the next episode, without a `last` before it.

    If a lost life ends the learner's episode (`EnvArrays.life`), the game takes action 0 on the
    dummy row and continues. If the game ends on that row, another dummy row follows.
    """

    obs: Tree  # [n, ...] the newest single frame
    reward: Array  # [n] float32, the learner's
    raw_reward: Array  # [n] float32, the game's
    discount: Array  # [n] float32: 0 after a termination or a soft terminal, else 1
    last: Array  # [n] bool: the row just completed ended its episode
    first: Array  # [n] bool: obs opens an episode
    dummy: Array  # [n] bool: the next action will be ignored
    mask: Array  # [n] bool: False = the row just completed was a dummy (or there was none)
    action_mask: Array | None  # [n, W] bool, for the next action
    episodes: list[EpisodeEnd]


class _Group:
    """The episode state of one group, and views of its part of the arrays."""

    def __init__(self, index: int, part: slice, backend: Backend) -> None:
        n, arrays = part.stop - part.start, backend.arrays
        self.index, self.part, self.n = index, part, n
        self.obs = [leaf[part] for leaf in arrays.obs]
        self.floats = [leaf for leaf in self.obs if leaf.dtype.kind == "f"]
        self.reward, self.terminal = arrays.reward[part], arrays.terminal[part]
        self.over = arrays.over[part]
        self.life = None if arrays.life is None else arrays.life[part]
        self.action_mask = None if arrays.action_mask is None else arrays.action_mask[part]
        self.score = np.zeros(n)
        self.length = np.zeros(n, np.int64)
        self.room = 0  # steps in which no episode can reach the limit: none was longer
        self.one, self.ones = np.ones((), np.int64), np.ones(n, np.float32)
        self.idle = np.zeros(n, np.int64)  # steps since the last reward
        self.episode = np.zeros(n, np.int64)  # of each environment, since the newest reset
        self.pending = np.zeros(n, bool)  # the next row of these is a dummy
        self.any_pending = False
        self.alive = np.zeros(n, bool)  # of those, the games that continue: no reset
        self.any_alive = False
        self.in_flight = False
        self.cut: list[EpisodeEnd] = []  # by a barrier, returned by the next observe


class Envs:
    """N copies of one environment, in groups. Made by `make_envs`."""

    def __init__(
        self,
        cfg: EnvConfig,
        spec: EnvSpec,
        backend: Backend,
        codec: ObsCodec,
        *,
        seed: int,
        role: str = "env",
        first_env: int = 0,
        repair: Callable[[Array], None] | None = None,
        reseed: bool = False,
        camera: Camera | None = None,
        pulse: Pulse | None = None,
    ) -> None:
        self.spec, self.num = spec, cfg.num_envs
        self._pulse = pulse or Pulse()
        self._reseed = reseed  # give every episode its own seed
        self._camera = camera
        self.groups = split(cfg.num_envs, cfg.group_count)
        self.seeds: list[int] = []  # of the environments, at the newest reset
        self._backend, self._codec = backend, codec
        self._one_leaf = not codec.leaves[0].keys  # the observation is an array, not a tree
        self._seed, self._role, self.first_env = seed, role, first_env
        self._shape_reward, self._repair = RewardShaper(cfg), repair
        self._limit, self._max_stuck = spec.max_episode_steps, cfg.max_stuck
        # Workers have their own limit (E205). A slow close is not reported.
        limit = None if cfg.workers else cfg.timeout
        self._calls = {
            method: Call(partial(self._name_call, method, cfg.id), seconds, self._current_env)
            for method, seconds in (("reset", limit), ("step", limit), ("close", None))
        }
        self._parts = [_Group(i, part, backend) for i, part in enumerate(self.groups)]
        self._checks = [ActionChecker(spec, partial(self._env_name, g)) for g in self._parts]

    def reset(self, barrier: int = 0) -> None:
        """Start a new episode in every environment, seeded by (seed, role, env, barrier).

        The next `observe` returns the episodes this cuts, with end="checkpoint".
        """
        assert not any(g.in_flight for g in self._parts), "recv every group before a reset"
        for g in self._parts:
            running = np.flatnonzero((g.length > 0) & (~g.pending | g.alive))
            g.cut += [self._ended(g, int(i), "checkpoint", {}) for i in running]
        envs = range(self.first_env, self.first_env + self.num)
        self.seeds = [env_seed(self._seed, self._role, env, barrier) for env in envs]
        self._backend.arrays.infos.clear()
        self._backend.arrays.failures.clear()
        self._backend.arrays.seeds[:] = -1
        self._watched(self._calls["reset"], self._backend.reset, self.seeds)
        for g in self._parts:
            g.cut += self._failures(g, np.zeros(g.n, bool), running=False)
            g.score[:], g.length[:], g.idle[:], g.episode[:] = 0, 0, 0, 0
            g.pending, g.alive = np.zeros(g.n, bool), np.zeros(g.n, bool)
            g.any_pending = g.any_alive = False

    def observe(self, group: int = 0) -> EnvStep:
        """The state after `reset`: first observations, and no row before them."""
        g = self._parts[group]
        assert self.seeds, "reset before observe"
        obs, mask = self._read(g)
        zeros, cut = np.zeros(g.n, np.float32), g.cut
        g.cut = []
        no = np.zeros(g.n, bool)
        one = np.ones(g.n, np.float32)
        return EnvStep(obs, zeros, zeros.copy(), one, no, ~no, no.copy(), no.copy(), mask, cut)

    def send(self, actions: Array, group: int = 0) -> None:
        """Send actions [n, ...] to the group; one `recv` must follow."""
        g = self._parts[group]
        assert self.seeds and not g.in_flight, "reset first, then one recv for each send"
        checked = self._checks[group](np.asarray(actions), g.action_mask, g.pending)
        resets = g.pending
        if g.any_alive:
            checked[g.alive] = 0
            resets = g.pending & ~g.alive
        if self._reseed and g.any_pending:
            self._seed_next(g, resets)
        self._backend.send(checked, resets, group)
        g.in_flight = True

    def recv(self, group: int = 0) -> EnvStep:
        """Wait for the results of the group's newest actions."""
        g = self._parts[group]
        assert g.in_flight, "send before recv"
        g.in_flight = False
        self._watched(self._calls["step"], self._backend.recv, g.index)
        if self._repair is not None:
            self._repair(g.reward)
        dummy, failed = g.pending, []  # of the row just completed
        if self._backend.arrays.failures:
            dummy = dummy.copy()
            failed = self._failures(g, dummy)
        obs, action_mask = self._read(g)
        raw = g.reward.astype(np.float32)
        if not math.isfinite(_sum(raw)):
            raise self._bad_reward(g)
        idle = self._shape_reward.idle
        reward = raw.copy() if idle else self._shape_reward(g.reward, g.part)
        g.score += g.reward
        g.length += g.one
        if self._max_stuck is not None:
            g.idle += 1
            g.idle[g.reward != 0] = 0
        if g.any_pending or failed:
            new = dummy & ~g.alive if g.any_alive else dummy
            g.length[new] = g.score[new] = g.idle[new] = 0
        over = self._over(g)
        # A dummy row comes from the next reset, never from `terminal` alone.
        ended = b"\x01" in over.tobytes()  # any(), at a third of its cost
        episodes = failed + (self._finish(g, over) if ended else [])
        if self._camera is not None and episodes and g.index == 0:
            self._camera.look(self._backend, self.first_env, obs, episodes)
        discount = g.ones.copy()
        if b"\x01" in g.terminal.tobytes():
            discount[g.terminal] = 0
        if g.life is None:
            g.pending, g.any_pending = over, ended
            return EnvStep(
                obs, reward, raw, discount, over.copy(), dummy, over.copy(), ~dummy, action_mask,
                episodes,
            )  # fmt: skip
        last, first = self._lives(g, over, dummy)
        if g.any_pending:
            reward[dummy] = raw[dummy] = 0  # counted in the score, not in a learned row
        g.any_pending = b"\x01" in g.pending.tobytes()
        return EnvStep(
            obs, reward, raw, discount, last, first, g.pending.copy(), ~dummy, action_mask, episodes
        )

    def _over(self, g: _Group) -> Array:
        """Where the episode ends, by the environment itself or by a limit."""
        over: Array = g.over.copy()
        g.room -= 1
        if self._limit is not None and g.room < 0:
            over |= g.length >= self._limit
            g.room = self._limit - int(g.length.max()) - 1
        if self._max_stuck is not None:
            over |= g.idle >= self._max_stuck
        return over

    def _watched(self, call: Call, method: Callable[..., None], *args: Any) -> None:
        """Call a method of the backend; the watchdog reports it if it takes too long."""
        pulse = self._pulse
        pulse.count, pulse.inside = pulse.count + 1, call
        try:
            method(*args)
        finally:
            pulse.inside = None

    def _current_env(self) -> int:
        """The environment being stepped or reset; 0 for vectorised backends."""
        return self._backend.at if isinstance(self._backend, Serial) else 0

    def _name_call(self, method: str, id: str) -> str:
        if not isinstance(self._backend, Serial):
            return f"{method}() of environment {id}"
        called = "reset" if self._backend.resetting else method
        return f"{called}() of environment {self.first_env + self._current_env()} of {id}"

    def episode_seed(self, env: int, episode: int) -> int:
        """The seed of an episode (counted from 0) with `reseed`. Episodes are numbered round by
        round, so the games do not depend on the number of environments."""
        return env_seed(self._seed, self._role, episode * self.num + env)

    def _seed_next(self, g: _Group, resets: Array) -> None:
        g.episode[resets] += 1
        for i in np.flatnonzero(resets):
            env = g.part.start + int(i)
            seed = self.episode_seed(self.first_env + env, int(g.episode[i]))
            self._backend.arrays.seeds[env] = seed

    def _lives(self, g: _Group, over: Array, dummy: Array) -> tuple[Array, Array]:
        """(last, first) where a lost life ends the learner's episode but not the game."""
        assert g.life is not None
        lost = g.life & ~over & ~dummy
        g.pending, g.alive = over | lost, lost
        g.any_alive = b"\x01" in lost.tobytes()
        # A game that ends on a dummy row: the row is neither the last nor the first of an episode
        # that the learner sees.
        return g.pending & ~dummy, dummy & ~over

    def state(self) -> dict[str, Array]:
        """The state that survives a barrier: the running maxima of the rewards."""
        return {"largest_reward": self._shape_reward.largest.copy()}

    def load(self, state: dict[str, Array]) -> None:
        self._shape_reward.largest[:] = state["largest_reward"]

    @property
    def backend(self) -> Backend:
        """For benchmarks and heartbeats; training uses send and recv."""
        return self._backend

    def close(self) -> None:
        self._watched(self._calls["close"], self._backend.close)

    def __enter__(self) -> Envs:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _read(self, g: _Group) -> tuple[Tree, Array | None]:
        for leaf in g.floats:
            if not math.isfinite(_sum(leaf, None)) and not np.isfinite(leaf).all():
                raise self._bad_obs(g)
        leaves = self._backend.arrays.fresh.pop(g.index, None) or [leaf.copy() for leaf in g.obs]
        obs = leaves[0] if self._one_leaf else self._codec.tree(leaves)
        return obs, None if g.action_mask is None else g.action_mask.copy()

    def _finish(self, g: _Group, over: Array) -> list[EpisodeEnd]:
        episodes = []
        for i in np.flatnonzero(over):
            info = self._backend.arrays.infos.pop(g.part.start + int(i), {})
            # terminal and not over: a soft terminal on the very step of a limit is a truncation
            ended = bool(g.over[i] and g.terminal[i])
            episodes.append(self._ended(g, int(i), "terminated" if ended else "truncated", info))
        return episodes

    def _failures(self, g: _Group, dummy: Array, *, running: bool = True) -> list[EpisodeEnd]:
        """Episodes cut by failed environments; their rows become dummies."""
        ended, failures = [], self._backend.arrays.failures
        for env in [s for s in failures if g.part.start <= s < g.part.stop]:
            i, failure = env - g.part.start, failures.pop(env)
            in_reset = not running or (g.pending[i] and not g.alive[i])  # it failed in reset()
            if in_reset:
                g.score[i] = g.length[i] = 0
            error = failure.message(self._env_name(g, i), int(g.length[i]))
            ended.append(self._ended(g, i, "error", {})._replace(error=error))
            dummy[i], g.alive[i] = True, False
        return ended

    def _ended(self, g: _Group, i: int, end: str, info: Any) -> EpisodeEnd:
        env = self.first_env + g.part.start + i
        return EpisodeEnd(env, float(g.score[i]), int(g.length[i]), end, info)

    def _env_name(self, g: _Group, i: int) -> str:
        return f"environment {self.first_env + g.part.start + i} of {self.spec.id}"

    def _bad_reward(self, g: _Group) -> LudusError:
        bad = np.flatnonzero(~np.isfinite(g.reward.astype(np.float32)))
        i = int(bad[0]) if bad.size else 0
        what = f"reward is {g.reward[i]}, expected a finite number"
        return self._not_finite("E202", what, self._env_name(g, i), "rewards")

    def _bad_obs(self, g: _Group) -> LudusError:
        bad = [(i, leaf[i]) for leaf in g.floats for i in range(g.n)]
        i, row = next((i, row) for i, row in bad if not np.isfinite(row).all())
        value = row[~np.isfinite(row)].ravel()[0]
        what = f"observation holds {value}, expected finite numbers"
        return self._not_finite("E203", what, self._env_name(g, i), "observations")

    def _not_finite(self, code: str, what: str, where: str, kind: str) -> LudusError:
        why = "a division by zero or an overflow inside the environment"
        fix = f"return finite {kind}; see  ludus check ENV"
        return LudusError(code, what, where=where, why=why, fix=fix)


def split(num: int, groups: int) -> list[slice]:
    """Split `num` environments into contiguous parts whose sizes differ by at most one."""
    edges = [num * k // groups for k in range(groups + 1)]
    return [slice(a, b) for a, b in itertools.pairwise(edges)]


class RewardShaper:
    """Scales and then clips the rewards the learner sees. Scores use raw rewards.

    Each environment has its own running maximum, so that they stay independent.
    """

    def __init__(self, cfg: EnvConfig) -> None:
        self._scale, self._clip, self._clamp = cfg.reward_scale, cfg.reward_clip, cfg.reward_clamp
        self.largest = np.zeros(cfg.num_envs)  # |raw reward| so far, by environment
        self.idle = self._scale == 1.0 and self._clip == "none"

    def __call__(self, raw: Array, part: slice) -> Array:
        """The learner's rewards [n] float32 from raw ones [n] float64."""
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


def undo_rollover(raw: Array) -> None:
    """Score counters of six or more digits wrap to 0, which looks like a huge loss: add the power
    of ten that was passed, in place. Used only for evaluation scores."""
    if raw.min() < ROLLED_OVER:
        low = raw < ROLLED_OVER
        raw[low] += 10.0 ** np.ceil(np.log10(-raw[low]))
