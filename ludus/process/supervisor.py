"""Start, supervise and end child processes: pipes, heartbeats, hung and dead children.

The supervisor first requests a stack dump from a silent child (SIGUSR1, see child.py), and keeps
the child if its heartbeat continues.
"""

from __future__ import annotations

import math
import os
import re
import signal
import subprocess
import sys
import sysconfig
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import takewhile
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple, Self, TypeVar

from ludus.process.child import PREFIX, UNGUARDED, UNGUARDED_CAUSE
from ludus.process.fork_server import signals_delayed

C = TypeVar("C", bound="Child")
DUMP_SECONDS = 1.0  # time for a silent child to write its stack or continue
APART = 30.0  # seconds between reports of the same child
NO_HEARTBEAT = "no heartbeat"
Verdict = Literal["fine", "ask", "spare", "dead"]

_LUDUS = str(Path(__file__).parents[1])
_PYTHON = sysconfig.get_path("stdlib")
_PACKAGES = (sysconfig.get_path("purelib"), sysconfig.get_path("platlib"))
_FRAME = re.compile(r'^ *File "(?P<file>.*)", line (?P<line>[0-9]{1,9}) in (?P<name>.*)$', re.M)


class ActiveClock:
    """A clock that does not count time while this process is stopped. Ctrl-Z, a suspended job or a
    sleeping laptop stops a whole process group for hours. When the group continues, none of its
    processes has missed a deadline.

    It counts seconds between calls of `read`. Each reading adds the elapsed time, limited to the
    larger of `max_gap` and the CPU time used. A stop adds at most `max_gap`; work counts in full.
    """

    def __init__(self, max_gap: float) -> None:
        self.max_gap, self.time = max_gap, 0.0
        self._read_at, self._used = time.monotonic(), time.process_time()

    def read(self) -> float:
        now, used = time.monotonic(), time.process_time()
        self.time += min(now - self._read_at, max(used - self._used, self.max_gap))
        self._read_at, self._used = now, used
        return self.time


def verdict(now: float, beat: float, dump_asked: float | None, timeout: float) -> Verdict:
    """Judge a child whose newest heartbeat was seen at `beat`. A silent child is first asked
    for its stack (at `dump_asked`), and kept if it continues: the machine may have been stopped."""
    if dump_asked is None:
        return "ask" if now - beat > timeout else "fine"
    if beat > dump_asked:
        return "spare"
    return "dead" if now - dump_asked > DUMP_SECONDS else "fine"


def request_dump(pid: int | None, stacks: Path | None) -> None:
    """Request a stack dump from a child. The child creates the file when it installs its signal
    handler; before that the signal would kill it."""
    with suppress(OSError):
        if pid is not None and stacks is not None and stacks.exists():
            os.kill(pid, signal.SIGUSR1)


@dataclass(kw_only=True)
class Watched:
    """What a supervisor knows of a process: its heartbeats and its stack dump."""

    index: int = 0  # among processes of the same kind
    stacks: Path | None = None  # file for its stack dump
    started: float = 0.0  # by the supervisor's clock
    beat: float = 0.0  # the newest heartbeat; any number that changes
    beat_seen: float = 0.0  # when the supervisor saw it, by its clock
    dump_asked: float | None = None  # when a stack dump was requested

    def last_beat(self, beat: float, now: float) -> float:
        """Note the newest heartbeat. Return the time when the supervisor first saw it."""
        if beat != self.beat:
            self.beat, self.beat_seen = beat, now
        return self.beat_seen

    def ask_for_stack(self) -> None:
        """Request a stack dump."""
        raise NotImplementedError


@dataclass
class Child(Watched):
    """One child process (see child.py) and the pipe to it."""

    process: Any
    pipe: Connection

    @classmethod
    def start(
        cls,
        context: Any,
        target: Callable[..., None],
        args: tuple[Any, ...],
        *,
        name: str,
        daemon: bool = True,  # a daemon may have no children
        now: float = 0.0,
        **fields: Any,
    ) -> Self:
        """Run `target(pipe, *args)` in a new process."""
        ours, theirs = context.Pipe()
        process = context.Process(
            target=target, args=(theirs, *args), name=PREFIX + name, daemon=daemon
        )
        with signals_delayed():
            process.start()
        theirs.close()  # the pipe then ends when the child exits
        return cls(process, ours, started=now, beat_seen=now, **fields)

    def send(self, message: Any) -> bool:
        """Send a message. Return False if the child is dead."""
        try:
            self.pipe.send(message)
        except OSError:
            return False
        return True

    def messages(self) -> Iterator[Any]:
        """Yield all waiting messages, including those of a child that has died since."""
        with suppress(EOFError, OSError):
            while self.pipe.poll(0):
                yield self.pipe.recv()

    def ask_for_stack(self) -> None:
        request_dump(self.process.pid, self.stacks)

    def exit_cause(self, seconds: float = 10.0) -> str:
        """Wait for the process, whose pipe has ended, and describe its exit."""
        self.process.join(seconds)
        return exit_cause(self.process.exitcode)

    def end(self, seconds: float = 2.0) -> None:
        """Kill the child with SIGKILL. Children ignore SIGTERM."""
        if self.process.is_alive():
            self.process.kill()
        self.process.join(seconds)
        self.forget()

    def forget(self) -> None:
        self.pipe.close()
        remove_if_empty(self.stacks)


