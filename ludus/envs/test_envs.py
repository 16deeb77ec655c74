"""Small environments with known answers, for tests and for trying out an algorithm.

Not registered with gymnasium: `make` resolves their ids (ludus/Identity-v0 ...) by the table.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any, Literal, TypeAlias

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.envs.classic_control.cartpole import CartPoleEnv
from gymnasium.wrappers import TimeLimit

Array: TypeAlias = np.ndarray[Any, Any]
Info: TypeAlias = dict[str, Any]
Stepped: TypeAlias = tuple[Any, float, bool, bool, Info]
NO_VELOCITY = "ludus/CartPoleNoVelocity-v0"


class _Timed(gym.Env[Any, Any]):
    """Episodes of `length` steps, cut or terminated. `_score` is asked before time advances."""

    def __init__(self, length: int, terminates: bool = False) -> None:
        self._length, self._terminates, self._t = length, terminates, 0

    def _begin(self) -> None:
        """Draw what a whole episode depends on."""

    def _obs(self) -> Any:
        raise NotImplementedError

    def _score(self, action: Any) -> float:
        raise NotImplementedError

    def _info(self) -> Info:
        return {}

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Any, Info]:
        super().reset(seed=seed)
        self._t = 0
        self._begin()
        return self._obs(), self._info()

    def step(self, action: Any) -> Stepped:
        reward = self._score(action)
        self._t += 1
        over = self._t >= self._length
        terminated, truncated = over and self._terminates, over and not self._terminates
        return self._obs(), reward, terminated, truncated, self._info()


class TruncationProbe(_Timed):
    """Observation min(t, 9), one action (or a `box` of them), reward 1, cut after `length` steps.

    gamma 0.9: a learner that bootstraps from the true final observation values every state at
    10. With terminates=True: 1 at t=9 and 6.513 at t=0.
    """

    def __init__(self, terminates: bool = False, length: int = 10, box: bool = False) -> None:
        super().__init__(length, terminates)
        self.observation_space = spaces.Discrete(length)
        self.action_space = spaces.Box(-1.0, 1.0, (1,), np.float32) if box else spaces.Discrete(1)

    def _obs(self) -> int:
        return min(self._t, self._length - 1)

    def _score(self, action: Any) -> float:
        return 1.0


class TerminationProbe(TruncationProbe):
    """The same, ending for real."""

    def __init__(self, length: int = 10, box: bool = False) -> None:
        super().__init__(terminates=True, length=length, box=box)


class _Guess(_Timed):
    """Each step shows a fresh draw of the observation space and rewards the answer to it."""

    _shown: Any = None
    _answer: Any = None

    def _draw(self) -> Any:
        raise NotImplementedError

    def _obs(self) -> Any:
        self._shown = self._draw()
        return self._shown

    def _score(self, action: Any) -> float:
        return float(action == self._answer)


class Identity(_Guess):
    """Reward 1 for the action that equals the observation."""

    def __init__(self, n: int = 4, length: int = 16) -> None:
        super().__init__(length)
        self.observation_space = spaces.Discrete(n)
        self.action_space = spaces.Discrete(n)
        self._n = n

    def _draw(self) -> Any:
        self._answer = int(self.np_random.integers(self._n))
        return self._answer


class IdentityBox(_Guess):
    """Reward 1 - |action - observation|, averaged over the dimensions."""

    def __init__(self, size: int = 1, length: int = 16) -> None:
        super().__init__(length)
        self.observation_space = spaces.Box(-1.0, 1.0, (size,), np.float32)
        self.action_space = spaces.Box(-1.0, 1.0, (size,), np.float32)

    def _draw(self) -> Array:
        assert self.observation_space.shape is not None
        return self.np_random.uniform(-1, 1, self.observation_space.shape).astype(np.float32)

    def _score(self, action: Any) -> float:
        return float(1 - np.abs(action - self._shown).mean())


class IdentityMulti(_Guess):
    """Several choices at once; reward is the share of them that equal the observation."""

    def __init__(self, nvec: tuple[int, ...] = (3, 2), length: int = 16) -> None:
        super().__init__(length)
        self._nvec = np.asarray(nvec)
        self.observation_space = spaces.MultiDiscrete(self._nvec)
        self.action_space = spaces.MultiDiscrete(self._nvec)

    def _draw(self) -> Array:
        return self.np_random.integers(0, self._nvec)

    def _score(self, action: Any) -> float:
        return float((action == self._shown).mean())


class IdentityPixels(_Guess):
    """A bright quarter of a small picture names the right action."""

    def __init__(
        self, size: int = 16, layout: Literal["hw", "hwc", "chw"] = "hw", length: int = 16
    ) -> None:
        super().__init__(length)
        shape = {"hw": (size, size), "hwc": (size, size, 3), "chw": (3, size, size)}[layout]
        self.observation_space = spaces.Box(0, 255, shape, np.uint8)
        self.action_space = spaces.Discrete(4)
        self._size, self._layout = size, layout

    def _draw(self) -> Array:
        self._answer = int(self.np_random.integers(4))
        picture, half = np.zeros((self._size, self._size), np.uint8), self._size // 2
        row, column = divmod(self._answer, 2)
        picture[row * half : (row + 1) * half, column * half : (column + 1) * half] = 255
        if self._layout == "hw":
            return picture
        return np.stack([picture] * 3, axis=2 if self._layout == "hwc" else 0)


class IdentityDict(_Guess):
    """Two parts that must be added: reward 1 for (picture-free) a + b mod n."""

    def __init__(self, n: int = 3, length: int = 16) -> None:
        super().__init__(length)
        parts = {"a": spaces.Discrete(n), "b": spaces.Tuple([spaces.Box(0, n, (1,), np.float64)])}
        self.observation_space = spaces.Dict(parts)
        self.action_space = spaces.Discrete(n)
        self._n = n

    def _draw(self) -> Info:
        a, b = (int(v) for v in self.np_random.integers(0, self._n, 2))
        self._answer = (a + b) % self._n
        return {"a": a, "b": (np.array([float(b)]),)}


class Counter(_Timed):
    """Observation t and a random tag per episode; reward t. Identifies the origin of every row."""

    def __init__(self, length: int = 5, terminates: bool = True, actions: int = 2) -> None:
        super().__init__(length, terminates)
        self.observation_space = spaces.Box(0.0, np.inf, (2,), np.float32)
        self.action_space = spaces.Discrete(actions)
        self._tag = 0.0

    def _begin(self) -> None:
        self._tag = float(self.np_random.integers(1, 2**20))

    def _obs(self) -> Array:
        return np.array([self._t, self._tag], np.float32)

    def _score(self, action: Any) -> float:
        return float(self._t + 1)


class MemoryRepeat(_Timed):
    """The first observation shows a cue; after `delay` blank steps it must be repeated."""

    def __init__(self, n: int = 2, delay: int = 3) -> None:
        super().__init__(delay + 1, terminates=True)
        self.observation_space = spaces.Box(0.0, 1.0, (n + 1,), np.float32)
        self.action_space = spaces.Discrete(n)
        self._n, self._delay, self._cue = n, delay, 0

    def _begin(self) -> None:
        self._cue = int(self.np_random.integers(self._n))

    def _obs(self) -> Array:
        obs = np.zeros(self._n + 1, np.float32)
        if self._t == 0:
            obs[self._cue] = 1
        obs[self._n] = float(self._t == self._delay)  # asks for the answer
        return obs

    def _score(self, action: Any) -> float:
        return float(self._t == self._delay and action == self._cue)


class MaskedBandit(_Guess):
    """Some actions are forbidden each step; the highest allowed one pays 1, the rest 0.

    source=info: the mask comes in info["action_mask"]; source=method: from action_masks().
    """

    def __init__(
        self, n: int = 4, length: int = 16, source: Literal["info", "method"] = "info"
    ) -> None:
        super().__init__(length)
        self.observation_space = spaces.MultiBinary(n)
        self.action_space = spaces.Discrete(n)
        self._n = n
        if source == "method":
            self.action_masks = lambda: np.asarray(self._shown, bool)
        self._in_info = source == "info"

    def _draw(self) -> Array:
        allowed = self.np_random.integers(0, 2, self._n).astype(np.int8)
        allowed[self.np_random.integers(self._n)] = 1
        return allowed

    def _score(self, action: Any) -> float:
        assert self._shown[action], f"action {action} was forbidden"
        return float(action == int(np.flatnonzero(self._shown)[-1]))

    def _info(self) -> Info:
        return {"action_mask": np.asarray(self._shown, bool)} if self._in_info else {}


class Slow(Counter):
    """A Counter that takes its time."""

    def __init__(self, seconds: float = 0.01, length: int = 5) -> None:
        super().__init__(length)
        self._seconds = seconds

    def step(self, action: Any) -> Stepped:
        time.sleep(self._seconds)
        return super().step(action)


class Lives(Counter):
    """A Counter with lives: each lost life is a soft terminal, only the last ends the episode."""

    def __init__(self, lives: int = 3, steps_per_life: int = 2) -> None:
        super().__init__(length=lives * steps_per_life)
        self._steps_per_life = steps_per_life

    def _info(self) -> Info:
        lost = 0 < self._t < self._length and self._t % self._steps_per_life == 0
        return {"soft_terminal": True} if lost else {}


class _Positions(gym.ObservationWrapper[Any, Any, Any]):
    """Keeps x and theta of (x, x', theta, theta')."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        seen = env.observation_space
        assert isinstance(seen, spaces.Box)
        self.observation_space = spaces.Box(seen.low[::2], seen.high[::2], dtype=np.float32)

    def observation(self, observation: Array) -> Array:
        return observation[::2]


