"""When an actor counts as dead, how often that may happen, and what is told about it."""

from __future__ import annotations

import math
import os
import re
import signal
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from ludus.errors import ActorError, LudusError
from ludus.process.clock import Awake
from ludus.process.main_guard import CAUSE, UNGUARDED, unguarded
from ludus.process.stack import Frame, is_ours, user_line
from ludus.track.atomic_files import read_tail

START_SECONDS, START_EACH = 300.0, 5.0  # see start_seconds
DUMP_SECONDS = 1.0  # for a silent actor to write down what it is doing, or to go on doing it
SILENT = "no sign of life"
# How `ended` names signals that a process gets for what it does itself.
CRASHES = tuple(f"SIG{name})" for name in ("SEGV", "BUS", "ABRT", "FPE", "ILL"))
Verdict = Literal["fine", "ask", "spare", "dead"]


def verdict(now: float, beat: float, dumping: float | None, patience: float) -> Verdict:
    """Of an actor whose newest sign of life was at `beat`. Who is silent is asked for its stack
    first (at `dumping`), and spared if that wakes it: the whole machine may have been stopped."""
    if dumping is None:
        return "ask" if now - beat > patience else "fine"
    if beat > dumping:
        return "spare"
    return "dead" if now - dumping > DUMP_SECONDS else "fine"


@dataclass
class Heard:
    """When somebody's newest sign of life was seen, by a looking clock."""

    at: float = 0.0
    sign: float = 0.0

    def look(self, sign: float, now: float) -> float:
        if sign != self.sign:
            self.sign, self.at = sign, now
        return self.at


def looking_clock(hang: float) -> Awake:
    """By which silence is measured. Who looks may have been stopped with all the others: one gap
    between two looks makes nobody late, unless it was filled with work; four of them do."""
    return Awake(hang / 4)


def ask_for_stack(process: int | None, stacks: Path | None) -> None:
    """See faulthandler in the process itself. It makes its file when it no longer minds the signal,
    which would end one that has only just been started."""
    with suppress(OSError):
        if process is not None and stacks is not None and stacks.exists():
            os.kill(process, signal.SIGUSR1)


def wrote(stacks: Path | None) -> bool:
    """Whether an actor that was asked for its stack has answered."""
    with suppress(OSError):
        return stacks is not None and stacks.stat().st_size > 0
    return False


def silent(seconds: float, stacks: Path | None) -> str:
    """Of an actor that shows no sign of life: where it is, as far as it could tell. Nothing that
    differs from one actor to the next, so that the same causes can be counted."""
    told = f"{SILENT} for {seconds:g} s"
    if stacks is None:
        return told
    if not wrote(stacks):
        who = "a process that is stopped" if stacks.exists() else "one that still starts"
        return f"{told}; it wrote no stack, as {who} cannot"
    line = hung_at(read_tail(stacks))
    return f"{told}{f' in {line}' if line else ''}; its stack is in {stacks.parent}"


_FRAME = re.compile(r'^ *File "(?P<file>.*)", line (?P<line>[0-9]{1,9}) in (?P<name>.*)$', re.M)


def hung_at(dump: str) -> str:
    """sleepers.py:30 in step, from a faulthandler's dump: see `user_line`."""
    for thread in reversed(dump.split("\n\n")):  # the newest dump is the last
        found = _FRAME.finditer(thread)
        frames = [Frame(m["file"], int(m["line"]), m["name"]) for m in found]
        if any(is_ours(f.file) and f.name in ("live", "work") for f in frames):
            return user_line(frames)  # else some thread beside the one that does the work
    return ""


def sweep(crash: Path | None) -> None:
    """Files of actors whose learner was killed: nobody could remove those that stayed empty."""
    if crash is not None:
        for stacks in crash.glob("actor-*.stack"):
            tidy(stacks)


def tidy(stacks: Path | None) -> None:
    """An actor that was never asked for its stack leaves no file."""
    if stacks is not None and not wrote(stacks):
        with suppress(OSError):
            stacks.unlink()


def ended(code: int | None) -> str:
    """Of a process that said nothing."""
    if code == UNGUARDED:
        return CAUSE
    how = f"exit code {code}"
    if code is not None and code < 0:
        known = [s.name for s in signal.Signals if s == -code]  # real-time ones have no name
        how = ", ".join([f"signal {-code}", *known])
    return f"its process ended without a word ({how})"


