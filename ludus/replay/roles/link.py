"""One replay role, as the learner sees it, whatever carries its orders and samples."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from ludus.errors import LudusError
from ludus.process.supervisor import Watched, hang_cause
from ludus.replay.roles.role import Report, RoleJob
from ludus.types import Chunk

# Orders, with their arguments.
ADD, ASK, ASK_ONCE, FEEDBACK, BREAK, RESEED = range(1, 7)


class RoleLostError(Exception):
    """The role died or hangs. `known`: it sent an error, which a replacement would repeat."""

    def __init__(self, cause: str, text: str = "", *, known: bool = False) -> None:
        super().__init__(cause)
        self.cause, self.text, self.known = cause, text, known


def lost_to(message: tuple[LudusError | None, str, str]) -> RoleLostError:
    """The loss of a role that has sent this error."""
    return RoleLostError(message[1], message[2], known=True)


@dataclass(kw_only=True)
class RoleLink(Watched):
    """Orders under way, and samples that wait. Orders are executed in their sequence; each names a
    place, so there are never more than the places allow."""

    job: RoleJob
    ready: bool = False
    under_way: deque[tuple[int, int]] = field(default_factory=deque)  # orders and their places
    inbox: list[int] = field(default_factory=list)  # free places for chunks
    outbox: list[int] = field(default_factory=list)  # free places for samples
    places: int = 0  # for samples
    asked: int = 0  # places that the role may fill
    waiting: deque[tuple[int, int]] = field(default_factory=deque)  # (place, steps) of samples
    due: bool = False  # more batches were due than places asked for, after the newest order
    adds: int = 0  # chunks under way

    def make_places(self, chunks: int, samples: int) -> None:
        self.inbox += range(chunks)
        self.outbox += range(samples)
        self.places = samples

    @property
    def unused(self) -> int:
        """Steps of the samples that wait."""
        return sum(steps for _, steps in self.waiting)

    def ask(self, *, once: bool) -> None:
        """Let the role fill a place with the next batch that is due, or that is due now."""
        self.asked += 1
        self.order(ASK_ONCE if once else ASK, self.outbox.pop())

    def sampled(self, place: int, steps: int) -> None:
        """A sample lies in this place."""
        self.asked -= 1
        self.waiting.append((place, steps))

    def executed(self, due: bool) -> None:
        """The oldest order under way was executed."""
        kind, place = self.under_way.popleft()
        self.due = due
        if kind == ADD:
            self.adds -= 1
            self.inbox.append(place)
        elif kind == ASK_ONCE and (not self.waiting or self.waiting[-1][0] != place):
            self.asked -= 1
            self.outbox.append(place)

    def drop_places(self) -> int:
        """Take back every place for samples. Return the steps of those that wait. Only while no
        order is under way; the role forgets its places with the next one."""
        unused = self.unused
        self.waiting.clear()
        self.asked, self.outbox = 0, list(range(self.places))
        return unused

    def hang_cause(self, seconds: float, read: Callable[[Path], str]) -> str:
        return hang_cause(seconds, self.stacks, read)

    # What depends on the transport.
    @property
    def pid(self) -> int | None:
        """The id of its process, if that is on this machine."""
        raise NotImplementedError

    @property
    def exited(self) -> bool:
        raise NotImplementedError

    @property
    def placed(self) -> bool:
        """Whether it has a machine."""
        return True

    @property
    def report(self) -> Report:
        raise NotImplementedError

    @property
    def memory_bytes(self) -> float:
        raise NotImplementedError

    def heartbeat(self, now: float) -> float:
        """A number that changes with each heartbeat."""
        raise NotImplementedError

    def order(self, kind: int, place: int = 0) -> None:
        raise NotImplementedError

    def add(self, chunk: Chunk, source: int) -> None:
        """Send a chunk. Only while `inbox` has a place."""
        raise NotImplementedError

    def feedback(self, place: int, priority: Tensor) -> None:
        """Send new priorities; the place is free for the orders that follow."""
        raise NotImplementedError

    def read(self) -> bool:
        """Take the answers that have arrived; whether there were any."""
        raise NotImplementedError

    def read_sample(self, place: int) -> tuple[list[Tensor], Tensor, Tensor, tuple[float, float]]:
        """The batch, ids and weights in this place, and the scale of the weights."""
        raise NotImplementedError

    def messages(self) -> Iterator[Any]:
        """Yield what it has said apart from answers: ("ready", None) or ("error", report)."""
        raise NotImplementedError

    def request(
        self,
        name: str,
        value: Any,
        tensors: dict[str, Tensor] | None,
        alive: Callable[[], None],
    ) -> tuple[Any, dict[str, Tensor]]:
        """Send a request for a checkpoint and wait for its answer. Raises RoleLostError."""
        raise NotImplementedError

    def exit_cause(self, seconds: float = 10.0) -> str:
        raise NotImplementedError

    def end(self, seconds: float = 2.0) -> None:
        """Kill the role."""
        raise NotImplementedError


class RoleLauncher(Protocol):
    """Starts roles, and waits for them."""

    unit: tuple[str, str]  # the name of one role, and of several

    def start(self, job: RoleJob, now: float) -> RoleLink: ...

    def wait(self, members: Sequence[Any], seconds: float) -> bool:
        """Wait for answers. Return whether a role has said something else, or has died."""

    def close(self, members: Sequence[Any]) -> None: ...
