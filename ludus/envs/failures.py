"""What becomes of an environment that raises, with env.on_error=restart: it is made again, its
episode is cut, and the row is a dummy, which nobody learns from."""

from __future__ import annotations

import traceback
from typing import NamedTuple

from ludus.errors import LudusError

IN_A_ROW = 5  # restarts of one slot without a whole episode between them; the next ends the run


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
    return error.code == "E205"


def too_many(error: LudusError) -> LudusError:
    return LudusError(
        "E205",
        f"{error.what}, {IN_A_ROW + 1} times without a whole episode between them",
        where=error.where,
        why="it fails again however often it is made anew",
        fix=error.fix,
    )
