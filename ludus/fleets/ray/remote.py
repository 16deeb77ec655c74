"""A process on Ray, as the learner sees it: where it runs, its heartbeats and its end."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import psutil
import ray
from ray import exceptions

from ludus.fleets.ray.checks import check_version
from ludus.fleets.ray.process import Placed, host
from ludus.process.supervisor import Watched, remove_if_empty
from ludus.track.atomic_files import write_atomic

BEAT_SECONDS = 0.5  # between requests for a heartbeat


@dataclass(kw_only=True)
class Remote(Watched):
    """A `RayProcess`."""

    actor: Any  # its handle
    place: Placed | None = None  # None: no node has room for it yet
    process: psutil.Process | None = None  # if it runs on this machine
    dead: str = ""  # why it died
    beat_asked: float = 0.0
    beat_reference: Any = None
    stack_reference: Any = None
    newest_beat: int = 0

    @property
    def pid(self) -> int | None:
        return None if self.process is None else self.process.pid

    @property
    def exited(self) -> bool:
        return self.dead != ""

    def put_at(self, place: Placed, name: str) -> None:
        """Note where it runs."""
        check_version(name, place.version)
        self.place = place
        if place.host == host():
            with suppress(psutil.NoSuchProcess):
                self.process = psutil.Process(place.pid)
        if self.stacks is not None:
            with suppress(OSError):  # it exists from the time when the process can answer
                self.stacks.touch()

    def die(self, error: Exception) -> None:
        lines = str(error).strip().splitlines()
        known = next((line.strip() for line in lines[1:] if "died" in line or "exit" in line), "")
        self.dead = known or lines[0] if lines else type(error).__name__
        self.forget_calls()

    def look(self, now: float) -> None:
        """Receive a heartbeat and a stack, and ask for the next heartbeat."""
        try:
            if self.beat_reference is not None and done(self.beat_reference):
                reference, self.beat_reference = self.beat_reference, None
                with suppress(exceptions.ActorUnavailableError):
                    self.newest_beat = ray.get(reference)
            if self.beat_reference is None and now - self.beat_asked >= BEAT_SECONDS:
                self.beat_asked, self.beat_reference = now, self.actor.beat.remote()
            if self.stack_reference is not None and done(self.stack_reference):
                reference, self.stack_reference = self.stack_reference, None
                with suppress(OSError, exceptions.ActorUnavailableError):
                    if self.stacks is not None:
                        write_atomic(self.stacks, ray.get(reference).encode())
        except exceptions.RayActorError as error:
            self.die(error)

    def ask_for_stack(self) -> None:
        self.stack_reference = self.actor.stack.remote()

    def exit_cause(self, seconds: float = 10.0) -> str:
        return f"process exited without an error message ({self.dead.rstrip('.')})"

    def end(self, seconds: float = 2.0) -> None:
        with suppress(exceptions.RayError):
            ray.kill(self.actor, no_restart=True)
        if self.process is not None:
            with suppress(psutil.NoSuchProcess):  # Ray leaves a stopped process alone
                self.process.kill()
        self.forget_calls()
        remove_if_empty(self.stacks)

    def forget_calls(self) -> None:
        """Wait for no answer any more."""


def done(reference: Any) -> bool:
    return bool(ray.wait([reference], timeout=0)[0])


def made_remote(kind: type[Any], own_thread: Sequence[str]) -> Any:
    """A class of Ray actors; some of its calls have a thread of their own."""
    for name in own_thread:
        ray.method(concurrency_group="health")(getattr(kind, name))
    return ray.remote(concurrency_groups={"health": 1})(kind)
