"""What other processes and later readers learn about a run."""

import json
import os
import subprocess

import pytest

from ludus.secret_masking import masked_command
from ludus.track.atomic_files import read_json, write_atomic
from ludus.track.run_dir import status as status_module
from ludus.track.run_dir.lock import RunLock
from ludus.track.run_dir.manifest import (
    add_session,
    config_hash,
    git_state,
    write_manifest,
)
from ludus.track.run_dir.rundir import RunDir
from ludus.track.run_dir.status import StatusWriter, read_status


@pytest.fixture
def run(tmp_path):
    return RunDir.create(tmp_path, "E", "dqn", 1, name="run")


def test_status_is_replaced_every_five_seconds_and_at_each_change(run, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(status_module.time, "monotonic", lambda: now[0])
    writer = StatusWriter(run, facts={"algo": "dqn"})
    writer.beat("running", 1, 0)
    writer.beat("running", 2, 0, score=1.0)
    assert read_json(run.status)["step"] == 1
    now[0] += 5.1
    writer.beat("running", 3, 1, score=float("nan"), steps_per_second=10.0)
    result = json.loads(run.status.read_text(), parse_constant=lambda name: pytest.fail(name))
    assert (result["step"], result["updates"], result["score"]) == (3, 1, None)
    assert (result["pid"], result["algo"]) == (os.getpid(), "dqn")
    assert result["resume"] == f"ludus resume {run.path}"
    writer.beat("finished", 4, 1)
    assert read_json(run.status)["state"] == "finished"


def test_a_run_whose_process_is_gone_is_dead(run):
    with RunLock(run.path):
        StatusWriter(run).beat("running", 1, 0)
        assert read_status(run)["state"] == "running"
    assert read_status(run)["state"] == "dead"
    StatusWriter(run).beat("finished", 1, 0)
    assert read_status(run)["state"] == "finished"


def test_a_run_without_status_is_empty(run):
    assert read_status(run)["state"] == "empty"
    run.status.write_text("{torn")
    assert read_status(run)["state"] == "unreadable" and "JSON" in read_status(run)["problem"]


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "x.json"
    write_atomic(path, b"old")

    def refuse(*args):
        raise OSError(28, "full")

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(OSError, match="full"):
        write_atomic(path, b"new")
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["x.json"]


@pytest.mark.accept(129)
def test_the_manifest_says_how_the_run_was_made(run):
    config = {"algo": {"lr": 1e-3}, "env": {"id": "E"}}
    command = ["ludus", "train", "dqn", "E", "hub.token=abc", "--api-key", "xyz", "seed=3"]
    write_manifest(run, config=config, seed=3, command=command, lineage={"run": "other"})
    result = read_json(run.manifest)
    assert result["seed"] == 3
    assert result["config_sha256"] == config_hash({"env": {"id": "E"}, "algo": {"lr": 1e-3}})
    assert result["config_sha256"] != config_hash({"env": {"id": "F"}, "algo": {"lr": 1e-3}})
    assert result["lineage"] == {"run": "other"}
    assert {"torch", "numpy", "gymnasium"} <= set(result["versions"])
    assert result["machine"]["cores"] == os.cpu_count()
    assert result["command"] == [
        "ludus", "train", "dqn", "E", "hub.token=***", "--api-key", "***", "seed=3",
    ]  # fmt: skip
    add_session(run, step=500, command=["ludus", "resume", "run"])
    sessions = read_json(run.manifest)["sessions"]
    assert [s["step"] for s in sessions] == [0, 500]
    assert sessions[1]["changed"] == {}
    assert read_json(run.manifest)["command"][1] == "train"


def grown(size: int) -> bytes:
    """Valid JSON of about so many bytes, of which each costs many in memory."""
    return b'{"state": "finished", "id": "x", "more": [' + b"[]," * (size // 3) + b"0]}"


@pytest.mark.parametrize("name", ["status.json", "trackers.json"])
def test_small_files_are_read_up_to_a_megabyte(run, name):
    path = run.path / name
    path.write_bytes(grown(900_000))
    assert read_json(path)["id"] == "x"
    path.write_bytes(grown(1_100_000))
    assert read_json(path) == {}


def test_a_status_that_is_too_large_is_named_as_such(run):
    run.status.write_bytes(grown(1_100_000))
    result = read_status(run)
    assert result["state"] == "unreadable" and "larger than 1,048,576 bytes" in result["problem"]


def test_other_json_is_read_up_to_a_few_megabytes(run):
    run.manifest.write_bytes(grown(4_000_000))
    assert read_json(run.manifest)["id"] == "x"
    run.manifest.write_bytes(grown(9_000_000))
    assert read_json(run.manifest) == {}


def test_ordinary_words_are_not_taken_for_secrets():
    command = ["train", "algo.lr=1e-3", "--run", "tokenless", "env.id=Secretary-v0"]
    assert masked_command(command) == command


def test_git_state_of_a_repository_and_of_none(tmp_path):
    assert git_state(tmp_path) is None
    who = ["-c", "user.name=a", "-c", "user.email=a@b"]
    (tmp_path / "f").write_text("1")
    for words in (["init", "-q"], ["add", "f"], [*who, "commit", "-qm", "x"]):
        subprocess.run(["git", "-C", str(tmp_path), *words], check=True)
    clean = git_state(tmp_path)
    assert len(clean["commit"]) == 40
    assert not clean["dirty"]
    (tmp_path / "f").write_text("2")
    assert git_state(tmp_path) == {**clean, "dirty": True}
