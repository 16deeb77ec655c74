"""What becomes of an environment that raises, with env.on_error=restart: it is made again, its
episode is cut, and the row is a dummy, which nobody learns from."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple, TypeVar

from ludus.errors import LudusError, printable

IN_A_ROW = 5  # restarts of one slot, one soon after the other; the next ends the run
GOOD_STEPS = 1_000  # of a slot after which, as after a whole episode, a failure is a first one

T = TypeVar("T")


class NotMadeError(LudusError):
    """The constructor of an environment raised; it may not the next time."""


class Streak:
    """Failures of one slot or worker, one soon after the other."""

    def __init__(self) -> None:
        self._count = self._row = 0

    def add(self, row: int) -> int:
        """How many there are with this one. `row`: of steps so far."""
        if row - self._row > GOOD_STEPS:
            self._count = 0
        self._row = row
        self._count += 1
        return self._count

    def clear(self) -> None:
        self._count = 0


class Failure(NamedTuple):
    """Of one slot."""

    cause: str  # one line
    seed: int | None  # that its episode, or one before it, began with
    traceback: str = ""

    def told(self, where: str, step: int) -> str:
        """The first line says all; a traceback follows."""
        seed = "" if self.seed is None else f", seed {self.seed}"
        head = f"{self.cause} ({where}{seed}, step {step} of its episode)"
        return f"{head}\n{self.traceback}".rstrip()


def failure(error: LudusError, seed: int | None) -> Failure:
    text = "".join(traceback.format_exception(error.__cause__ or error))
    return Failure(error.what.splitlines()[0], seed, text)


def can_restart(error: LudusError) -> bool:
    """What the environment's own code raised, or the death of its process. A broken contract
    (E202, E203) would be broken again."""
    return error.code == "E205" or isinstance(error, NotMadeError)


def persist(make: Callable[[], T], restarts: bool) -> T:
    """What `make` makes, before there is a slot that could fail. With `restarts` it may fail as
    often as a slot; each time is said on standard error, for no file is open yet."""
    streak = Streak()
    while True:
        try:
            return make()
        except LudusError as error:
            if not restarts or not can_restart(error):
                raise
            if streak.add(0) > IN_A_ROW:
                raise too_many(error) from error.__cause__
            where = f" ({error.where})" if error.where else ""
            _say(f"warning: {error.what}{where}; it is made again")


def _say(text: str) -> None:
    with suppress(OSError, ValueError):  # nobody reads it
        print(printable(" ".join(text.split())), file=sys.stderr, flush=True)


def too_many(error: LudusError) -> LudusError:
    return LudusError(
        "E205",
        f"{error.what}, {IN_A_ROW + 1} times without a whole episode or {GOOD_STEPS:,} steps "
        "between them",
        where=error.where,
        why="it fails again however often it is made anew",
        fix=error.fix,
    )
