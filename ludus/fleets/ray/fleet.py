"""The Ray fleet: N actors as Ray actors (actor.py), on this machine or on the nodes of a cluster.

Chunks and weights travel through Ray's object store, each as one array of bytes. A free actor has
up to `actor.buffers` requests; the learner sends the next one when it has taken a chunk. Actors
that no node has room for join later, and a lost one returns with its index.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any

import ray
from ray import exceptions
from torch import nn

from ludus.contract import Plan
from ludus.fleets.actor_core import ActorJob
from ludus.fleets.actor_fleet import LOOK, ActorFleet
from ludus.fleets.health import Reported
from ludus.fleets.ray.actor import OWN_THREAD, RayActor
from ludus.fleets.ray.cluster import Cluster, connect
from ludus.fleets.ray.member import RayMember
from ludus.fleets.ray.process import Placed
from ludus.fleets.ray.remote import done, made_remote
from ludus.fleets.ray.weights import Weights
from ludus.replay.chunk_layout import Bytes, Head
from ludus.track.atomic_files import write_atomic
from ludus.types import Chunk

CLOSE_SECONDS = 2.0
RUN_ID = "cluster-id"  # file in the run's directory
ANSWER_SECONDS = 5.0  # for an actor of an earlier learner to answer
PLACE_SECONDS = 10.0  # time that free training waits for actors without a place


def lost(node: str) -> bool:
    return not any(n["NodeID"] == node and n["Alive"] for n in ray.nodes())


class RayFleet(ActorFleet[RayMember]):
    """N Ray actors. It joins Ray, or starts it on this machine."""

    cluster: Cluster | None = None
    begun = False  # a barrier has started the episodes

    def _prepare(self, plan: Plan, net: nn.ModuleDict) -> None:
        self.cluster = connect(self.cfg.ray, self.actors)
        self.started = self.clock.read()
        self.numbers: dict[str, float] = {}
        self.weights = Weights(net, ray.put)
        self.kind = made_remote(RayActor, OWN_THREAD)

    def _waits(self) -> bool:
        return True

    @property
    def learner_bound(self) -> bool | None:
        return None

    @property
    def where(self) -> str:
        return "1 Ray actor" if self.actors == 1 else f"{self.actors} Ray actors"

    def metrics(self) -> dict[str, float]:
        ready = sum(done(m.calls[0].reference) for m in self.members if m.calls)
        return super().metrics() | {"waiting_chunks": len(self.notices) + ready}

    def _start(self, job: ActorJob) -> RayMember:
        stacks = self._stacks(job)
        found = self._of_earlier_learner(job.index) if job.generation == 0 else None
        actor = found or self._new_actor(job.index)
        now = self.clock.read()
        member = RayMember(
            index=job.index, job=job, actor=actor, weights=self.weights, stacks=stacks,
            pull_every=0 if self.lockstep else self.cfg.actor.pull_every, started=now,
            chunk_steps=job.rows * job.env.num_envs, beat_seen=now,
        )  # fmt: skip
        member.send(("prepare", self.cfg.run.imports))
        return member

    def _new_actor(self, index: int) -> Any:
        wanted = self.cfg.ray
        lasting: dict[str, Any] = {}
        if wanted.keep:
            name = f"{self._name(index)}{secrets.token_hex(4)}"
            lasting = {"name": name, "lifetime": "detached"}
        return self.kind.options(
            num_cpus=wanted.actor_cpus, num_gpus=wanted.actor_gpus,
            resources={wanted.resource: 1} if wanted.resource else None,
            max_restarts=0, max_task_retries=0, **lasting,
        ).remote(wanted.keep)  # fmt: skip

    def _name(self, index: int) -> str:
        """The beginning of the names of an actor's processes: that of the run."""
        return f"ludus-{self.run_id}-{index}-"

    @cached_property
    def run_id(self) -> str:
        """A number of this run, kept in its directory: another run finds other actors."""
        file = self.crash and self.crash.parent / RUN_ID
        if file is not None and file.is_file() and (found := file.read_text().strip()).isalnum():
            return found[:64]
        made = secrets.token_hex(8)
        if file is not None:
            write_atomic(file, made.encode())
        return made

    def _of_earlier_learner(self, index: int) -> Any:
        """The actor that a killed learner of this run has left; None if there is none."""
        if not self.cfg.ray.keep:
            return None
        for name in ray.util.list_named_actors():
            if name.startswith(self._name(index)):
                with suppress(ValueError, exceptions.RayError):
                    actor = ray.get_actor(name)
                    ray.get(actor.leave.remote(), timeout=ANSWER_SECONDS)
                    return actor
        return None

    def _enough(self) -> bool:
        """All actors in lockstep. Else those that have a place, after a while; at least one."""
        placed = [m for m in self.members if m.place is not None]
        if self.lockstep or self.clock.read() - self.started < PLACE_SECONDS:
            placed = self.members
        return bool(placed) and all(m.ready for m in placed)

    def _absent(self, member: RayMember) -> bool:
        return not self.lockstep and not member.ready

    def barrier(self, number: int) -> list[Any]:
        self.begun = True
        return super().barrier(number)

    def _update_weights(self, net: nn.ModuleDict, updates: int) -> None:
        self.weights.publish(net, updates)

    def _set_values(self, values: list[float]) -> None:
        self.numbers = dict(zip(self.names, values, strict=True))

    def _run_free(self) -> None:
        for member in self.members:
            if member.ready:
                while member.flying < self.cfg.actor.buffers and member.send(
                    ("collect", self.numbers)
                ):
                    pass

    def _leave(self) -> None:
        for member in self.members:
            with suppress(exceptions.RayError):
                member.actor.leave.remote()

    def _ready(self, seconds: float) -> Sequence[RayMember]:
        for member in self.members:
            member.send_again()
        heads = {m.calls[0].reference: m for m in self.members if m.calls}
        if not heads:
            time.sleep(min(seconds, LOOK))
            return []
        if seconds > 0:
            ray.wait(list(heads), num_returns=1, timeout=seconds)
        found, _ = ray.wait(list(heads), num_returns=len(heads), timeout=0)
        return [heads[reference] for reference in found]

    def _beat(self, member: RayMember, now: float) -> float:
        member.look(now)
        # An actor that no node has room for cannot hang.
        return now if member.place is None else float(member.newest_beat)

    def _handle(self, member: RayMember, kind: str, value: Any) -> None:
        if kind == "placed":
            self._place(member, value)
        elif kind == "begun":
            member.reset = True
        elif kind == "unavailable":
            self.lost += value.command == "collect"
            member.flying -= value.command == "collect"
        elif kind == "chunk" and value[1] <= member.last_sequence:
            self.lost += 1  # it came twice or too late
        else:
            if kind in ("chunk", "nothing") and self.lockstep:
                member.flying = 0
            super()._handle(member, kind, value)
            if kind == "ready" and self.begun and not member.reset:
                self._join_late(member)

    def _place(self, member: RayMember, place: Placed) -> None:
        """Note where an actor runs, and send it its work."""
        member.put_at(place, f"actor {member.index}")
        member.started = self.clock.read()
        member.send(("setup", (member.job, self.layout)))

    def _join_late(self, member: RayMember) -> None:
        """Start the episodes of an actor that found a place after training began."""
        if self.kept[member.index]:
            member.send(("load", self.kept[member.index]), wanted=False)
        member.send(("barrier", self.number), wanted=False)

    def _is_final(self, member: RayMember) -> bool:
        """One that joins late may fail alone: the others go on."""
        return super()._is_final(member) and not any(m.worked for m in self.members)

    def _count(self, member: RayMember, failure: Reported) -> None:
        """The loss of a node is no fault of its actors."""
        if member.exited and member.place is not None and lost(member.place.node):
            self.warn(f"actor {member.index} is replaced: its node {member.place.node[:8]} is lost")
        else:
            super()._count(member, failure)

    def _claim(self, member: RayMember, place: Any, sequence: int) -> Chunk | None:
        packed: Bytes
        head: Head
        packed, head = place
        member.flying -= 1
        # A copy, so that Ray may free the object at once. Its rows belong to the chunk.
        arrays = self.layout.arrays(packed.copy())
        return self.layout.chunk(arrays, member.index, head, copy=False)

    def close(self) -> None:
        asked = []
        for member in self.members:
            with suppress(exceptions.RayError):
                member.actor.leave.remote()
                if member.place is not None and member.dump_asked is None and not member.exited:
                    asked.append(member.actor.close.remote())
        if asked:
            with suppress(exceptions.RayError):
                ray.wait(asked, num_returns=len(asked), timeout=CLOSE_SECONDS)
        for member in self.members:
            member.end()
        self.members = []
        if self.cluster is not None:
            self.cluster.close()
            self.cluster = None