def cart_pole_no_velocity(**args: Any) -> gym.Env[Any, Any]:
    """CartPole-v1 without the two velocities in its observation: a policy needs memory."""
    return TimeLimit(_Positions(CartPoleEnv(**args)), max_episode_steps=500)


Fault: TypeAlias = Literal[
    "raise", "exit", "hang", "shape", "dtype", "nan", "reward_nan", "reward_type", "tuple"
]


class Faulty(Counter):
    """A Counter that does one thing wrong after `after` good steps."""

    def __init__(self, fault: Fault = "raise", after: int = 3, length: int = 100) -> None:
        super().__init__(length)
        self._fault, self._left = fault, after

    def step(self, action: Any) -> Any:
        obs, reward, *rest = super().step(action)
        self._left -= 1
        if self._left >= 0:
            return obs, reward, *rest
        if self._fault == "raise":
            raise ZeroDivisionError("the test environment fails on request")
        if self._fault == "exit":
            os._exit(7)
        if self._fault == "hang":
            time.sleep(3600)
        if self._fault == "tuple":
            return obs, reward, False, {}
        wrong_obs = {
            "shape": np.zeros(3, np.float32),
            "dtype": np.array(["a", "b"]),
            "nan": np.array([np.nan, 0], np.float32),
        }
        wrong_reward: dict[str, Any] = {"reward_nan": float("nan"), "reward_type": "much"}
        return wrong_obs.get(self._fault, obs), wrong_reward.get(self._fault, reward), *rest


PROBES: dict[str, Callable[..., gym.Env[Any, Any]]] = {
    "ludus/Truncation-v0": TruncationProbe,
    "ludus/Termination-v0": TerminationProbe,
    "ludus/Identity-v0": Identity,
    "ludus/IdentityBox-v0": IdentityBox,
    "ludus/IdentityMulti-v0": IdentityMulti,
    "ludus/IdentityPixels-v0": IdentityPixels,
    "ludus/IdentityDict-v0": IdentityDict,
    "ludus/Counter-v0": Counter,
    "ludus/MemoryRepeat-v0": MemoryRepeat,
    NO_VELOCITY: cart_pole_no_velocity,
    "ludus/MaskedBandit-v0": MaskedBandit,
    "ludus/Slow-v0": Slow,
    "ludus/Lives-v0": Lives,
    "ludus/Faulty-v0": Faulty,
}