class Supervisor:
    """Detects hung children by their heartbeats, and reports children that continue."""

    def __init__(self, hang: float, start: float, what: str = "process") -> None:
        self.hang, self.start_timeout = hang, start  # heartbeat timeouts in seconds
        self.what = what  # the name of a child in messages
        # The supervisor may have been stopped with its children, so an idle gap between two checks
        # counts as at most a quarter of the timeout.
        self.clock = ActiveClock(hang / 4)
        self.slowest = 0.0  # start-up seconds of the slowest first child
        self._reported: dict[int, float] = {}  # when it last reported that a child continued
        self.warn: Callable[[str], None] = lambda _: None

    def timeout(self, *, first: bool, ready: bool) -> float:
        """Seconds without a heartbeat after which a child counts as hung. A replacement may take
        twice the slowest start so far."""
        if ready:
            return self.hang
        return max(self.hang, self.start_timeout if first else 2 * self.slowest)

    def time_start(self, child: Watched) -> None:
        """Record the start-up time of a child of the first generation."""
        self.slowest = max(self.slowest, self.clock.read() - child.started)

    def hangs(self, child: Watched, beat: float, now: float, timeout: float) -> bool:
        """Whether the child hangs and must be ended. `beat` changes with each heartbeat."""
        found = verdict(now, child.last_beat(beat, now), child.dump_asked, timeout)
        if found == "ask":
            child.dump_asked = now
            child.ask_for_stack()
        elif found == "spare":
            child.dump_asked = None
            if now - self._reported.get(child.index, -math.inf) >= APART:
                self._reported[child.index] = now
                name, silent = f"{self.what} {child.index}", f"{self.hang:g} s"
                self.warn(f"{name} sent no heartbeat for {silent}, then continued")
        return found == "dead"


def ready(children: Iterable[C], seconds: float) -> list[C]:
    """Wait up to `seconds` for children that have a message or whose pipe has ended."""
    pipes: dict[Any, C] = {child.pipe: child for child in children}
    return [pipes[pipe] for pipe in wait(list(pipes), seconds)]


def close_all(children: Sequence[Child], seconds: float) -> None:
    """Ask all children to exit, wait, and kill the rest. Hung children are killed at once. Messages
    of the others are read and discarded, since no process exits while its pipe is full."""
    for child in children:
        child.send(("close", None))
    for final in (False, True):
        living = [c for c in children if c.process.is_alive()]
        for child in living:
            if final or child.dump_asked is not None:
                child.process.kill()
        deadline = time.monotonic() + seconds
        while living and time.monotonic() < deadline:
            for child in living:
                for _ in child.messages():
                    pass
            living[0].process.join(0.02)
            living = [c for c in living if c.process.is_alive()]
    for child in children:
        child.forget()


def start_detached(
    module: str, *args: str, out: IO[Any] | int, environ: Mapping[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """Run `python -m module args` in its own session. Signals to our process group do not reach it,
    and it may outlive this process (see `kill_group_after_parent`). Writes to its standard input
    never block."""
    root, given = str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH")
    path = os.pathsep.join([root, given]) if given else root
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", module, *args],
        bufsize=0,
        stdin=subprocess.PIPE,
        stdout=out,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        env={**os.environ, **(environ or {}), "PYTHONPATH": path},
    )
    assert process.stdin is not None
    os.set_blocking(process.stdin.fileno(), False)
    return process


def end_detached(process: subprocess.Popen[bytes], seconds: float) -> None:
    """Close the standard input of a detached process, by which it knows that it must end; kill it
    if it does not within `seconds`."""
    assert process.stdin is not None
    process.stdin.close()
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        kill_group(process)
    if process.stdout is not None:
        process.stdout.close()


def kill_group(process: subprocess.Popen[bytes]) -> None:
    """Kill a detached process and all processes that it started."""
    with suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    if process.stdin is not None:
        with suppress(OSError):
            process.stdin.close()


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
