"""Reports calls into environments to the watchdog: which environment, which method, since when."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ludus.envs.backends.serial import Backend, Serial
from ludus.envs.config import EnvConfig
from ludus.process.watchdog import Call, Pulse


class Calls:
    """The calls of one adapter. Workers have their own limit (E205) and report nothing here."""

    def __init__(self, cfg: EnvConfig, backend: Backend, first_env: int) -> None:
        self._id, self._backend, self._first = cfg.id, backend, first_env
        limit = None if cfg.workers else cfg.timeout
        self.step = Call(lambda: self._what("step"), limit, self._at)
        self.reset = Call(lambda: self._what("reset"), limit, self._at)
        self.close = Call(lambda: self._what("close"), None, self._at)

    def _at(self) -> int:
        """The environment being stepped or reset; 0 for vectorised backends."""
        return self._backend.at if isinstance(self._backend, Serial) else 0

    def _what(self, method: str) -> str:
        if not isinstance(self._backend, Serial):
            return f"{method}() of environment {self._id}"
        called = "reset" if self._backend.resetting else method
        return f"{called}() of environment {self._first + self._at()} of {self._id}"


@contextmanager
def building(
    cfg: EnvConfig,
    pulse: Pulse | None,
    made: Callable[[], int] = lambda: 0,
    *,
    here: bool = False,
) -> Iterator[None]:
    """Report constructors to the watchdog. `made` returns how many are done. Without a limit where
    all environments are made at once or in worker processes, unless `here`: one environment is
    made in this process."""
    limit = None if not here and (cfg.workers or cfg.native_atari) else cfg.timeout
    pulse = pulse or Pulse()
    what = f"the constructor or first reset() of environment {cfg.id}"
    pulse.enter(Call(lambda: what, limit, made))
    try:
        yield
    finally:
        pulse.leave()
