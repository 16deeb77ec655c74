"""Start replay processes, and wait for their answers."""

from __future__ import annotations

from collections.abc import Sequence
from multiprocessing.connection import wait

from ludus.contract import Unroll
from ludus.process.fork_server import process_context
from ludus.process.supervisor import close_all
from ludus.replay.roles.client import RoleClient
from ludus.replay.roles.process import role_main
from ludus.replay.roles.role import RoleJob
from ludus.replay.roles.settings import Roles
from ludus.replay.roles.transport import Fields, RoleMemory

CLOSE_SECONDS = 2.0


class ProcessLauncher:
    """Roles in processes of this machine."""

    unit = ("process", "processes")

    def __init__(self, made: Roles, fields: Fields) -> None:
        self.made, self.fields = made, fields
        self.context = process_context("ludus.fleets.processes.actor")

    def start(self, job: RoleJob, now: float) -> RoleClient:
        made, context = self.made, self.context
        memory = RoleMemory.make(
            made.layout, made.chunk_places(job.index), self.fields, made.sample_places, context,
            copy=any(isinstance(feed.view, Unroll) for feed in made.plan.feeds),
        )  # fmt: skip
        theirs, orders = context.Pipe(duplex=False)
        answers, ours = context.Pipe(duplex=False)
        stacks = made.stack_file(job.index, job.generation)
        client = RoleClient.start(
            context, role_main,
            (made.imports, memory, theirs, ours, made.threads, stacks, made.open_file),
            name=f"replay-{job.index}", now=now, index=job.index, stacks=stacks,
            job=job, memory=memory, orders=orders, answers=answers,
        )  # fmt: skip
        theirs.close()  # orders to a dead role then fail
        ours.close()
        client.send(job)
        return client

    def wait(self, members: Sequence[RoleClient], seconds: float) -> bool:
        pipes = [member.pipe for member in members]
        answers = [member.answers for member in members]
        return bool(set(wait([*answers, *pipes], seconds)) - set(answers))

    def close(self, members: Sequence[RoleClient]) -> None:
        close_all(members, CLOSE_SECONDS)
