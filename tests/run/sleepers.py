"""Environments that fail in ways that a fleet must survive."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import time
from pathlib import Path

import gymnasium as gym
import numpy as np
from gymnasium import spaces


class Sleeper(gym.Env):
    """Works for a while, then makes the file `asleep` and sleeps for ever inside a step."""

    def __init__(self, after: int = 10**9, asleep: str = "") -> None:
        self.observation_space = spaces.Box(-1, 1, (2,), np.float32)
        self.action_space = spaces.Discrete(2)
        self.after, self.steps, self.asleep = after, 0, asleep

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.steps += 1
        if self.steps > self.after:
            if self.asleep:
                Path(self.asleep).touch()
            time.sleep(1e6)
        return np.zeros(2, np.float32), 1.0, self.steps % 20 == 0, False, {}


class Dying(Sleeper):
    def step(self, action):
        if self.steps > 150:
            raise RuntimeError("a tooth broke")
        return super().step(action)


class Raiser(Sleeper):
    """Fails once it has done its steps."""

    def step(self, action):
        if self.steps > self.after:
            raise RuntimeError("a tooth broke")
        return super().step(action)


class Stuck(Sleeper):
    """Cannot be made while there is a file `marker`."""

    def __init__(self, marker: str) -> None:
        while Path(marker).exists():
            time.sleep(0.1)
        super().__init__()


class Broken(Sleeper):
    def reset(self, *, seed=None, options=None):
        raise RuntimeError("the wheel came off")


class LateRiser(Sleeper):
    """Takes its time for its first episode."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds, self.rested = seconds, False

    def reset(self, *, seed=None, options=None):
        if not self.rested:
            time.sleep(self.seconds)
            self.rested = True
        return super().reset(seed=seed)


class Quitter(Sleeper):
    """Ends its whole process once it has done its steps."""

    def step(self, action):
        if self.steps > self.after:
            os._exit(7)
        return super().step(action)


class Deadlocked(Sleeper):
    """Works for a while, then waits for ever in native code that no signal interrupts."""

    def step(self, action):
        self.steps += 1
        if self.steps > self.after:
            deadlock()
        return np.zeros(2, np.float32), 1.0, self.steps % 20 == 0, False, {}


def deadlock() -> None:
    """Lock a mutex twice. ctypes gives other threads their turn meanwhile."""
    mutex = ctypes.create_string_buffer(128)  # of zeros: PTHREAD_MUTEX_INITIALIZER
    ctypes.CDLL(None).pthread_mutex_lock(mutex)
    ctypes.CDLL(None).pthread_mutex_lock(mutex)


class NeverMade(Sleeper):
    """Its constructor (or its reset) never returns. `native`: and cannot be interrupted."""

    def __init__(self, call: str = "__init__", native: bool = False, marker: str = "") -> None:
        super().__init__()
        self.call, self.native, self.marker = call, native, Path(marker)
        self.resets = 0
        self._hang("__init__")

    def reset(self, *, seed=None, options=None):
        self.resets += 1
        if self.resets > 1:  # the first is a look whether there are action masks
            self._hang("reset")
        return super().reset(seed=seed)

    def _hang(self, call: str) -> None:
        # Before the run there is a look at one environment; a marker makes that a good one.
        if call == self.call and self.marker.exists():
            deadlock() if self.native else time.sleep(1e6)


class Nap(Sleeper):
    """One step, number `after`, takes `seconds`."""

    def __init__(self, after: int = 50, seconds: float = 1.0) -> None:
        super().__init__()
        self.nap_at, self.seconds = after, seconds

    def step(self, action):
        if self.steps == self.nap_at:
            time.sleep(self.seconds)
        return super().step(action)


class StuckActor(Sleeper):
    """Cannot be made in a process of its own."""

    def __init__(self) -> None:
        if multiprocessing.parent_process() is not None:
            time.sleep(1e6)
        super().__init__()


class Flaky(gym.Env):
    """Fails in step `at` (0: in a reset after the first), if its seed is `bad`; with a `good` seed,
    if it is any other. Observes its step and its seed."""

    def __init__(self, bad: int = -1, good: int = -1, at: int = 4, how: str = "raise",
                 length: int = 10**9, asleep: str = "") -> None:  # fmt: skip
        self.asleep = asleep
        self.observation_space = spaces.Box(-1e9, 1e9, (2,), np.float32)
        self.action_space = spaces.Discrete(2)
        self.bad, self.good, self.at, self.how, self.length = bad, good, at, how, length
        self.seed, self.steps = -1, 0

    @property
    def fails(self) -> bool:
        return self.seed == self.bad or self.good not in (-1, self.seed)

    def look(self):
        return np.array([self.steps, self.seed % 1000], np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if seed is None and self.at == 0 and self.fails:
            raise RuntimeError("a tooth broke")
        self.seed, self.steps = self.seed if seed is None else seed, 0
        return self.look(), {}

    def step(self, action):
        self.steps += 1
        if self.steps == self.at and self.fails:
            return self.fail()
        return self.look(), 1.0, self.steps >= self.length, False, {}

    def fail(self):
        if self.how == "exit":
            os._exit(7)
        if self.how == "hang":
            if self.asleep:
                Path(self.asleep).touch()
            time.sleep(1e6)
        if self.how == "tuple":
            return self.look(), 1.0, False, {}
        raise RuntimeError("a tooth broke")


class Shy(Flaky):
    """The second of its process fails in its first reset."""

    made = 0

    def __init__(self) -> None:
        super().__init__(length=20)
        Shy.made += 1
        self.number = Shy.made

    def reset(self, *, seed=None, options=None):
        if self.number == 2:
            raise RuntimeError("not yet")
        return super().reset(seed=seed)


class Reluctant(Sleeper):
    """Each `good`-th of its process works; the others fail in `call`."""

    made = 0

    def __init__(self, call: str = "__init__", good: int = 3) -> None:
        super().__init__()
        Reluctant.made += 1
        self.call, self.bad = call, Reluctant.made % good > 0
        self._fail("__init__")

    def reset(self, *, seed=None, options=None):
        self._fail("reset")
        return super().reset(seed=seed)

    def _fail(self, call: str) -> None:
        if self.bad and call == self.call:
            raise RuntimeError("not yet")
