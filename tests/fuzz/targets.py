"""Which files of a run are read, and by whom. A file that is missing here fails a test."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from hypothesis.strategies import SearchStrategy

from ludus import registry
from ludus.bench.matrix import Cell, load_matrix
from ludus.bench.runner import _reason
from ludus.cli.bench_matrix import _left_out, _print_results
from ludus.cli.compare import _readable
from ludus.cli.runs import _print_runs, describe, logs
from ludus.envs.render.screenshots import Camera
from ludus.errors import LudusError
from ludus.evals.agent import load_agent
from ludus.evals.result import Output, output_path
from ludus.process.supervisor import hang_cause
from ludus.reporting.page_data import page_data
from ludus.reporting.settings import stored_differences
from ludus.run.build import build_loop
from ludus.run.recording.recorder import Recorder
from ludus.run.session import matched, restore
from ludus.settings.resolve import load_config
from ludus.stats.compare import compare
from ludus.stats.runs import read_run
from ludus.track.atomic_files import read_tail
from ludus.track.checkpoint import format as layout
from ludus.track.checkpoint.reader import load, load_file, load_newest_good
from ludus.track.checkpoint.writer import CheckpointWriter
from ludus.track.metrics.tensorboard import Pictures
from ludus.track.metrics.trackers import _identity
from ludus.track.metrics.writer import MetricWriter
from ludus.track.run_dir.archive import _reached
from ludus.track.run_dir.lock import RunLock, holder
from ludus.track.run_dir.manifest import add_session, check_origin
from ludus.track.run_dir.rundir import list_runs
from ludus.types import EpisodeEnd
from tests.fuzz import mutations
from tests.fuzz.specimen import Specimen, seal

Reader = Callable[[Specimen], object]


@dataclass(frozen=True)
class Target:
    name: str
    file: str  # as `kind_of` has it
    pattern: str  # where it is below the bench
    strategy: SearchStrategy[Any]
    readers: tuple[Reader, ...]
    sealed: bool = False  # the manifest of its checkpoint fits the damaged file


def lists(s: Specimen) -> None:
    _print_runs([describe(run) for run in list_runs(s.bench)])


def compares(s: Specimen) -> None:
    compare(_readable([s.run]))


def reports(s: Specimen) -> None:
    run = read_run(s.run, history=True)
    page_data([run], s.bench / "page.html", changed={str(run.path): []})


def differs(s: Specimen) -> None:
    run = read_run(s.run, history=True)
    stored_differences(run.path, run.config, run.preset, {})


def configures(s: Specimen) -> None:
    load_config(s.run.config)


def typed(s: Specimen) -> None:
    stored_differences(s.run.path, {"algo": {"name": "unknown"}}, None, {})


def writes_on(s: Specimen) -> None:
    writer = MetricWriter(s.run)
    writer.truncate({"metrics": 100, "episodes": 100, "evals": 100, "events": 100}, 120)
    writer.close()


def sets_aside(s: Specimen) -> None:
    _reached(s.run)


def adds_session(s: Specimen) -> None:
    no_git = mock.patch("ludus.track.run_dir.manifest._git", return_value=None)
    with no_git, contextlib.suppress(OSError):  # becomes E301 in Recorder.open
        add_session(s.run, step=1, command=["ludus"])


def origins(s: Specimen) -> None:
    found = load(s.run.path, replay=False)
    check_origin(s.run, found.path, found.state)


def logged(s: Specimen) -> None:
    logs(str(s.run.path), lines=5)


def locks(s: Specimen) -> None:
    holder(s.run.path)
    with RunLock(s.run.path):
        pass


def benches(s: Specimen) -> None:
    matrix = load_matrix(s.bench)
    for cell in matrix.cells if matrix else ():
        matrix.refresh(cell)
    if matrix is not None:
        _print_results(matrix)
        _left_out(matrix)


def looks(s: Specimen) -> None:
    from ludus.bench.matrix import Matrix

    Matrix(s.bench).refresh(Cell("a", "b", 1, "x"))


def failed(s: Specimen) -> None:
    _reason(s.bench / "output" / "x.txt", 1)


def identifies(s: Specimen) -> None:
    with contextlib.suppress(OSError):  # becomes E301 in Recorder.open
        _identity(s.run)


def hangs(s: Specimen) -> None:
    hang_cause(3.0, s.run.crash / "actor-0-0.stack", read_tail)


def places(s: Specimen) -> None:
    for folder, ending in ((s.run.videos, "240-1.mp4"), (s.run.eval, "240.json")):
        output_path(
            Output("greedy", s.run.checkpoints, "abc", {"seed": 1}, "seed1"), folder, ending
        )


def embeds(s: Specimen) -> None:
    run = read_run(s.run, history=True)
    page_data([run], s.bench / "page.html", embed_videos=True, changed={str(run.path): []})


def pictures(s: Specimen) -> None:
    board = Pictures(s.run.screenshots)
    board._seen.clear()
    board.new()
    seen = {"x": np.zeros((1, 4, 4), np.uint8)}
    Camera(s.run.screenshots, 1).look(None, 0, seen, [EpisodeEnd(0, 1.0, 1, "terminated", {})])


def finds(s: Specimen) -> None:
    layout.newest_resumable(s.run.checkpoints)
    for which in ("last", "best"):
        with contextlib.suppress(LudusError):
            layout.find_checkpoint(s.run.path, which)


def opens(s: Specimen) -> None:
    CheckpointWriter(s.run.checkpoints)


def plays(s: Specimen) -> None:
    load_agent(s.run.path)


def plays_lone(s: Specimen) -> None:
    lone, away = s.find("x/checkpoints/0*") / "model.safetensors", s.bench / "lone.safetensors"
    mutations.clear(away)
    if lone.is_file() and not lone.is_symlink():  # of others the command line makes no agent
        lone.rename(away)
        load_file(away)
        load_agent(away)


@cache
def _recorder(bench: Path) -> Recorder:
    """Built once; each case puts another state into it."""
    s = Specimen(bench)
    cfg = load_config(bench.parent / "whole.yaml")
    loop, size = build_loop(cfg, registry.make(cfg.algo), s.run)
    return Recorder(cfg, s.run, loop, (), quiet=True, command=[], exact=True, replay_bytes=size)


def resumes(s: Specimen) -> None:
    recorder = _recorder(s.bench)
    recorder.loop.store.ring.head[:] = 0  # as a run that begins has it
    loaded = load_newest_good(s.run.path, refill=True)
    matched(recorder.cfg, s.run, loaded)
    restore(recorder, loaded)


def loads(s: Specimen) -> None:
    load(s.run.path)


def quiet(reader: Reader, s: Specimen) -> None:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        reader(s)


def _target(name: str, file: str, strategy: Any, *readers: Reader, **more: Any) -> Target:
    pattern = file.replace("STEP", "0*").replace("ARRAY", "*").replace("NAME", "*")
    return Target(name, file, pattern, strategy, readers, **more)


_IN = "x/checkpoints/STEP"
TARGETS = (
    _target("status.json", "x/status.json", mutations.OF_SMALL_JSON, lists, compares, reports,
            locks, sets_aside),
    _target("manifest.json", "x/manifest.json", mutations.OF_SMALL_JSON, lists, compares, reports,
            adds_session, origins),
    _target("config.yaml", "x/config.yaml", mutations.OF_TEXT, lists, compares, configures,
            differs),
    _target("config.user.yaml", "x/config.user.yaml", mutations.OF_TEXT, typed),
    _target("metrics.jsonl", "x/metrics.jsonl", mutations.OF_JSON, reports, looks, writes_on,
            sets_aside),
    _target("episodes.csv", "x/episodes.csv", mutations.OF_TEXT, compares, reports, writes_on,
            sets_aside),
    _target("evals.csv", "x/evals.csv", mutations.OF_TEXT, compares, reports, writes_on),
    _target("events.jsonl", "x/events.jsonl", mutations.OF_JSON, reports, writes_on),
    _target("log.txt", "x/log.txt", mutations.OF_TEXT, logged, writes_on),
    _target("LOCK", "x/LOCK", mutations.OF_SMALL_JSON, locks, lists),
    _target("eval json", "x/eval/NAME.json", mutations.OF_SMALL_JSON, compares, reports, places),
    _target("video json", "x/videos/greedy-240-1.json", mutations.OF_SMALL_JSON, places),
    _target("video", "x/videos/greedy-240-1.mp4", mutations.ANY, places, embeds),
    _target("screenshot", "x/screenshots/000001-score1.png", mutations.ANY, pictures),
    _target("stack", "x/crash/actor-0-0.stack", mutations.OF_TEXT, hangs),
    _target("trackers.json", "x/trackers.json", mutations.OF_SMALL_JSON, identifies),
    _target("bench.json", "bench.json", mutations.OF_SMALL_JSON, benches),
    _target("bench output", "output/x.txt", mutations.OF_TEXT, failed),
    _target("last", "x/checkpoints/last", mutations.OF_TEXT, finds, lists, plays),
    _target("best", "x/checkpoints/best", mutations.OF_TEXT, finds, compares),
    _target("checkpoint manifest", f"{_IN}/manifest.json", mutations.OF_SMALL_JSON, finds, opens,
            loads, resumes),
    _target("state.json", f"{_IN}/state.json", mutations.OF_JSON, plays, resumes),
    _target("state.json, sealed", f"{_IN}/state.json", mutations.OF_JSON, plays, resumes,
            sealed=True),
    _target("model", f"{_IN}/model.safetensors", mutations.OF_TENSORS, resumes),
    _target("model, sealed", f"{_IN}/model.safetensors", mutations.OF_TENSORS, plays, resumes,
            sealed=True),
    _target("model, alone", f"{_IN}/model.safetensors", mutations.OF_TENSORS, plays_lone),
    _target("optimizer, sealed", f"{_IN}/optim.safetensors", mutations.OF_TENSORS, resumes,
            sealed=True),
    _target("environments, sealed", f"{_IN}/envs.safetensors", mutations.OF_TENSORS, resumes,
            sealed=True),
    _target("replay", f"{_IN}/replay/ARRAY", mutations.ANY, resumes),
    _target("replay, sealed", f"{_IN}/replay/ARRAY", mutations.ANY, resumes, sealed=True),
)  # fmt: skip
# Written for people and other programs.
NEVER_READ = {"x/report.html", "x/tb/EVENTS", "x/eval/NAME.csv"}


def damage(target: Target, s: Specimen, mutation: mutations.Mutation, before: bytes) -> None:
    path = s.find(target.pattern)
    mutation(path, before)
    if target.sealed and path.is_file() and not path.is_symlink():
        folder = next(p for p in path.parents if p.parent.name == "checkpoints")
        if path.stat().st_size < 1 << 20:
            seal(folder, str(path.relative_to(folder)))
