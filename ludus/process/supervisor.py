"""Start, supervise and end child processes: pipes, heartbeats, hung and dead children."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import IO, Any, Self, TypeVar

from ludus.process.child import PREFIX
from ludus.process.fork_server import signals_delayed
from ludus.process.health import (
    Heartbeat,
    RateLimit,
    exit_cause,
    heartbeat_clock,
    heartbeat_timeout,
    remove_if_empty,
    request_dump,
    verdict,
)

C = TypeVar("C", bound="Child")


@dataclass
class Child:
    """One child process (see child.py) and the pipe to it."""

    process: Any
    pipe: Connection
    index: int = 0  # among children of the same kind
    stacks: Path | None = None  # file for its stack dump
    started: float = 0.0  # by the supervisor's clock
    heartbeat: Heartbeat = field(default_factory=Heartbeat)
    dump_asked: float | None = None  # when a stack dump was requested

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
        return cls(process, ours, started=now, heartbeat=Heartbeat(now), **fields)

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
        self.clock = heartbeat_clock(hang)
        self.slowest = 0.0  # start-up seconds of the slowest first child
        self.spared = RateLimit()
        self.warn: Callable[[str], None] = lambda _: None

    def timeout(self, *, first: bool, ready: bool) -> float:
        start = self.start_timeout if first else None
        return heartbeat_timeout(self.hang, start, self.slowest, ready=ready)

    def time_start(self, child: Child) -> None:
        """Record the start-up time of a child of the first generation."""
        self.slowest = max(self.slowest, self.clock.read() - child.started)

    def hangs(self, child: Child, beat: float, now: float, timeout: float) -> bool:
        """Whether the child hangs and must be ended. `beat` changes with each heartbeat."""
        seen = child.heartbeat.look(beat, now)
        found = verdict(now, seen, child.dump_asked, timeout)
        if found == "ask":
            child.dump_asked = now
            request_dump(child.process.pid, child.stacks)
        elif found == "spare":
            child.dump_asked = None
            if self.spared.due(child.index, now):
                name, silent = f"{self.what} {child.index}", f"{self.hang:g} s"
                self.warn(f"{name} sent no heartbeat for {silent}, then continued")
        return found == "dead"


def ready(children: Iterable[C], seconds: float) -> list[C]:
    """Wait up to `seconds` for children that have a message or whose pipe has ended."""
    pipes = {child.pipe: child for child in children}
    found: Sequence[Any] = wait(list(pipes), seconds)
    return [pipes[pipe] for pipe in found]


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


def start_detached(module: str, *args: str, out: IO[Any]) -> subprocess.Popen[bytes]:
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
        env={**os.environ, "PYTHONPATH": path},
    )
    assert process.stdin is not None
    os.set_blocking(process.stdin.fileno(), False)
    return process


def kill_group(process: subprocess.Popen[bytes]) -> None:
    """Kill a detached process and all processes that it started."""
    with suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    if process.stdin is not None:
        with suppress(OSError):
            process.stdin.close()
