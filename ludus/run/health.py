"""When an actor counts as dead, how often that may happen, and what is told about it."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from ludus.errors import ActorError, LudusError

DUMP_SECONDS = 1.0  # for a silent actor to write down what it is doing, or to go on doing it
Verdict = Literal["fine", "ask", "spare", "dead"]


def verdict(now: float, beat: float, dumping: float | None, patience: float) -> Verdict:
    """Of an actor whose newest sign of life was at `beat`. Who is silent is asked for its stack
    first (at `dumping`), and spared if that wakes it: the whole machine may have been stopped."""
    if dumping is None:
        return "ask" if now - beat > patience else "fine"
    if beat > dumping:
        return "spare"
    return "dead" if now - dumping > DUMP_SECONDS else "fine"


def ask_for_stack(process: int | None) -> None:
    """See faulthandler in the process itself."""
    with suppress(OSError):
        if process is not None:
            os.kill(process, signal.SIGUSR1)


def wrote(stacks: Path | None) -> bool:
    """Whether an actor that was asked for its stack has answered."""
    with suppress(OSError):
        return stacks is not None and stacks.stat().st_size > 0
    return False


def tidy(stacks: Path | None) -> None:
    """An actor that was never asked for its stack leaves no file."""
    if stacks is not None and not wrote(stacks):
        with suppress(OSError):
            stacks.unlink()


def ended(code: int | None) -> str:
    """Of a process that said nothing."""
    how = f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"
    return f"its process ended without a word ({how})"


def never_worked(cause: str) -> LudusError:
    """Of an actor that failed before its first rows: another one would do the same."""
    return LudusError(
        "E206",
        f"an actor failed before it ever worked: {cause}",
        why="the environment or the network fails in another process",
        fix="try it in this process with  run.fleet=inline run.actors=1",
    )


def patience(hang: float, first: float | None, slowest: float, *, ready: bool) -> float:
    """Seconds of silence that are borne. While it makes its environments nobody can tell slow from
    hung: one that replaces another may take twice what the `slowest` took, the first `first`."""
    if ready:
        return hang
    return max(hang, 2 * slowest if first is None else first)


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
