"""What killed processes left behind goes at the next start; what belongs to the living stays."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from ludus.process.fork_server import MARK, sweep_temporary
from ludus.track.checkpoint.format import TEMPORARY
from ludus.track.run_dir.archive import sweep
from ludus.track.run_dir.lock import RunLock
from ludus.track.run_dir.rundir import RunDir
from tests.cli.conftest import train
from tests.started import kept

ROOT = Path(__file__).parents[2]
SERVER = """
import sys, time
from ludus.process.fork_server import start_server
start_server()
print("up", flush=True)
time.sleep(600)
"""


PARENT = """
import multiprocessing, time
from ludus.process.fork_server import start_server
start_server()
child = multiprocessing.get_context("forkserver").Process(target=start_server)
child.start()
child.join()
print("up", flush=True)
time.sleep(600)
"""


@pytest.fixture
def temporary(monkeypatch) -> Iterator[Path]:
    """Where temporary folders are made. Its name is short: sockets have at most 107 characters."""
    with tempfile.TemporaryDirectory(prefix="l-") as place:
        monkeypatch.setenv("TMPDIR", place)
        monkeypatch.setattr(tempfile, "tempdir", None)
        yield Path(place)


def server(temporary: Path, code: str = SERVER) -> subprocess.Popen:
    process = kept(
        subprocess.Popen(
            [sys.executable, "-c", code],
            cwd=ROOT,
            env={**os.environ, "TMPDIR": str(temporary)},
            stdout=subprocess.PIPE,
            text=True,
        )
    )
    assert process.stdout is not None and process.stdout.readline() == "up\n"
    return process


def gone() -> int:
    """The number of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_a_child_that_ends_does_not_give_up_the_folder_of_its_parent(temporary) -> None:
    """Children of multiprocessing use the folder of their parent."""
    alive = server(temporary, PARENT)
    assert sweep_temporary() == [] and len(list(temporary.glob("pymp-*"))) == 1
    alive.kill()
    alive.wait()
    assert len(sweep_temporary()) == 1


def test_folders_of_killed_processes_go_and_those_of_the_living_stay(temporary) -> None:
    stranger = temporary / "pymp-stranger"
    stranger.mkdir()  # some other program's: nothing says who made it
    elsewhere = temporary / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / MARK).touch()
    (temporary / "pymp-link").symlink_to(elsewhere)
    killed, alive = server(temporary), server(temporary)
    assert len(list(temporary.glob("pymp-*"))) == 4
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    assert len(sweep_temporary()) == 1 and sweep_temporary() == []
    assert len(list(temporary.glob("pymp-*"))) == 3 and (elsewhere / MARK).exists()
    assert stranger.is_dir() and alive.poll() is None
    alive.kill()
    alive.wait()
    assert len(sweep_temporary()) == 1


def test_files_of_dead_processes_go_with_the_next_start(tmp_path, temporary) -> None:
    run = RunDir.create(tmp_path, "E", "dqn", 1, name="x")
    dead = gone()
    doomed = [run.path / f".status.json.{dead}.tmp", run.path / "eval" / f".a.json.{dead}.tmp"]
    stays = [
        run.path / f".report.html.{os.getppid()}.tmp",  # somebody is writing a report just now
        run.path / "notes.tmp",
        run.path / f"status.json.{dead}.tmp",
    ]
    for path in (*doomed, *stays):
        path.parent.mkdir(exist_ok=True)
        path.touch()
    with RunLock(run.path):
        removed = sweep(run)
    assert sorted(removed) == sorted(doomed)
    assert not any(p.exists() for p in doomed) and all(p.exists() for p in stays)


def test_a_fresh_start_tidies_what_it_keeps(tmp_path, temporary) -> None:
    dead, runs = gone(), tmp_path / "runs"
    path = Path(train(runs, "--run", "x").json["path"])
    half = path / "checkpoints" / f"{TEMPORARY}000000000300-aaaa"
    shutil.copytree(path / "checkpoints" / "000000000240", half)
    (path / f".status.json.{dead}.tmp").touch()
    assert train(runs, "--run", "x", "--fresh").code == 0
    old = runs / "x.1"
    assert not (old / "checkpoints" / half.name).exists()
    assert not (old / f".status.json.{dead}.tmp").exists()
    assert (old / "checkpoints" / "000000000240").is_dir()


def test_an_earlier_run_that_is_in_use_is_left_alone(tmp_path, temporary) -> None:
    run = RunDir.create(tmp_path, "E", "dqn", 1, name="x")
    other = RunDir.create(tmp_path, "E", "dqn", 1, name="x.1")
    left = other.path / f".status.json.{gone()}.tmp"
    left.touch()
    with RunLock(run.path), RunLock(other.path):
        assert sweep(run) == []
    assert left.exists()
