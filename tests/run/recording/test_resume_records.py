"""The records of a resumed run equal those of a run that was never interrupted."""

from __future__ import annotations

from pathlib import Path

import pytest

from ludus import registry
from ludus.errors import LudusError
from ludus.run.session import train_run
from ludus.track.callbacks import Callback
from ludus.track.metrics.writer import MetricWriter, read_metrics
from ludus.track.run_dir.rundir import RunDir
from tests.contract.same import same_runs
from tests.contract.tiny import run, tiny

SHORT = ("steps=600", "checkpoint_every=200", "best_window=5", "log.every=50")


class FailsAt(Callback):
    """Ends the run between two checkpoints, without one of its own."""

    def __init__(self, step: int) -> None:
        self.at = step

    def on_update(self, run, metrics):
        if run.step >= self.at:
            raise RuntimeError("cut")


def cut(cfg, folder: Path, step: int = 450) -> Path:
    """A run that failed at `step`; its newest checkpoint is the one before."""
    before = set(folder.iterdir()) if folder.exists() else set()
    with pytest.raises(LudusError, match="cut"):
        run(cfg, folder, callbacks=[FailsAt(step)])
    (path,) = set(folder.iterdir()) - before
    return path


def resume(cfg, path: Path, **options):
    return train_run(cfg, registry.make(cfg.algo), path=path, resume=True, quiet=True, **options)


@pytest.mark.parametrize("fleet", [(), ("fleet=processes", "exact=on")])
def test_scores_of_actors_survive_a_resume(fleet, tmp_path) -> None:
    cfg = tiny("dqn", "CartPole-v1", *SHORT, "actors=2", *fleet)
    whole = run(cfg, tmp_path).path
    path = cut(cfg, tmp_path)
    resume(cfg, path)
    assert "actors/score_1" in read_metrics(path / "metrics.jsonl")[-1]
    same_runs(whole, path)


def events(path: Path) -> list[tuple[str, int]]:
    return [(e["kind"], e["step"]) for e in read_metrics(path / "events.jsonl")]


def test_events_are_cut_back_and_sessions_are_kept(tmp_path) -> None:
    cfg = tiny("dqn", "CartPole-v1", *SHORT, "eval.every=150", "eval.episodes=1")
    whole = run(cfg, tmp_path).path
    path = cut(cfg, tmp_path, 500)
    assert events(path)[-2] == ("evaluation", 452), "written after the last checkpoint"
    resume(cfg, path)
    session = ("start", "resume", "end", "failed")
    each = (*session, "warning")  # every session warns of its settings

    def made(path):
        return [e for e in events(path) if e[0] not in each]

    assert made(path) == made(whole) and len(made(path)) > 5
    assert [e[0] for e in events(path) if e[0] in session] == ["start", "failed", "resume", "end"]


def test_a_checkpoint_without_an_offset_of_events_cuts_none(tmp_path) -> None:
    """Checkpoints of older versions know how long the other files were."""
    place = RunDir.create(tmp_path, "E", "dqn", 1, name="run")
    writer = MetricWriter(place)
    writer.event("start", 0)
    writer.event("checkpoint", 5)
    writer.flush()
    writer.truncate({"metrics": 0, "episodes": 0, "evals": 0}, step=5)
    writer.close()
    assert events(place.path) == [("start", 0), ("checkpoint", 5)]
