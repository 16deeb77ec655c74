"""One Ray actor, as the learner sees it: its calls and their answers."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import ray
from ray import exceptions

from ludus.fleets.member import Member
from ludus.fleets.ray.remote import Remote, done
from ludus.fleets.ray.weights import Weights


class Call(NamedTuple):
    command: str
    value: Any
    reference: Any
    wanted: bool = True  # whether the learner waits for the answer


@dataclass(kw_only=True)
class RayMember(Remote, Member):
    """One Ray actor, as the learner sees it."""

    weights: Weights
    pull_every: int  # steps between new weights; 0: with every chunk
    chunk_steps: int
    calls: deque[Call] = field(default_factory=deque)  # unanswered, in their order
    again: list[Call] = field(default_factory=list)  # lost on the way
    flying: int = 0  # requested chunks that the learner has not taken
    version: int = -1  # of the weights it has
    since_pull: int = 0

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

    def forget_calls(self) -> None:
        self.calls.clear()