def ends_run(on_error: str, error: LudusError | None) -> bool:
    """Whether the error of an actor's environment ends the run, as env.on_error says, rather than
    the actor alone. With `restart` the actor has made it again until that was of no use."""
    return error is not None and on_error != "auto" and error.code in ("E202", "E203", "E205")


def never_worked(cause: str, who: Sequence[int]) -> LudusError:
    """Of an actor that failed before its first rows: another one would do the same."""
    if cause == CAUSE:
        return unguarded("E206", "run.fleet")
    why, fix = "the environment or the network fails in another process", ""
    if cause.startswith(SILENT):
        why = "it hangs, or one step or reset of an environment takes longer than that"
        fix = "raise  actor.hang_seconds  if it is merely slow; else "
    return LudusError(
        "E206",
        f"an actor failed before it ever worked: {cause}",
        where=f"{'actor' if len(who) == 1 else 'actors'} {', '.join(map(str, sorted(who)))}",
        why=why,
        fix=f"{fix}try it in this process with  run.fleet=inline run.actors=1",
    )


def start_seconds(actors: int, slots: int) -> float:
    """Silence that is borne while a run begins: imports, `slots` environments that are made, and
    the first episode in one of them, on cores that all actors share."""
    return START_SECONDS + START_EACH * (actors + slots)


def patience(hang: float, first: float | None, slowest: float, *, ready: bool) -> float:
    """Seconds of silence that are borne. While it makes its environments nobody can tell slow from
    hung: one that replaces another may take twice what the `slowest` took, the first `first`."""
    if ready:
        return hang
    return max(hang, 2 * slowest if first is None else first)


class Rarely:
    """Says of each actor whether it is time to speak of it again."""

    def __init__(self, seconds: float = 30.0) -> None:
        self.seconds = seconds
        self._told: dict[int, float] = {}  # by actor, monotonic

    def due(self, actor: int, now: float) -> bool:
        if now - self._told.get(actor, -math.inf) < self.seconds:
            return False
        self._told[actor] = now
        return True


@dataclass(frozen=True)
class Failure:
    at: float  # monotonic
    actor: int
    cause: str  # one line
    traceback: str = ""

    @property
    def kind(self) -> str:
        """The cause without its numbers, which differ from one time to the next. Empty where it is
        not the actor's own: a process that was killed or stopped knows of none."""
        own = self.traceback or (self.cause.startswith(SILENT) and "its stack is in" in self.cause)
        own = own or self.cause.endswith(CRASHES)
        return re.sub(r"\d+", "#", self.cause) if own else ""


@dataclass
class Restarts:
    """At most `limit` within `minutes`, else the run is stopped: something is wrong for good."""

    limit: int
    minutes: float
    run: Path | None = None  # its directory
    actors: int = 1  # of the run
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
                fix=f"look at {self.run or 'RUN'}/crash, then  ludus resume {self.run or 'RUN'} ; "
                "actor.restarts=N allows more",
            ) from _first(recent)
        if self._all_alike(recent):
            raise LudusError(
                "E206",
                f"{_every(self.actors)} failed {self.alike} times for the same cause: {cause}",
                where="actors " + ", ".join(map(str, range(self.actors))),
                why="the environment or the algorithm fails in every process",
                fix="correct it, or  env.on_error=restart  makes environments again; "
                f"all tracebacks are in {self.run or 'RUN'}/crash",
            ) from _first(recent)

    @property
    def alike(self) -> int:
        """Failures of each actor for the same cause that end the run. Of a lone actor twice may be
        chance."""
        return 2 if self.actors > 1 else 3

    def _all_alike(self, recent: list[Failure]) -> bool:
        """Whether each actor and its replacement have failed for the cause of the newest."""
        kind = recent[-1].kind
        counted = Counter(f.actor for f in recent if f.kind == kind)
        return kind != "" and all(counted[i] >= self.alike for i in range(self.actors))


def _every(actors: int) -> str:
    return "the only actor" if actors == 1 else f"all {actors} actors"


def _first(failures: list[Failure]) -> ActorError | None:
    """The first traceback is the one that explains the others."""
    return next((ActorError(f.traceback) for f in failures if f.traceback), None)


def table(failures: list[Failure]) -> str:
    """Causes, the most frequent first."""
    counted = Counter(f.cause for f in failures)
    return "\n".join(f"  {count:4d} x  {cause}" for cause, count in counted.most_common(8))
