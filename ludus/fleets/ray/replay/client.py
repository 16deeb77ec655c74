"""One replay role on Ray, as the learner sees it. Orders are calls, executed in their sequence.

The chunk of an order is one array of bytes, and so is each sample, which the learner copies out of
the object store into a place of its own. Orders that were lost on the way are sent again.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import ray
import torch
from ray import exceptions
from torch import Tensor

from ludus.fleets.ray.remote import Remote
from ludus.fleets.ray.replay.role import REQUEST, Answer, Order, empty_sample
from ludus.process.shared_tensors import Array
from ludus.replay.chunk_layout import Bytes, ChunkLayout, Head
from ludus.replay.roles.link import ADD, FEEDBACK, RoleLink, RoleLostError, lost_to
from ludus.replay.roles.role import Report
from ludus.replay.roles.transport import Fields, read_sample
from ludus.types import Chunk

RESEND_SECONDS = 0.2  # after a call that was lost on the way
WAIT = 0.1  # seconds between looks at a role that answers a request


class Call(NamedTuple):
    name: str  # of the method
    value: Any
    reference: Any = None


@dataclass(kw_only=True)
class RayRoleClient(Remote, RoleLink):
    layout: ChunkLayout
    fields: Fields
    threads: int
    imports: tuple[str, ...]
    wanted: str  # the resource that it needs; empty: any node will do
    calls: deque[Call] = field(default_factory=deque)  # unanswered, in their order
    held: deque[Call] = field(default_factory=deque)  # not sent yet, or lost on the way
    heard: list[tuple[str, Any]] = field(default_factory=list)
    found: Any = None  # the answer to a request
    number: int = 0  # of the newest order
    answered: int = 0  # newest order whose answer has arrived
    open: bool = False  # it takes orders
    resend_at: float = 0.0
    state: Answer = field(default_factory=lambda: Answer(False, tuple(Report()), 0.0))

    def __post_init__(self) -> None:
        self.samples = list[tuple[Bytes, dict[str, Array]]]()
        self.held.append(Call("prepare", (self.imports,)))
        self._flush()

    def make_places(self, chunks: int, samples: int) -> None:
        super().make_places(chunks, samples)
        self.samples = [empty_sample(self.fields) for _ in range(samples)]

    @property
    def placed(self) -> bool:
        return self.place is not None

    @property
    def report(self) -> Report:
        return Report(*self.state.report)

    @property
    def memory_bytes(self) -> float:
        return self.state.memory

    def heartbeat(self, now: float) -> float:
        self.look(time.monotonic())
        return float(self.newest_beat) if self.placed else -1.0

    def hang_cause(self, seconds: float, read: Callable[[Path], str]) -> str:
        if self.placed:
            return super().hang_cause(seconds, read)
        lacking = f"no node offers {self.wanted}" if self.wanted else "no node takes it"
        return f"{lacking}, for {seconds:g} s"

    # Orders.
    def order(self, kind: int, place: int = 0, value: Any = None) -> None:
        self.under_way.append((kind, place))
        self.number += 1
        self.held.append(Call("execute", Order(self.number, 0, kind, place, value)))
        self._flush()

    def add(self, chunk: Chunk, source: int) -> None:
        place = self.inbox.pop()
        self.adds += 1
        head = tuple(Head(chunk.sequence, chunk.version, chunk.breaks))
        self.order(ADD, place, (self.layout.pack(chunk), source, head))

    def feedback(self, place: int, priority: Tensor) -> None:
        # A copy: it may wait here while the learner writes the next ones.
        self.order(FEEDBACK, place, np.array(priority.numpy(), np.float64))

    def _flush(self) -> None:
        """Send what waits, in its order. Orders wait until the role has its store."""
        while self.held and not self.exited and time.monotonic() >= self.resend_at:
            name, value, _ = self.held[0]
            if name == "execute":
                if not self.open:
                    return
                value = (value._replace(answered=self.answered),)
            self.calls.append(
                self.held.popleft()._replace(reference=getattr(self.actor, name).remote(*value))
            )

    def _again(self, call: Call) -> None:
        """Send this call and all after it again: the role executes none before its predecessor."""
        self.held.extendleft(reversed([call, *self.calls]))
        self.calls.clear()
        self.resend_at = time.monotonic() + RESEND_SECONDS

    # Answers.
    def read(self) -> bool:
        found = False
        self._flush()
        while self.calls and not self.exited:
            references = [call.reference for call in self.calls]
            # Asking for all brings the samples of other nodes here, before their turn.
            arrived, _ = ray.wait(references, num_returns=len(references), timeout=0)
            if references[0] not in arrived:
                break
            self._take(self.calls.popleft())
            found = True
        return found

    def _take(self, call: Call) -> None:
        try:
            answer = ray.get(call.reference)
        except exceptions.ActorUnavailableError:
            self._again(call)
            return
        except exceptions.RayActorError as error:
            self.die(error)
            return
        except exceptions.RayError as error:
            cause = str(error).strip().splitlines()[-1]
            answer = [("error", (None, f"a call failed: {cause}", str(error)))]
        for kind, value in answer:
            if kind == "early":
                self._again(call)
            elif kind == "sample":
                place, steps, packed = value
                np.copyto(self.samples[place][0], packed)
                self.sampled(place, steps)
            elif kind == "done":
                self.state, self.answered = Answer(*value), call.value.number
                self.executed(self.state.due)
            elif kind == "found":
                self.found = value
            elif kind == "placed":
                self.put_at(value, f"replay {self.index}")
                given = (self.job, self.layout, self.fields, self.threads)
                self.held.appendleft(Call("setup", given))
            else:
                self.open = self.open or kind == "ready"
                self.heard.append((kind, value))
        self._flush()

    def messages(self) -> Iterator[Any]:
        heard, self.heard = self.heard, []
        yield from heard

    def read_sample(self, place: int) -> tuple[list[Tensor], Tensor, Tensor, tuple[float, float]]:
        return read_sample(self.samples[place][1])

    def request(
        self,
        name: str,
        value: Any,
        tensors: dict[str, Tensor] | None,
        alive: Callable[[], None],
    ) -> tuple[Any, dict[str, Tensor]]:
        given = None if tensors is None else {k: v.numpy(force=True) for k, v in tensors.items()}
        self.found = None
        self.order(REQUEST, 0, (name, value, given))
        while self.found is None:
            alive()
            wait_for([self], WAIT)
            self.read()
            for kind, said in self.heard:
                if kind == "error":
                    raise lost_to(said)
            if self.exited:
                raise RoleLostError(self.exit_cause())
        result, arrays = self.found
        self.found = None
        return result, {k: torch.from_numpy(np.array(v)) for k, v in arrays.items()}

    def forget_calls(self) -> None:
        self.calls.clear()
        self.held.clear()


def wait_for(members: list[RayRoleClient], seconds: float) -> None:
    """Wait for an answer of one of them."""
    heads = [member.calls[0].reference for member in members if member.calls]
    if heads:
        ray.wait(heads, num_returns=1, timeout=seconds)
    else:
        time.sleep(min(seconds, 0.05))
