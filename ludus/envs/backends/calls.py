"""What the watchdog is told of calls into environments: which one, which method, since when."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ludus.envs.backends.serial import Backend, Serial
from ludus.envs.config import EnvConfig
from ludus.process.watchdog import Call, Pulse


class Calls:
    """Of one adapter. Workers have a limit of their own (E205), so that nothing is reported."""

    def __init__(self, cfg: EnvConfig, backend: Backend, first_env: int) -> None:
        self._id, self._backend, self._first = cfg.id, backend, first_env
        limit = None if cfg.workers else cfg.timeout
        self.step = Call(lambda: self._what("step"), limit, self._at)
        self.reset = Call(lambda: self._what("reset"), limit, self._at)
        self.close = Call(lambda: self._what("close"), None, self._at)

    def _at(self) -> int:
        """The slot that is being stepped or reset; vectorised backends have none."""
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
    """Around constructors. `made`: how many are done. Where all slots are made at once, or in
    worker processes, there is no telling which one is late. `here`: it is only one, and made in
    this process."""
    limit = None if not here and (cfg.workers or cfg.native_atari) else cfg.timeout
    pulse = pulse or Pulse()
    what = f"the constructor or first reset() of environment {cfg.id}"
    pulse.enter(Call(lambda: what, limit, made))
    try:
        yield
    finally:
        pulse.leave()
