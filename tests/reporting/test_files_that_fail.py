"""A file that cannot be read costs a report only itself; links never lead out of its folder."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ludus.reporting import run_parts, write_report
from ludus.stats.runs import read_run
from tests.reporting.conftest import read_all
from tests.stats.made import made_run


@pytest.fixture
def made(tmp_path):
    run = made_run(tmp_path / "runs", scores=[1.0, 2.0], evals=[(400, 4.0)], files={"saber-900": 9})
    run.videos.mkdir()
    (run.videos / "whole.mp4").write_bytes(b"film")
    (run.videos / "other.gif").write_bytes(b"GIF89a")
    return run


def page(made, out, **how) -> str:
    return write_report([made.path], out, differences={}, **how).read_text()


def test_videos_that_are_being_written_are_left_out(made):
    (made.videos / ".part-next.mp4").write_bytes(b"half")
    (made.videos / ".part-all").mkdir()
    (made.videos / ".part-all" / "one.mp4").write_bytes(b"half")
    assert [video.path.name for video in read_all(made.path).videos] == ["other.gif", "whole.mp4"]


def test_files_that_are_none_or_gone(made):
    (made.eval / "gone-1000.json").symlink_to("nowhere.json")
    (made.eval / "folder-1000.json").mkdir()
    for path in (made.evals, made.episodes, made.events, made.metrics):
        path.unlink(missing_ok=True)
        path.mkdir()
    assert [e.step for e in read_all(made.path).after] == [900]
    assert read_run(made).score.mean == 9.0


@pytest.mark.parametrize(
    ("place", "call"), [(Path, "stat"), (run_parts, "read_bytes")], ids=["stat", "read_bytes"]
)
def test_a_video_that_vanishes_costs_only_itself(made, tmp_path, monkeypatch, place, call):
    """Between the look at a folder and the look at the file, it may be gone or replaced."""
    true = getattr(place, call)

    def gone(path, *args, **more):
        if path.name == "whole.mp4":
            seen.append(path)
            raise PermissionError(13, "Permission denied", str(path))
        return true(path, *args, **more)

    seen: list[Path] = []
    monkeypatch.setattr(place, call, gone)
    text = page(made, tmp_path / "a.html", embed_videos=True)
    assert seen and "data:image/gif;base64," in text and "data:video/mp4" not in text


def test_evaluations_that_cannot_be_dated_are_left_out(made, monkeypatch):
    (made.eval / "saber-1000.json").write_text('{"step": 1000, "mean": 5}')
    true = Path.stat

    def gone(path, *args, **more):
        if path.name == "saber-900.json":
            raise PermissionError(13, "Permission denied", str(path))
        return true(path, *args, **more)

    monkeypatch.setattr(Path, "stat", gone)
    assert [e.step for e in read_all(made.path).after] == [1000]
    assert read_run(made).score.mean == 5.0


def test_videos_below_the_report_are_linked_and_others_named(made, tmp_path):
    below = page(made, tmp_path / "a.html")
    assert 'src="runs/a/videos/whole.mp4"' in below and 'src="runs/a/videos/other.gif"' in below
    outside = page(made, tmp_path / "pages" / "b.html")
    links = re.findall(r'(?:src|href)="([^"]*)"', outside)
    assert not any("videos" in link or ".." in link for link in links)
    assert "whole.mp4" in outside and "in videos/ of the run a" in outside
    assert str(tmp_path) not in outside and tmp_path.name not in outside
    embedded = page(made, tmp_path / "pages" / "c.html", embed_videos=True)
    assert "data:video/mp4;base64," in embedded and "in videos/ of" not in embedded


def test_a_link_out_of_the_folder_is_not_followed(made, tmp_path):
    """A run below the report whose videos are somewhere else."""
    away = tmp_path / "disk"
    made.videos.rename(away)
    made.videos.symlink_to(away)
    text = page(made, made.path / "report.html")
    assert "disk" not in text and "whole.mp4" not in text
