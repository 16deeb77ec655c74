"""Detect hung child processes, locate where they hang, and describe how they exited.

The supervisor first requests a stack dump from a silent child (SIGUSR1, see child.py), and keeps
the child if its heartbeat continues.
"""

from __future__ import annotations

import math
import os
import re
import signal
import sys
import sysconfig
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Literal, NamedTuple

from ludus.process.child import UNGUARDED, UNGUARDED_CAUSE
from ludus.process.clock import ActiveClock

DUMP_SECONDS = 1.0  # time for a silent child to write its stack or continue
NO_HEARTBEAT = "no heartbeat"
Verdict = Literal["fine", "ask", "spare", "dead"]

_LUDUS = str(Path(__file__).parents[1])
_PYTHON = sysconfig.get_path("stdlib")
_PACKAGES = (sysconfig.get_path("purelib"), sysconfig.get_path("platlib"))
_FRAME = re.compile(r'^ *File "(?P<file>.*)", line (?P<line>[0-9]{1,9}) in (?P<name>.*)$', re.M)


def verdict(now: float, beat: float, dump_asked: float | None, timeout: float) -> Verdict:
    """Judge a child whose newest heartbeat was seen at `beat`. A silent child is first asked
    for its stack (at `dump_asked`), and kept if it continues: the machine may have been stopped."""
    if dump_asked is None:
        return "ask" if now - beat > timeout else "fine"
    if beat > dump_asked:
        return "spare"
    return "dead" if now - dump_asked > DUMP_SECONDS else "fine"


@dataclass
class Heartbeat:
    """The time when the supervisor saw a child's newest heartbeat, by the supervisor's clock."""

    seen_at: float = 0.0
    value: float = 0.0

    def look(self, value: float, now: float) -> float:
        if value != self.value:
            self.value, self.seen_at = value, now
        return self.seen_at


def heartbeat_clock(hang: float) -> ActiveClock:
    """A clock for heartbeat timeouts. The supervisor may have been stopped with its children, so an
    idle gap between two checks counts as at most a quarter of the timeout."""
    return ActiveClock(hang / 4)


def heartbeat_timeout(hang: float, first: float | None, slowest: float, *, ready: bool) -> float:
    """Seconds without a heartbeat after which a child counts as hung. During start-up the limit is
    `first` for a first child, and twice the `slowest` start so far for a replacement."""
    if ready:
        return hang
    return max(hang, 2 * slowest if first is None else first)


def request_dump(pid: int | None, stacks: Path | None) -> None:
    """Request a stack dump from a child. The child creates the file when it installs its signal
    handler; before that the signal would kill it."""
    with suppress(OSError):
        if pid is not None and stacks is not None and stacks.exists():
            os.kill(pid, signal.SIGUSR1)


def has_dump(stacks: Path | None) -> bool:
    with suppress(OSError):
        return stacks is not None and stacks.stat().st_size > 0
    return False


def remove_if_empty(stacks: Path | None) -> None:
    """Remove the stack file of a child that wrote no dump."""
    if stacks is not None and not has_dump(stacks):
        with suppress(OSError):
            stacks.unlink()


def hang_cause(seconds: float, stacks: Path | None, read: Callable[[Path], str]) -> str:
    """Describe where a silent child hangs, from its stack dump. The text is the same for all
    children that hang in the same place, so that equal causes can be counted."""
    cause = f"{NO_HEARTBEAT} for {seconds:g} s"
    if stacks is None:
        return cause
    if not has_dump(stacks):
        which = "a stopped process" if stacks.exists() else "a process that is still starting"
        return f"{cause}; it wrote no stack, as {which} cannot"
    line = hung_at(read(stacks))
    return f"{cause}{f' in {line}' if line else ''}; its stack is in {stacks.parent}"


def hung_at(dump: str) -> str:
    """Return the user's line ("sleepers.py:30 in step", see `user_line`) in a faulthandler dump.
    The thread that handled the signal is the main thread."""
    for thread in reversed(dump.split("\n\n")):  # the newest dump is the last
        if thread.lstrip().startswith("Current thread"):
            found = _FRAME.finditer(thread)
            return user_line([Frame(m["file"], int(m["line"]), m["name"]) for m in found])
    return ""


def exit_cause(code: int | None) -> str:
    """Describe the exit of a process that sent no error message."""
    if code == UNGUARDED:
        return UNGUARDED_CAUSE
    how = f"exit code {code}"
    if code is not None and code < 0:
        known = [s.name for s in signal.Signals if s == -code]  # real-time ones have no name
        how = ", ".join([f"signal {-code}", *known])
    return f"process exited without an error message ({how})"


class RateLimit:
    """Limits repeated messages about the same child."""

    def __init__(self, seconds: float = 30.0) -> None:
        self.seconds = seconds
        self._last: dict[int, float] = {}  # by child

    def due(self, child: int, now: float) -> bool:
        if now - self._last.get(child, -math.inf) < self.seconds:
            return False
        self._last[child] = now
        return True


class Frame(NamedTuple):
    file: str
    line: int
    name: str


def user_line(frames: Sequence[Frame]) -> str:
    """Format the frame in the user's code, as "my_env.py:30 in step". `frames`: innermost first.
    It is the innermost frame above Ludus that is in neither Python nor an installed package; if
    there is none, the innermost frame."""
    above = list(takewhile(lambda f: not f.file.startswith(_LUDUS), frames))
    own = [f for f in above if not f.file.startswith((_PYTHON, *_PACKAGES))]
    found = own or above or list(frames)
    return f"{Path(found[0].file).name}:{found[0].line} in {found[0].name}" if found else ""


def stack_of(thread: int) -> tuple[str, str]:
    """Return (the user's line, the whole stack as text) of a thread of this process."""
    frame = sys._current_frames().get(thread)
    if frame is None:
        return "", ""
    stack = traceback.extract_stack(frame)
    frames = [Frame(f.filename, f.lineno or 0, f.name) for f in reversed(stack)]
    return user_line(frames), "".join(stack.format())
