"""One actor of a fleet, as the learner sees it, whatever carries its messages."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from ludus.fleets.actor_core import ActorJob
from ludus.process.supervisor import Watched


@dataclass(kw_only=True)
class Member(Watched):
    """One actor in another process, as the learner sees it."""

    job: ActorJob
    ready: bool = False
    reset: bool = False  # its environments have started their first episodes
    worked: bool = False  # its first chunk has arrived
    last_sequence: int = -1  # of its newest announced chunk
    asked: dict[str, float] | None = None  # lockstep: schedule values of the requested chunk
    answer: deque[Any] = field(default_factory=deque)
    gave_up: bool = False

    @property
    def pid(self) -> int | None:
        """The id of its process, if that is on this machine."""
        raise NotImplementedError

    @property
    def exited(self) -> bool:
        raise NotImplementedError

    def send(self, message: Any) -> bool:
        """Send a command and its value. Return False if the actor is dead."""
        raise NotImplementedError

    def messages(self) -> Iterator[Any]:
        """Yield all waiting messages, including those of an actor that has died since."""
        raise NotImplementedError

    def exit_cause(self, seconds: float = 10.0) -> str:
        raise NotImplementedError

    def end(self, seconds: float = 2.0) -> None:
        """Kill the actor."""
        raise NotImplementedError
