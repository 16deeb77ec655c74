"""Start replay roles as Ray actors, on nodes for replay if there are some."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import ray
from ray import exceptions

from ludus.errors import LudusError
from ludus.fleets.ray.cluster import connect
from ludus.fleets.ray.process import HEALTH
from ludus.fleets.ray.remote import made_remote
from ludus.fleets.ray.replay.client import RayRoleClient, wait_for
from ludus.fleets.ray.replay.role import RayReplay
from ludus.replay.roles.role import RoleJob
from ludus.replay.roles.settings import Roles
from ludus.replay.roles.transport import Fields
from ludus.settings.sections import REPLAY_ROLE, RayConfig


def offered(resource: str) -> bool:
    """Whether a living node has some of this resource."""
    return any(n["Alive"] and n["Resources"].get(resource) for n in ray.nodes())


class RayLauncher:
    """Roles on the cluster that the fleet uses, too."""

    unit = ("Ray actor", "Ray actors")

    def __init__(self, cfg: RayConfig, made: Roles, fields: Fields) -> None:
        self.cfg, self.made, self.fields = cfg, made, fields
        self.cluster = connect(cfg, made.actors)
        self.kind = made_remote(RayReplay, HEALTH)
        wanted = cfg.replay_resource
        if self.cluster.node is not None and wanted not in ("auto", ""):
            self.cluster.close()
            raise LudusError(
                "E104",
                f"ray.replay_resource={wanted} without ray.address",
                where="ray.replay_resource",
                why="the Ray that Ludus starts on this machine does not offer it",
                fix="ray.address=HOST:PORT  of a cluster, or leave ray.replay_resource out",
            )

    def start(self, job: RoleJob, now: float) -> RayRoleClient:
        made, wanted = self.made, self.cfg.replay_resource
        if wanted == "auto":
            wanted = REPLAY_ROLE if offered(REPLAY_ROLE) else ""
        actor = self.kind.options(
            num_cpus=0, resources={wanted: 1} if wanted else None, max_restarts=0,
            max_task_retries=0,
        ).remote()  # fmt: skip
        client = RayRoleClient(
            index=job.index, job=job, actor=actor, layout=made.layout, fields=self.fields,
            threads=made.threads, imports=made.imports, wanted=wanted, started=now, beat_seen=now,
            stacks=made.stack_file(job.index, job.generation),
        )  # fmt: skip
        client.make_places(made.chunk_places(job.index), made.sample_places)
        return client

    def wait(self, members: Sequence[RayRoleClient], seconds: float) -> bool:
        wait_for(list(members), seconds)
        return any(member.exited or member.heard for member in members)

    def close(self, members: Sequence[RayRoleClient]) -> None:
        for member in members:
            with suppress(exceptions.RayError):
                member.end()
        self.cluster.close()
