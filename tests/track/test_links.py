"""A run never writes or reads through a link that somebody put into it."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from torch import nn

from ludus.envs.render.screenshots import Camera
from ludus.errors import LudusError
from ludus.learn.learner import Learner
from ludus.track.atomic_files import (
    make_folder,
    open_append,
    open_read,
    open_write,
    read_json,
    read_text,
)
from ludus.track.metrics.writer import MetricWriter
from ludus.track.run_dir.archive import sweep
from ludus.track.run_dir.lock import RunLock, holder
from ludus.track.run_dir.rundir import RunDir
from ludus.types import EpisodeEnd
from tests.cli.conftest import call, train

SECRET = "outside of the run\n"


@pytest.fixture(scope="module")
def stopped(tmp_path_factory) -> Path:
    """A run with steps left to do; tests copy it."""
    words = ("--run", "x", "tensorboard=on", "eval.episodes=1")
    answer = train(tmp_path_factory.mktemp("runs"), *words)
    assert answer.code == 0, answer.err
    return Path(answer.json["path"])


@pytest.fixture
def run(stopped, tmp_path) -> Path:
    shutil.copytree(stopped, tmp_path / "runs" / "x", symlinks=True)
    return tmp_path / "runs" / "x"


@pytest.fixture
def outside(tmp_path) -> Path:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "file").write_text(SECRET)
    return tmp_path / "outside"


def replace(path: Path, target: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    path.symlink_to(target)


def untouched(outside: Path) -> bool:
    return [p.name for p in outside.iterdir()] == ["file"] and (
        (outside / "file").read_text() == SECRET
    )


FILES = ["LOCK", "log.txt", "status.json", "metrics.jsonl", "episodes.csv", "evals.csv",
         "events.jsonl", "manifest.json", "config.yaml", "report.html"]  # fmt: skip


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("made", [True, False], ids=["file", "dangling"])
def test_resume_writes_nothing_through_a_linked_file(run, outside, name, made):
    target = outside / ("file" if made else "new")
    replace(run / name, target)
    call("resume", run, "steps=+120", "tensorboard=off")
    assert untouched(outside), f"{name} was written through"


@pytest.mark.parametrize("name", ["tb", "eval", "videos", "crash", "screenshots", "checkpoints"])
def test_nothing_is_written_into_a_linked_folder(run, outside, name):
    replace(run / name, outside)
    call("resume", run, "steps=+120", "tensorboard=on")
    call("eval", run, "--episodes", "1", "--no-video")
    assert untouched(outside), f"{name} was written through"


def test_no_video_is_written_into_a_linked_folder(tmp_path, outside):
    pytest.importorskip("imageio_ffmpeg")
    words = ("--run", "y", "env.max_episode_steps=20")
    answer = train(tmp_path / "runs", *words, env="CartPole-v1")
    assert answer.code == 0, answer.err
    run = Path(answer.json["path"])
    replace(run / "videos", outside)
    answer = call("record", run, "--episodes", "1")
    assert untouched(outside), "videos/ was written through"
    assert answer.code == 1 and "symbolic link" in answer.err


@pytest.mark.parametrize("name", ["LOCK", "log.txt", "episodes.csv"])
def test_the_refusal_names_the_file_and_the_reason(run, outside, name):
    replace(run / name, outside / "file")
    answer = call("resume", run, "steps=+120", "tensorboard=off")
    assert answer.code == 1 and "E301" in answer.err, answer.err
    assert name in answer.err and "symbolic link" in answer.err


def test_a_runs_directory_behind_a_link_is_fine(run, tmp_path):
    (tmp_path / "short").symlink_to(run.parent)
    answer = call("resume", tmp_path / "short" / "x", "steps=+120", "tensorboard=off")
    assert answer.code == 0, answer.err
    assert call("ls", "--runs-dir", tmp_path / "short", "--json").json[0]["step"] == 360


def test_reading_does_not_follow_a_link_either(run, outside):
    (outside / "file").write_text(json.dumps({"state": "finished", "score": 4711}))
    replace(run / "status.json", outside / "file")
    row = call("ls", "--runs-dir", run.parent, "--json").json[0]
    assert row["score"] is None and "symbolic link" in row["problem"]


def test_opening_refuses_links_pipes_and_directories(tmp_path):
    (tmp_path / "file").write_text("x")
    (tmp_path / "link").symlink_to("file")
    (tmp_path / "dangling").symlink_to("nowhere")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "fifo")
    for name in ("link", "dangling", "folder", "fifo"):
        for opened in (open_read, open_append, open_write):
            with pytest.raises(OSError, match=r"symbolic link|regular file|directory"):
                opened(tmp_path / name)
        assert read_json(tmp_path / name) == {}
    assert (tmp_path / "file").read_text() == "x" and not (tmp_path / "nowhere").exists()
    with pytest.raises(OSError, match="symbolic link"):
        make_folder(tmp_path / "link")


def test_more_than_the_limit_is_not_read(tmp_path):
    with (tmp_path / "big").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(OSError, match="larger than"):
        read_text(tmp_path / "big", limit=1000)
    assert read_json(tmp_path / "big") == {}


def test_a_linked_lock_is_refused_and_its_target_kept(tmp_path, outside):
    place = RunDir.create(tmp_path, "a", "b", 1, name="r")
    place.lock.symlink_to(outside / "file")
    with pytest.raises(LudusError, match="E301"):
        RunLock(place.path).acquire()
    assert untouched(outside) and holder(place.path) is None


def test_a_stream_behind_a_link_is_refused(tmp_path, outside):
    place = RunDir.create(tmp_path, "a", "b", 1, name="r")
    place.metrics.symlink_to(outside / "file")
    with pytest.raises(LudusError, match="symbolic link"):
        MetricWriter(place)
    assert untouched(outside)


def test_a_folder_for_csv_files_is_not_taken_from_a_file(run, outside):
    config = run / "config.yaml"
    text = config.read_text()
    assert "csv: ''" in text
    config.write_text(text.replace("csv: ''", f"csv: {outside}/tables"))
    answer = call("resume", run, "steps=+120", "tensorboard=off", "log.terminal=plain")
    assert answer.code == 0, answer.err
    assert untouched(outside) and "log.csv" in answer.out + answer.err
    typed = call("resume", run, "steps=+120", "tensorboard=off", f"log.csv={outside}/tables")
    assert typed.code == 0, typed.err
    assert (outside / "tables" / "x-episodes.csv").samefile(run / "episodes.csv")


def test_pictures_are_not_written_through_links(tmp_path, outside):
    folder, seen = tmp_path / "screenshots", {"x": np.zeros((1, 4, 4), np.uint8)}
    ended = [EpisodeEnd(0, 1.0, 1, "terminated", {})]
    folder.symlink_to(outside)
    Camera(folder, 1).look(None, 0, seen, ended)
    folder.unlink()
    folder.mkdir()
    camera = Camera(folder, 1)
    camera._earlier = lambda: 0
    (folder / "000001-score1.png").symlink_to(outside / "file")
    camera.look(None, 0, seen, ended)
    assert untouched(outside)


def test_a_batch_that_was_refused_is_not_written_through_a_link(tmp_path, outside):
    learner = SimpleNamespace(
        crash_dir=tmp_path / "crash", updates=0, skipped_in_a_row=1, net=nn.Linear(1, 1)
    )
    (tmp_path / "crash").mkdir()
    (tmp_path / "crash" / "nonfinite-000000001-01.safetensors").symlink_to(outside / "file")
    written = Learner.dump(learner, None)
    assert untouched(outside) and written is not None and not written.is_symlink()
    shutil.rmtree(tmp_path / "crash")
    (tmp_path / "crash").symlink_to(outside)
    assert Learner.dump(learner, None) is None and untouched(outside)


def test_leftovers_are_swept_neither_through_links_nor_by_strange_names(tmp_path, outside):
    place = RunDir.create(tmp_path, "a", "b", 1, name="r")
    earlier = RunDir.create(tmp_path, "a", "b", 1, name="r.1")
    (outside / "file").rename(outside / ".tmp-file")
    replace(earlier.checkpoints, outside)
    (place.path / f".x.{'9' * 200}.tmp").write_text("")
    sweep(place)
    assert (outside / ".tmp-file").is_file()


def test_a_second_name_of_another_file_is_not_locked(run, outside):
    (run / "LOCK").unlink(missing_ok=True)
    os.link(outside / "file", run / "LOCK")
    with pytest.raises(LudusError, match="E301"), RunLock(run):
        raise AssertionError("locked")
    assert untouched(outside)


@pytest.mark.parametrize("which", ["checkpoints", "checkpoints/step"])
def test_linked_checkpoints_are_named_as_the_cause(run, outside, which):
    place = run / "checkpoints"
    steps = [p for p in place.iterdir() if p.name.isdigit()]
    for path in [place] if which == "checkpoints" else steps:
        replace(path, outside)
    answer = call("resume", run, "steps=+20")
    assert answer.code != 0 and "link" in answer.err and "ended before" not in answer.err
    assert untouched(outside)
