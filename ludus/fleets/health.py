"""Actor failures: replace the actor, or end the run after too many failures."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from ludus.errors import ActorError, LudusError
from ludus.process.child import UNGUARDED_CAUSE, unguarded
from ludus.process.supervisor import (
    NO_HEARTBEAT,
    Supervisor,
    Watched,
    hang_cause,
    remove_if_empty,
)  # fmt: skip
from ludus.secret_masking import hide
from ludus.settings.resolve import Config
from ludus.track.atomic_files import make_folder, read_tail, write_atomic

START_SECONDS, START_EACH = 300.0, 5.0  # see start_seconds
# Signals (as `exit_cause` names them) that a process causes itself.
CRASHES = tuple(f"SIG{name})" for name in ("SEGV", "BUS", "ABRT", "FPE", "ILL"))


class ActorSupervisor(Supervisor):
    """Supervises the actors of a run and limits how many of them are replaced."""

    def __init__(self, cfg: Config, run: Path | None) -> None:
        self.actors = cfg.run.actors
        hang, start = float(cfg.actor.hang_seconds), start_seconds(self.actors, cfg.env.num_envs)
        super().__init__(hang, start, "actor")
        self.on_error = cfg.env.on_error
        self.restarts = Restarts(cfg.actor.restarts, cfg.actor.restart_minutes, run, self.actors)
        self.over = False  # too many failures: replace no more actors

    def count_failure(
        self, child: Watched, failure: Reported, late: Sequence[int], *, last: bool
    ) -> None:
        """Report and count the failure of an actor that will be replaced. Raise if the failure ends
        the run; `last`: it always does. `late`: indices of all hung actors."""
        error, cause, text = failure
        if last or ends_run(self.on_error, error):
            raise error or failed_at_start(cause, late) from ActorError(text or cause)
        if text and child.stacks is not None:
            with suppress(OSError):  # a full disk must not end the run
                write_atomic(child.stacks.with_suffix(".txt"), hide(text).encode())
        first = cause.splitlines()[0]
        self.warn(f"actor {child.index} is replaced: {first}")
        self.restarts.add(child.index, first, text)


# (error that a user can act on or None, cause in one line, traceback)
Reported = tuple[LudusError | None, str, str]


def hung(child: Watched, seconds: float) -> Reported:
    return None, hang_cause(seconds, child.stacks, read_tail), ""


def stack_file(crash: Path, index: int, generation: int) -> Path:
    """The file for the stack dumps of an actor; its folder is made."""
    with suppress(OSError):  # a full disk must not end the run
        make_folder(crash)
    return crash / f"actor-{index}-{generation}.stack"


def remove_empty_dumps(crash: Path | None) -> None:
    """Remove empty stack files that a killed learner left."""
    if crash is not None:
        for stacks in crash.glob("actor-*.stack"):
            remove_if_empty(stacks)


def ends_run(on_error: str, error: LudusError | None) -> bool:
    """Whether an environment error ends the run (see env.on_error) and not only the actor. With
    `restart` the actor has already tried to make the environment again."""
    return error is not None and on_error != "auto" and error.code in ("E202", "E203", "E205")


def failed_at_start(cause: str, who: Sequence[int]) -> LudusError:
    """The error for an actor that failed before its first rows; a replacement would fail, too."""
    if cause == UNGUARDED_CAUSE:
        return unguarded("E206", "run.fleet")
    why, fix = "the environment or the network fails in another process", ""
    if cause.startswith(NO_HEARTBEAT):
        why = "it hangs, or one step or reset of an environment takes longer than that"
        fix = "raise  actor.hang_seconds  if it is only slow; else "
    return LudusError(
        "E206",
        f"an actor failed before its first rows: {cause}",
        where=f"{'actor' if len(who) == 1 else 'actors'} {', '.join(map(str, sorted(who)))}",
        why=why,
        fix=f"{fix}try it in this process with  run.fleet=inline run.actors=1",
    )


def start_seconds(actors: int, num_envs: int) -> float:
    """Heartbeat timeout during start-up: imports, making `num_envs` environments, and the first
    episode in one of them, on cores that all actors share."""
    return START_SECONDS + START_EACH * (actors + num_envs)


@dataclass(frozen=True)
class Failure:
    at: float  # monotonic
    actor: int
    cause: str  # one line
    traceback: str = ""

    @property
    def kind(self) -> str:
        """The cause without numbers, so that equal causes compare equal. Empty if the process was
        killed or stopped from outside."""
        located = self.cause.startswith(NO_HEARTBEAT) and "its stack is in" in self.cause
        own = self.traceback or located or self.cause.endswith(CRASHES)
        return re.sub(r"\d+", "#", self.cause) if own else ""


@dataclass
class Restarts:
    """Counts failures, and ends the run after more than `limit` within `minutes`."""

    limit: int
    minutes: float
    run: Path | None = None  # run directory
    actors: int = 1  # number of actors
    failures: list[Failure] = field(default_factory=list)

    @property
    def count(self) -> int:
        return len(self.failures)

    def add(self, actor: int, cause: str, traceback: str = "") -> None:
        """Count a failure; raise E206 if there are too many."""
        now = time.monotonic()
        self.failures.append(Failure(now, actor, cause, traceback))
        recent = [f for f in self.failures if now - f.at <= 60 * self.minutes]
        if len(recent) > self.limit:
            raise LudusError(
                "E206",
                f"{len(recent)} actors failed within {self.minutes:g} minutes\n{table(recent)}",
                where="actors " + ", ".join(map(str, sorted({f.actor for f in recent}))),
                why="the cause is permanent",
                fix=f"look at {self.run or 'RUN'}/crash, then  ludus resume {self.run or 'RUN'} ; "
                "actor.restarts=N allows more",
            ) from _first(recent)
        if self._all_alike(recent):
            who = "the only actor" if self.actors == 1 else f"all {self.actors} actors"
            raise LudusError(
                "E206",
                f"{who} failed {self.alike} times for the same cause: {cause}",
                where="actors " + ", ".join(map(str, range(self.actors))),
                why="the environment or the algorithm fails in every process",
                fix="correct it, or  env.on_error=restart  makes environments again; "
                f"all tracebacks are in {self.run or 'RUN'}/crash",
            ) from _first(recent)

    @property
    def alike(self) -> int:
        """Failures per actor for the same cause that end the run. Two failures of a single actor
        may be a coincidence."""
        return 2 if self.actors > 1 else 3

    def _all_alike(self, recent: list[Failure]) -> bool:
        """Whether every actor has failed `alike` times for the cause of the newest failure."""
        kind = recent[-1].kind
        counted = Counter(f.actor for f in recent if f.kind == kind)
        return kind != "" and all(counted[i] >= self.alike for i in range(self.actors))


def _first(failures: list[Failure]) -> ActorError | None:
    """The first traceback, which explains the others."""
    return next((ActorError(f.traceback) for f in failures if f.traceback), None)


def table(failures: list[Failure]) -> str:
    """List the causes, most frequent first."""
    counted = Counter(f.cause for f in failures)
    return "\n".join(f"  {count:4d} x  {cause}" for cause, count in counted.most_common(8))
