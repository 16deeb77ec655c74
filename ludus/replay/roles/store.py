"""The learner's side of replay roles: a store whose rows, draws and priorities are elsewhere.

Every actor belongs to one role, and each batch comes from one role, in turn. A role sees the orders
of the learner in one sequence, so what it draws does not depend on the time. The learner takes the
samples in a fixed order, too, where `ordered`; else it takes whichever has arrived.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ludus.replay.checkpoint import Json, Segment
from ludus.replay.roles.launcher import ProcessLauncher
from ludus.replay.roles.link import BREAK, RESEED, RoleLauncher, RoleLink
from ludus.replay.roles.role import like_sample, weighs
from ludus.replay.roles.settings import SPARE, Roles
from ludus.replay.roles.supervisor import RoleSupervisor
from ludus.replay.roles.transport import Fields
from ludus.types import Chunk, Sample


@dataclass
class Lent:
    """A sample that the learner uses."""

    ids: Tensor
    member: RoleLink
    place: int
    priority: Tensor | None = None  # on its way to the host
    arrived: torch.cuda.Event | None = None


class ReplayRoles(RoleSupervisor):
    """A `SavedStore` over N replay roles. It counts as one store: `size`, counters and memory
    are sums, and names in a checkpoint begin with the number of their role."""

    full = False

    def __init__(
        self, made: Roles, launch: Callable[[Roles, Fields], RoleLauncher] = ProcessLauncher
    ) -> None:
        self.plan, self.weighs = made.plan, weighs(made.plan)
        self.lent: list[Lent] = []
        self.turn = 0  # the role whose sample comes next
        self.next: RoleLink | None = None  # whose sample `ready` has found
        self.scales: dict[int, float] = {}  # see ReplayRole.scale, by role
        super().__init__(made, launch)
        self.owner = [i for i, shard in enumerate(self.shards) for _ in shard]

    def _forget(self, index: int) -> None:
        self.scales.pop(index, None)
        if self.next is not None and self.next not in self.members:
            self.next = None

    # Methods that the loop and the learner call.
    def add(self, chunk: Chunk) -> None:
        """Send a chunk to the role of its actor. Waits while too many are under way."""
        index = self.owner[chunk.source]
        self._until(lambda: bool(self.members[index].inbox))
        self.members[index].add(chunk, chunk.source - self.shards[index].start)

    def ready(self) -> bool:
        """Whether a sample is due. Waits for one that is on its way, so that no update is missed;
        where the order is free, only if the role has said that it draws one."""
        self._release()
        if self.next is not None:
            return True
        if self.made.prefetch:
            self._ask()
        self._read()
        return self._find()

    def _find(self) -> bool:
        """Find the next sample, and wait for it if necessary."""
        count = self.made.roles
        turns = [(self.turn + i) % count for i in range(count)]
        ordered = self.made.ordered or not self.made.prefetch
        for index in turns if ordered else ():
            if not self.made.prefetch:
                self._until(lambda i=index: bool(self.members[i].outbox))  # type: ignore[misc]
                self.members[index].ask(once=True)
            self._until(lambda i=index: self._decided(self.members[i]))  # type: ignore[misc]
            if self.members[index].waiting:
                return self._take(index)
        while not ordered:
            for index in turns:
                if self.members[index].waiting:
                    return self._take(index)
            if not any(m.due and m.asked for m in self.members):
                break
            self._wait()
        return False

    @staticmethod
    def _decided(member: RoleLink) -> bool:
        return bool(member.waiting) or not member.under_way

    def _take(self, index: int) -> bool:
        self.next, self.turn = self.members[index], (index + 1) % self.made.roles
        return True

    def sample(self) -> Sample:
        """The sample that `ready` has found, in its place. It is valid until `ready` is called
        again: its place is then filled anew."""
        assert self.next is not None and self.next.waiting, "ask ready() first"
        member, self.next = self.next, None
        place, _ = member.waiting.popleft()
        tensors, ids, weight, scale = member.read_sample(place)
        index = member.job.index
        if self.made.roles > 1:
            ids = ids * self.made.roles + index
            weight = self._of_all(weight, index, *scale)
        if self.made.device.type != "cpu":
            weight = weight.to(self.made.device, non_blocking=True)
        self.lent.append(Lent(ids, member, place))
        return Sample(like_sample(self.batch, tensors), ids, weight)

    def _of_all(self, weight: Tensor, index: int, scale: float, beta: float) -> Tensor:
        """Weights divided by the largest of all roles, instead of the role's own."""
        self.scales[index] = scale
        ratio = scale / min(self.scales.values())
        return weight * ratio**-beta if ratio != 1.0 else weight

    def feedback(self, ids: Tensor, priority: Tensor) -> None:
        """Send new priorities to the role that drew these items, without waiting for a GPU."""
        if not self.weighs:
            return
        lent = next((one for one in self.lent if one.ids is ids), None)
        if lent is None or priority.shape != ids.shape:
            raise ValueError(
                f"priorities of shape {tuple(priority.shape)} for a batch of {len(ids)}: "
                "a loss gives one for each item of the newest sample"
            )
        lent.priority = priority.detach()
        if priority.device.type == "cuda":
            host = torch.empty(priority.shape, dtype=priority.dtype, pin_memory=True)
            lent.priority = host.copy_(priority, non_blocking=True)
            lent.arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
            lent.arrived.record()
        else:
            self._finish(lent)

    def rank(self, ids: Tensor, features: Tensor) -> None:
        """Nothing is ranked: `check_roles` refuses such samplers."""

    def _finish(self, lent: Lent) -> None:
        """Send the priorities of a used sample, if it has some. Its place is free."""
        self.lent.remove(lent)
        member = lent.member
        if self.members[member.job.index] is not member:
            return  # it was replaced, and its rows are gone
        if lent.priority is not None:
            member.feedback(lent.place, lent.priority.to(torch.float64))
        member.outbox.append(lent.place)

    def _release(self, *, every: bool = False) -> None:
        """Free the places of used samples. Priorities on a GPU may take some updates more."""
        for lent in list(self.lent):
            if lent.arrived is not None and (every or len(self.lent) > SPARE):
                lent.arrived.synchronize()
            if lent.arrived is None or lent.arrived.query():  # type: ignore[no-untyped-call]
                self._finish(lent)

    def _ask(self) -> None:
        for member in self.members:
            while member.outbox and member.asked + len(member.waiting) < self.made.prefetch:
                member.ask(once=False)

    def break_streams(self) -> None:
        """A barrier: samples that wait were not drawn."""
        self.drain()
        self.next, self.turn = None, 0
        for member in self.members:
            member.order(BREAK, member.drop_places())

    def reseed(self, barrier: int) -> None:
        self.barrier_number = barrier
        for member in self.members:
            member.order(RESEED, barrier)
        self.drain()

    def drain(self) -> None:
        """Wait until every order is executed."""
        self._release(every=True)
        self._until(lambda: not any(m.under_way for m in self.members))

    # Numbers.
    @property
    def said(self) -> str:
        """For the status of a run."""
        count = self.made.roles
        return f"in {count} {self.launcher.unit[count != 1]}"

    def _sum(self, name: str) -> float:
        return sum(float(getattr(m.report, name)) for m in self.members)

    @property
    def steps_inserted(self) -> int:
        return int(self._sum("steps_inserted"))

    @property
    def samples_drawn(self) -> int:
        return int(self._sum("samples_drawn")) - sum(m.unused for m in self.members)

    @property
    def missing(self) -> int:
        return int(self._sum("missing"))

    @property
    def size(self) -> int:
        return int(self._sum("size"))

    @property
    def fill(self) -> float:
        return max(m.report.fill for m in self.members)

    @property
    def beta(self) -> float:
        return max(m.report.beta for m in self.members)

    @property
    def rows(self) -> int:
        return sum(self._ask_all("rows"))

    def metrics(self) -> dict[str, float]:
        """The health of the roles."""
        return {
            "roles": sum(m.ready and not m.exited for m in self.members),
            "role_restarts": len(self.failures),
            "waiting_samples": sum(len(m.waiting) for m in self.members),
            "waiting_chunks": sum(m.adds for m in self.members),
            "role_bytes": float(sum(m.memory_bytes for m in self.members)),
        }

    def pids(self) -> list[int]:
        """Ids of the roles' processes on this machine."""
        return [m.pid for m in self.members if m.pid is not None]

    # Checkpoints.
    def _ask_all(self, name: str, values: Sequence[Any] | None = None) -> list[Any]:
        self.drain()
        every = values or [None] * self.made.roles
        return [self._request(i, name, value)[0] for i, value in enumerate(every)]

    def state(self) -> tuple[dict[str, Tensor], Json]:
        self.drain()
        tensors: dict[str, Tensor] = {}
        metas: list[Json] = []
        for i, member in enumerate(self.members):
            meta, own = self._request(i, "state", member.unused)
            metas.append(meta)
            tensors |= {f"{i}.{key}": value for key, value in own.items()}
        states = [tensors[f"{i}.rng"] for i in range(self.made.roles)]
        return tensors | {"rng": torch.cat(states)}, {
            "roles": metas, "rng": [len(state) for state in states],
        }  # fmt: skip

    def load(self, tensors: dict[str, Tensor], numbers: Json) -> None:
        for i, meta in enumerate(numbers["roles"]):
            self._request(i, "load", meta, _own(i, tensors))

    def forget(self, tensors: dict[str, Tensor], numbers: Json) -> None:
        states = torch.split(tensors["rng"], numbers["rng"])
        for i, meta in enumerate(numbers["roles"]):
            self._request(i, "forget", meta, {"rng": states[i]})

    def refill(self, rows: int) -> None:
        """Collect so many rows again before learning, each role its share."""
        for i, shard in enumerate(self.shards):
            lo, hi = (rows * at // self.made.actors for at in (shard.start, shard.stop))
            self._request(i, "refill", hi - lo)

    def marker(self) -> Json:
        return {"roles": self._ask_all("marker")}

    def new_rows_since(self, since: Json | None) -> Segment:
        tensors: dict[str, Tensor] = {}
        metas: list[Json] = []
        self.drain()
        for i in range(self.made.roles):
            meta, own = self._request(i, "segment", since["roles"][i] if since else None)
            metas.append(meta)
            tensors |= {f"{i}.{key}": value for key, value in own.items()}
        return Segment(tensors, {"roles": metas})

    def is_live(self, meta: Json) -> bool:
        return any(self._ask_all("is_live", meta["roles"]))

    def restore(self, segments: Sequence[Segment]) -> None:
        for tensors, meta in segments:
            for i, own in enumerate(meta["roles"]):
                self._request(i, "restore", own, _own(i, tensors))


def _own(index: int, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    prefix = f"{index}."
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
