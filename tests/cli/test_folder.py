"""The current folder is on Python's path only for modules that a user names, and last."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.cli.conftest import call
from tests.started import kept

# What ludus, its children and the libraries under them import, of Python and of others.
NAMES = ["psutil", "yaml", "rich", "signal", "typing", "random", "socket", "pydantic", "numpy"]
CANARY = "import os, sys\nopen(os.path.join(os.path.dirname(__file__), 'canary'), 'w').close()\n"
ENV = """
from ludus.envs.test_envs import PROBES
class Env(PROBES["ludus/Identity-v0"]):
    pass
"""
SMALL = ["steps=40", "warmup=20", "batch=4", "tensorboard=off", "-q"]


@pytest.fixture
def folder(tmp_path):
    for name in NAMES:
        (tmp_path / f"{name}.py").write_text(CANARY)
    (tmp_path / "my_env.py").write_text(ENV)
    return tmp_path


def ludus(folder, *words):
    process = kept(
        subprocess.Popen(
            [sys.executable, "-m", "ludus", *map(str, words)],
            cwd=folder,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
    )
    _, err = process.communicate(timeout=240)
    return process.returncode, err


def test_verbs_run_no_module_of_the_folder(folder):
    code, err = ludus(folder, "ls")
    assert code == 0, err
    assert not (folder / "canary").exists()


CHILD = """
import multiprocessing, os
from ludus.process.fork_server import start_server
from ludus.process.modules import forget_safe_path
if __name__ == "__main__":
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["random", "typing"])
    start_server()
    child = context.Process(target=forget_safe_path)
    child.start()
    child.join(120)
    assert child.exitcode == 0 and "PYTHONSAFEPATH" not in os.environ
"""


def test_the_fork_server_and_its_children_run_no_module_of_the_folder(folder, tmp_path_factory):
    """Python starts it with -c, which puts the current folder first."""
    script = tmp_path_factory.mktemp("elsewhere") / "starts.py"
    script.write_text(CHILD)
    done = subprocess.run([sys.executable, script], cwd=folder, timeout=240)
    assert done.returncode == 0
    assert not (folder / "canary").exists()


@pytest.mark.slow
def test_training_finds_a_module_that_was_named_behind_all_others(folder):
    """Also in the processes of environments and the fork server that starts them."""
    code, err = ludus(folder, "train", "dqn", "my_env:Env", *SMALL, "env.workers=1")
    assert code == 0, err
    assert not (folder / "canary").exists()


def test_cells_of_a_bench_are_started_without_the_folder(tmp_path, monkeypatch):
    from ludus.bench import runner
    from ludus.bench.matrix import Cell, Matrix

    started = []

    class NeverError(Exception):
        pass

    def start(words, **how):
        started.append(words)
        raise NeverError

    monkeypatch.setattr(runner.subprocess, "Popen", start)
    with pytest.raises(NeverError):
        one = runner.Runner(Matrix(tmp_path), [runner.Share("", "")], None)
        one._start(Cell("dqn", "CartPole-v1", 1, "one"), runner.Share("", ""))
    assert started[0][1:4] == ["-P", "-m", "ludus.bench.cell"]


@pytest.fixture
def plain(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    here = str(tmp_path)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p not in ("", here)])
    (tmp_path / "ends_last.py").write_text("")
    yield here
    sys.modules.pop("ends_last", None)


@pytest.mark.parametrize("words", [["ls"], ["list", "algos"], ["help", "E101"], ["list", "agents"]])
def test_the_path_stays_as_it_is(plain, words):
    before = list(sys.path)
    assert call(*words).code == 0
    assert sys.path == before


def test_a_named_module_puts_the_folder_last(plain):
    before = list(sys.path)
    assert call("list", "algos", "--import", "ends_last").code == 0
    assert sys.path == [*before, plain]
