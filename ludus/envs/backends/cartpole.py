"""Vectorised CartPole-v1, bit-equal to gymnasium's scalar environment, also without velocities.

gymnasium's CartPoleVectorEnv shares one generator, so environment 0 would depend on environment 1.
Here each environment has its own generator, seeded as in the scalar environment.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from ludus.envs.backends.serial import EnvArrays
from ludus.envs.config import EnvConfig
from ludus.envs.test_envs import NO_VELOCITY

Array: TypeAlias = np.ndarray[Any, Any]

GRAVITY, CART_MASS, POLE_MASS, HALF_POLE, FORCE, TAU = 9.8, 1.0, 0.1, 0.5, 10.0, 0.02
TOTAL_MASS, POLE_MOMENT = POLE_MASS + CART_MASS, POLE_MASS * HALF_POLE
FARTHEST, STEEPEST = 2.4, 12 * 2 * math.pi / 360
START = 0.05
MIN_ENVS = 2  # below, numpy's cost per call exceeds that of the scalar environment


def fits(id: str, cfg: EnvConfig) -> bool:
    """Whether this backend can run the configuration: a plain CartPole."""
    return cfg.plain and id in ("CartPole-v1", NO_VELOCITY) and cfg.num_envs >= MIN_ENVS


class _Carts:
    """The equations of one group, [4, n] in float64, without temporaries."""

    def __init__(self, n: int) -> None:
        self.state = np.zeros((4, n))  # x, x', theta, theta'
        self._change = np.zeros((4, n))
        self._work = np.zeros((4, n))
        # Arrays of constants: numpy takes them twice as fast as Python floats at this size.
        names = (GRAVITY, POLE_MASS, TOTAL_MASS, HALF_POLE, POLE_MOMENT, 4.0 / 3.0, 2 * FORCE)
        self._constants = [np.full(n, value) for value in names]
        self._tau, self._force = np.full((4, n), TAU), np.full(n, FORCE)
        self._bounds = np.repeat([[FARTHEST], [STEEPEST]], n, axis=1)

    def step(self, actions: Array) -> Array:
        """Move every cart; True [n] where it left its bounds.

        Written operation by operation in the order of the scalar source, so that rounding agrees.
        """
        _, x_dot, theta, theta_dot = self.state
        gravity, pole, total, half, moment, four_thirds, swing = self._constants
        cos, sin, temp, work = self._work
        change = self._change
        np.cos(theta, out=cos)
        np.sin(theta, out=sin)
        np.multiply(theta_dot, theta_dot, out=temp)
        np.multiply(moment, temp, out=temp)
        np.multiply(temp, sin, out=temp)
        np.multiply(actions, swing, out=work)  # 0 or 20: exact, so -10 and 10 are too
        np.subtract(work, self._force, out=work)
        np.add(work, temp, out=temp)
        np.divide(temp, total, out=temp)
        angle = change[3]
        np.multiply(gravity, sin, out=angle)
        np.multiply(cos, temp, out=work)
        np.subtract(angle, work, out=angle)
        np.multiply(cos, cos, out=work)
        np.multiply(pole, work, out=work)
        np.divide(work, total, out=work)
        np.subtract(four_thirds, work, out=work)
        np.multiply(half, work, out=work)
        np.divide(angle, work, out=angle)
        np.multiply(moment, angle, out=work)
        np.multiply(work, cos, out=work)
        np.divide(work, total, out=work)
        np.subtract(temp, work, out=change[1])
        change[0], change[2] = x_dot, theta_dot
        np.multiply(change, self._tau, out=change)
        np.add(self.state, change, out=self.state)
        outside: Array = np.abs(self.state[::2]) > self._bounds
        fallen: Array = outside[0] | outside[1]
        return fallen


class CartPole:
    """The backend. The adapter applies the limit of 500 steps.

    Observations have the whole state, or x and theta if there is room for two numbers.
    """

    def __init__(self, arrays: EnvArrays, groups: Sequence[slice]) -> None:
        self.arrays = arrays
        self._shown = slice(None, None, 4 // arrays.obs[0].shape[1])
        self._groups = list(groups)
        self._carts = [_Carts(part.stop - part.start) for part in groups]
        self._generators: list[np.random.Generator] = []
        self._inbox: dict[int, tuple[Array, Array]] = {}

    def reset(self, seeds: Sequence[int]) -> None:
        self._inbox.clear()
        self._generators = [np.random.Generator(np.random.PCG64(seed)) for seed in seeds]
        for group, part in enumerate(self._groups):
            self._begin(group, range(part.stop - part.start))
            self._show(group)

    def send(self, actions: Array, resets: Array, group: int) -> None:
        self._inbox[group] = (actions, resets)

    def recv(self, group: int) -> None:
        actions, resets = self._inbox.pop(group)
        part, arrays = self._groups[group], self.arrays
        fallen = self._carts[group].step(actions)
        arrays.over[part] = fallen
        arrays.terminal[part] = fallen
        arrays.reward[part] = 1.0
        if b"\x01" in resets.tobytes():
            self._begin(group, np.flatnonzero(resets).tolist())
        self._show(group)

    def close(self) -> None:
        self._inbox.clear()

    def _begin(self, group: int, which: Sequence[int]) -> None:
        start, arrays, state = self._groups[group].start, self.arrays, self._carts[group].state
        for i in which:
            seed = int(arrays.seeds[start + i])
            if seed >= 0:
                self._generators[start + i] = np.random.Generator(np.random.PCG64(seed))
            state[:, i] = self._generators[start + i].uniform(low=-START, high=START, size=(4,))
            arrays.reward[start + i] = 0.0
            arrays.over[start + i] = arrays.terminal[start + i] = False

    def _show(self, group: int) -> None:
        self.arrays.obs[0][self._groups[group]] = self._carts[group].state[self._shown].T
