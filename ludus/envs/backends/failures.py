"""Failures of environments, and restarts with env.on_error=restart: an environment that raises is
rebuilt, its episode is cut, and the row becomes a dummy that is not learned from."""

from __future__ import annotations

import sys
import traceback
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import gymnasium as gym

from ludus.errors import LudusError, env_faults, printable

IN_A_ROW = 5  # consecutive restarts of one environment; one more ends the run
GOOD_STEPS = 1_000  # a streak ends after so many steps, or a whole episode

T = TypeVar("T")


class NotMadeError(LudusError):
    """The constructor of an environment raised; a retry may succeed."""


class Streak:
    """Counts consecutive failures of one environment or worker; a success sets `count` to 0."""

    def __init__(self) -> None:
        self.count = self._row = 0

    def add(self, error: LudusError, row: int, *, restarts: bool) -> None:
        """Count a failure after `row` steps. Raise it without `restarts`, if a restart cannot help,
        or after too many."""
        if not restarts or not can_restart(error):
            raise error
        if row - self._row > GOOD_STEPS:
            self.count = 0
        self._row = row
        self.count += 1
        if self.count > IN_A_ROW:
            raise _too_many(error) from error.__cause__


class Failure(NamedTuple):
    """Why one environment failed."""

    cause: str  # one line
    seed: int | None  # of its episode, or of an earlier one
    traceback: str = ""

    def message(self, where: str, step: int) -> str:
        """One line with the cause, then the traceback."""
        seed = "" if self.seed is None else f", seed {self.seed}"
        head = f"{self.cause} ({where}{seed}, step {step} of its episode)"
        return f"{head}\n{self.traceback}".rstrip()


def failure(error: LudusError, seed: int | None) -> Failure:
    text = "".join(traceback.format_exception(error.__cause__ or error))
    return Failure(error.what.splitlines()[0], seed, text)


def can_restart(error: LudusError) -> bool:
    """Whether the environment's own code raised or its process died. A broken contract (E202,
    E203) would break again."""
    return error.code == "E205" or isinstance(error, NotMadeError)


def persist(make: Callable[[], T], restarts: bool) -> T:
    """Call `make`, and with `restarts` retry it as often as an environment may restart. Failures
    go to standard error, since no run file is open yet."""
    streak = Streak()
    while True:
        try:
            return make()
        except LudusError as error:
            streak.add(error, 0, restarts=restarts)
            where = f" ({error.where})" if error.where else ""
            _say(f"warning: {error.what}{where}; retrying")


def _say(text: str) -> None:
    with suppress(OSError, ValueError):  # standard error is closed
        print(printable(" ".join(text.split())), file=sys.stderr, flush=True)


def _too_many(error: LudusError) -> LudusError:
    return LudusError(
        "E205",
        f"{error.what}, {IN_A_ROW + 1} times without a whole episode or {GOOD_STEPS:,} steps "
        "between them",
        where=error.where,
        why="it fails again after every restart",
        fix=error.fix,
    )


def env_error(error: BaseException, call: str, where: str, fix: str) -> LudusError:
    """A LudusError for the exception that a call of an environment raised."""
    if isinstance(error, LudusError):
        return error
    left = isinstance(error, SystemExit)
    why = "the environment called sys.exit()" if left else "the environment's own code failed"
    what = f"{type(error).__name__} in {call}(): {error}"
    return LudusError("E205", what, where=where, why=why, fix=fix)


def close_env(env: gym.Env[Any, Any], where: str) -> None:
    """Close an environment; a failure is only a warning."""
    try:
        env.close()
    except env_faults() as error:
        what = f"{type(error).__name__} in close(): {error}"
        warnings.warn(f"{what} ({where}, {last_line(error)})", stacklevel=2)


def last_line(error: BaseException) -> str:
    """file.py:12 in step, of the innermost frame."""
    frames = traceback.extract_tb(error.__traceback__)
    if not frames:
        return ""
    frame = frames[-1]
    return f"{Path(frame.filename).name}:{frame.lineno} in {frame.name}"
