"""What a run writes besides its record, and where: a tag, TensorBoard, CSV files, intervals."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from ludus.track.metrics.writer import read_metrics
from tests.cli.conftest import call, train


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.accept(124)
def test_tag_tensorboard_csv_folder_and_intervals(runs, tmp_path):
    plain = Path(train(runs, "log.every=40").json["path"])
    assert not (plain / "tb").exists(), "switched off"
    assert not (plain / "episodes.csv").is_symlink()
    assert "tag" not in json.loads((plain / "status.json").read_text())

    words = ("log.tag=night shift", "log.tensorboard=on", "log.every=120", "eval.episodes=2")
    result = train(runs, *words, f"log.csv={tmp_path}/tables", "--run", "x").json
    path = Path(result["path"])
    assert [f.parent.name for f in path.rglob("events.out.*")] == ["night-shift"]
    assert json.loads((path / "status.json").read_text())["tag"] == "night shift"
    listed = {r["name"]: r["tag"] for r in call("ls", "--runs-dir", runs, "--json").json}
    assert listed == {plain.name: None, "x": "night shift"}
    shown = call("ls", "--runs-dir", runs).out
    assert "night shift" in shown and "training score" in shown
    assert "training score" in call("status", "x", "--runs-dir", runs).out
    for name in ("episodes", "evals"):
        apart = tmp_path / "tables" / f"x-{name}.csv"
        assert apart.samefile(path / f"{name}.csv") and not (path / f"{name}.csv").is_symlink()
    assert len(rows(tmp_path / "tables" / "x-episodes.csv")) == len(rows(plain / "episodes.csv"))
    few, many = (len(read_metrics(p / "metrics.jsonl")) for p in (path, plain))
    assert few < many


@pytest.mark.accept(124)
def test_plain_lines_come_as_often_as_asked(runs):
    def lines(seconds: str) -> int:
        words = ("log.terminal=plain", f"log.seconds={seconds}", "steps=400")
        small = ("warmup=40", "batch=8", "tensorboard=off", "--runs-dir", runs)
        answer = call("train", "dqn", "ludus/Identity-v0", *words, *small)
        assert answer.code == 0, answer.err
        return answer.out.count("actor   ")

    assert lines("0.001") > lines("1h") == 1, "the last is always shown"


def test_csv_files_of_a_resumed_run_go_on_and_are_never_mixed(runs, tmp_path):
    first = Path(train(runs, "--run", "x").json["path"])
    before = rows(first / "episodes.csv")
    train(runs, "--run", "x", "steps=480", f"log.csv={tmp_path}/a")
    moved = rows(tmp_path / "a" / "x-episodes.csv")
    assert moved[: len(before)] == before and len(moved) > len(before)
    train(runs, "--run", "x", "steps=720")
    longer = rows(tmp_path / "a" / "x-episodes.csv")
    assert longer[: len(moved)] == moved and len(longer) > len(moved)
    train(runs, "--run", "x", "--fresh", f"log.csv={tmp_path}/a")
    assert rows(tmp_path / "a" / "x-episodes.csv") == longer, "the earlier run's"
    assert rows(tmp_path / "a" / "x-episodes-1.csv") == rows(first / "episodes.csv")
    assert rows(runs / "x.1" / "episodes.csv") == longer


def test_a_folder_that_cannot_be_is_refused(runs, tmp_path):
    (tmp_path / "file").write_text("")
    answer = call("train", "dqn", "ludus/Identity-v0", "steps=40", "tensorboard=off",
                  f"log.csv={tmp_path}/file", "--runs-dir", runs)  # fmt: skip
    assert answer.code == 1 and "E301" in answer.err and "log.csv" in answer.err


def test_a_tracker_that_is_not_there_is_refused_before_a_run_is_made(runs, monkeypatch):
    import importlib.util

    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *a: None if name == "wandb" else find(name, *a)
    )
    words = ("train", "dqn", "ludus/Identity-v0", "--runs-dir", runs)
    answer = call(*words, "log.wandb.mode=offline")
    assert answer.code == 1 and "E501" in answer.err and "'.[wandb]'" in answer.err
    assert not runs.exists()
    wrong = call(*words, "log.wandb.mode=sometimes")
    assert wrong.code == 2 and "E103" in wrong.err and "log.wandb.mode" in wrong.err
    shown = call(*words, "log.wandb=on", "log.wandb=off", "--dry-run", "--json")
    assert shown.json["config"]["log"]["wandb"] is None
