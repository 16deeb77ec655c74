"""One Ray actor, as the learner sees it: its calls, their answers, and its heartbeats."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import psutil
import ray
from ray import exceptions

from ludus.fleets.member import Member
from ludus.fleets.ray.actor import Placed
from ludus.fleets.ray.weights import Weights
from ludus.process.supervisor import remove_if_empty
from ludus.track.atomic_files import write_atomic

BEAT_SECONDS = 0.5  # between requests for a heartbeat


class Call(NamedTuple):
    command: str
    value: Any
    reference: Any
    wanted: bool = True  # whether the learner waits for the answer


@dataclass(kw_only=True)
class RayMember(Member):
    """One Ray actor, as the learner sees it."""

    actor: Any
    weights: Weights
    pull_every: int  # steps between new weights; 0: with every chunk
    chunk_steps: int
    place: Placed | None = None  # None: no node has room for it yet
    process: psutil.Process | None = None  # if it runs on this machine
    calls: deque[Call] = field(default_factory=deque)  # unanswered, in their order
    again: list[Call] = field(default_factory=list)  # lost on the way
    flying: int = 0  # requested chunks that the learner has not taken
    version: int = -1  # of the weights it has
    since_pull: int = 0
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

    def send(self, message: Any, *, wanted: bool = True) -> bool:
        command, value = message
        if self.exited:
            return False
        if command == "collect":
            reference = self.actor.collect.remote(*self._new_weights(), value)
            self.flying += 1
        else:
            given = value if command == "setup" else (value,)
            reference = getattr(self.actor, command).remote(*given)
        self.calls.append(Call(command, value, reference, wanted))
        return True

    def _new_weights(self) -> tuple[Any, int]:
        """Weights for the next chunk and their number; None if it need not pull, or has them."""
        due = self.version < 0 or self.since_pull >= self.pull_every
        self.since_pull = self.chunk_steps + (0 if due else self.since_pull)
        if not due or self.weights.version == self.version:
            return None, self.version
        self.version = self.weights.version
        return self.weights.reference, self.version

    def messages(self) -> Iterator[Any]:
        while self.calls and done(self.calls[0].reference):
            call = self.calls.popleft()
            try:
                answer = ray.get(call.reference)
            except (exceptions.ActorUnavailableError, exceptions.ObjectLostError):
                self.version = -1  # it may lack the weights that came with the call
                self.again.append(call)
                yield "unavailable", call
            except exceptions.RayActorError as error:
                self.die(error)
                return
            except exceptions.RayError as error:
                cause = str(error).strip().splitlines()[-1]
                yield "error", (None, f"its call failed: {cause}", str(error))
            else:
                for kind, value in answer:
                    unwanted = kind == "done" and not call.wanted
                    yield ("begun" if unwanted else kind), value

    def send_again(self) -> None:
        """Repeat calls that were lost on the way."""
        lost, self.again = self.again, []
        for call in lost:
            self.send((call.command, call.value), wanted=call.wanted)

    def die(self, error: Exception) -> None:
        lines = str(error).strip().splitlines()
        known = next((line.strip() for line in lines[1:] if "died" in line or "exit" in line), "")
        self.dead = known or lines[0] if lines else type(error).__name__
        self.calls.clear()

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
        self.calls.clear()
        remove_if_empty(self.stacks)


def done(reference: Any) -> bool:
    return bool(ray.wait([reference], timeout=0)[0])
