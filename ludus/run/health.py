"""When an actor counts as dead, how often that may happen, and what is told about it."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field

from ludus.errors import ActorError, LudusError


@dataclass(frozen=True)
class Failure:
    at: float  # monotonic
    actor: int
    cause: str  # one line
    traceback: str = ""


@dataclass
class Restarts:
    """At most `limit` within `minutes`, else the run is stopped: something is wrong for good."""

    limit: int
    minutes: float
    failures: list[Failure] = field(default_factory=list)

    @property
    def count(self) -> int:
        return len(self.failures)

    def add(self, actor: int, cause: str, traceback: str = "") -> None:
        """Remember it; E206 where it was one too many."""
        now = time.monotonic()
        self.failures.append(Failure(now, actor, cause, traceback))
        recent = [f for f in self.failures if now - f.at <= 60 * self.minutes]
        if len(recent) > self.limit:
            raise LudusError(
                "E206",
                f"{len(recent)} actors failed within {self.minutes:g} minutes\n{table(recent)}",
                where="actors " + ", ".join(map(str, sorted({f.actor for f in recent}))),
                why="the same thing fails again and again",
                fix="look at crash/ in the run directory, then  ludus resume RUN ; "
                "actor.restarts=N allows more",
            ) from _first(recent)


def _first(failures: list[Failure]) -> ActorError | None:
    """The first traceback is the one that explains the others."""
    return next((ActorError(f.traceback) for f in failures if f.traceback), None)


def table(failures: list[Failure]) -> str:
    """Causes, the most frequent first."""
    counted = Counter(f.cause for f in failures)
    return "\n".join(f"  {count:4d} x  {cause}" for cause, count in counted.most_common(8))


__all__ = ["ActorError", "Failure", "Restarts", "table"]
