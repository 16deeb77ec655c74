"""The process of one of the other learners: its part of the run, driven by the main process."""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from ludus.contract import Algorithm
from ludus.envs.backends.workers import register_shipped
from ludus.errors import LudusError
from ludus.learn.compression import Compression
from ludus.learn.group import LearnerGroup, LostLearnerError
from ludus.process.child import run_child
from ludus.process.modules import import_modules
from ludus.process.shared_tensors import SharedTensors
from ludus.run.build import build_loop
from ludus.run.learners.loop import GroupLoop, digest, load_shared
from ludus.run.learners.replay import PartReplay
from ludus.run.loop import frozen_garbage
from ludus.settings.resolve import from_tree
from ludus.track.run_dir.rundir import RunDir
from ludus.types import EpisodeEnd


@dataclass(frozen=True)
class MemberJob:
    """The arguments of another learner."""

    config: dict[str, Any]
    algorithm: Algorithm
    rank: int
    run: Path
    compute: Mapping[str, Any]  # the decisions of the first learner
    registered: Any  # the gymnasium EnvSpec, if only the main process has registered the id


@dataclass(frozen=True)
class Report:
    """The results of an iteration."""

    episodes: list[EpisodeEnd]
    metrics: dict[str, float]  # of the actors
    pids: list[int]  # of the actors


class AbortedError(Exception):
    """Another learner has failed: stop waiting for it."""


def learner_folder(run: Path, rank: int) -> Path:
    """Where another learner writes its crash dumps."""
    return run / "learners" / str(rank)


def member_main(
    pipe: Connection, imports: tuple[str, ...], threads: int, leaving: SharedTensors
) -> None:
    """The main function of another learner's process."""

    def body() -> None:
        import_modules(imports)
        job: MemberJob = pipe.recv()
        register_shipped(job.registered)
        learner = MemberLearner(job, pipe, leaving)
        try:
            pipe.send(("ready", None))
            with frozen_garbage():
                learner.serve()
        finally:
            learner.loop.close()

    run_child(pipe, body, threads=threads)


class MemberLearner:
    """Runs a GroupLoop on commands from a pipe."""

    def __init__(self, job: MemberJob, pipe: Connection, leaving: SharedTensors) -> None:
        self.cfg = cfg = from_tree(job.config, "the main process")
        self.pipe, self.rank, flag = pipe, job.rank, leaving.array()
        run = RunDir(learner_folder(job.run, job.rank))
        loop, size = build_loop(cfg, job.algorithm, run, before=job.compute, rank=job.rank)
        assert isinstance(loop, GroupLoop)
        self.loop = loop
        self.replay = PartReplay(loop.store, cfg.run.save_replay, size)
        self.episodes: list[EpisodeEnd] = []
        loop.hooks.episode = lambda _, episode: self.episodes.append(episode)
        loop.fleet.warn = lambda text: pipe.send(("warn", text))
        loop.is_leaving = lambda: bool(flag[0])  # type: ignore[method-assign]

    def serve(self) -> None:
        while True:
            if not self.pipe.poll(1.0):
                continue
            command, value = self.pipe.recv()
            if command == "close":
                return
            if command == "abort":
                self.pipe.send(("aborted", None))
                continue
            try:
                answer = ("done", getattr(self, f"_do_{command}")(value))
            except AbortedError:
                continue  # the command that says so follows
            except LostLearnerError:
                answer = ("lost", None)  # the main process sees which one
            except Exception as error:
                answer = ("failed", _reported(error))
            self.pipe.send(answer)

    def _waiting(self) -> None:
        """Called while this learner waits for the others. Only an end comes meanwhile."""
        if self.pipe.poll(0):
            raise AbortedError

    # Commands.
    def _do_meet(self, folder: Path) -> None:
        learner, run = self.loop.learner, self.cfg.run
        group = LearnerGroup(folder, self.rank, run.learners, learner.device)
        group.waiting, learner.ctx.group = self._waiting, group
        if run.compress != "off":
            learner.compression = Compression(run.compress, group, run.topk)

    def _do_iterate(self, _: None) -> Report:
        self.loop.iterate()
        return Report(self._take_episodes(), self.loop.fleet.metrics(), self.loop.fleet.pids())

    def _do_barrier(self, number: int) -> list[EpisodeEnd]:
        self.loop.barrier(number)
        return self._take_episodes()

    def _take_episodes(self) -> list[EpisodeEnd]:
        taken, self.episodes = self.episodes, []
        return taken

    def _do_load(self, state: dict[str, Any]) -> None:
        load_shared(self.loop, state)
        residual, compression = state["residual"], self.loop.learner.compression
        if residual is not None and compression is not None:
            compression.residual = torch.as_tensor(residual).to(self.loop.learner.device)

    def _do_digest(self, _: None) -> int:
        return digest(self.loop.learner.net)

    def _do_metrics(self, _: None) -> Any:
        return self.loop.learner.take_sums(), self.replay.metrics()

    def _do_residual(self, _: None) -> Any:
        compression = self.loop.learner.compression
        residual = compression.residual if compression is not None else None
        return None if residual is None else residual.cpu().numpy()

    def _do_state(self, _: None) -> Any:
        return self.loop.fleet.state()

    def _do_load_state(self, state: Any) -> None:
        self.loop.fleet.load_state(state)

    def _do_pack(self, linkable: frozenset[str]) -> Any:
        return self.replay.pack_arrays(linkable)

    def _do_restore(self, saved: Any) -> int:
        self.replay.restore_arrays(*saved)
        return self.replay.missing


def _reported(error: Exception) -> tuple[LudusError | None, str, str]:
    known = error if isinstance(error, LudusError) else None
    cause = known.what if known is not None else f"{type(error).__name__}: {error}"
    return known, cause, "".join(traceback.format_exception(error))
