"""A worker process: the serial backend for its environments, in shared memory (see workers.py)."""

from __future__ import annotations

from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from ludus.envs.backends.serial import EnvArrays, Serial
from ludus.envs.config import EnvConfig
from ludus.envs.render.viewer import viewer_of
from ludus.errors import LudusError
from ludus.process.child import run_child
from ludus.process.shared_tensors import SharedTensors


@dataclass(frozen=True)
class Job:
    """The arguments of a worker."""

    cfg: EnvConfig
    part: slice  # its environments
    groups: tuple[slice, ...]  # its environments of each group, from its own first
    shared: SharedTensors  # see `shared_arrays`
    first_env: int
    registered: Any  # the gymnasium EnvSpec, if only the parent has registered the id


def shared_arrays(shared: SharedTensors, part: slice) -> EnvArrays:
    """Views of the shared arrays for one worker's environments."""
    views = {name: shared.array(name)[part] for name in shared.places}
    return EnvArrays(
        [view for name, view in views.items() if name.startswith("obs/")],
        views["reward"],
        views["terminal"],
        views["over"],
        views.get("action_mask"),
        life=views.get("life"),
        seeds=views["seeds"],
    )


def work(pipe: Connection, job: Job) -> None:
    """The main function of a worker process."""

    def body() -> None:
        backend = _build(job)
        pipe.send(("ok", (None, {}, {})))
        _serve(pipe, job, backend)

    run_child(pipe, body, explain=_explain)  # one torch thread: workers share the cores


def _explain(error: BaseException) -> LudusError:
    if isinstance(error, LudusError):
        return error
    return LudusError(
        "E205",
        f"an environment worker failed: {type(error).__name__}: {error}",
        why="the environment raised it, or its answer cannot be sent to another process",
        fix="try it alone with  ludus check ENV  or in this process with  env.workers=0",
    )


def _build(job: Job) -> Serial:
    # Imported here because both modules import this one.
    from ludus.envs.backends.workers import register_shipped
    from ludus.envs.make import make_each, make_one

    register_shipped(job.registered)
    first = job.first_env + job.part.start
    numbers = range(first, job.first_env + job.part.stop)
    envs: list[Any] = []
    blueprint = make_each(job.cfg, [job.cfg.shows(i) for i in numbers], envs)
    return Serial(
        envs,
        blueprint.codec,
        blueprint.actions,
        shared_arrays(job.shared, job.part),
        groups=job.groups,
        masks=blueprint.masks,
        first_env=first,
        viewer=viewer_of(job.cfg, envs, first),  # one window per worker
        rebuild=(lambda i: make_one(job.cfg, shown=job.cfg.shows(first + i))[0])
        if job.cfg.rebuilds
        else None,
    )


def _serve(pipe: Connection, job: Job, backend: Serial) -> None:
    actions, resets = job.shared.array("actions"), job.shared.array("resets")
    own = [slice(job.part.start + g.start, job.part.start + g.stop) for g in job.groups]
    while True:
        command, value = pipe.recv()
        if command == "close":
            backend.close()
            return
        backend.arrays.infos.clear()
        backend.arrays.failures.clear()
        if command == "reset":
            backend.reset(value)
        else:
            backend.send(actions[own[value]].copy(), resets[own[value]].copy(), value)
            backend.recv(value)
        infos, failures = (
            {job.part.start + i: value for i, value in table.items()}
            for table in (backend.arrays.infos, backend.arrays.failures)
        )
        pipe.send(("ok", (value if command == "step" else None, infos, failures)))
