"""Environments of peers: whichever script runs first, the next finds what it needs."""

from __future__ import annotations

import ast
import json
import subprocess

import peers
import pytest

from tests.benchmarks.conftest import FOLDER


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """The environments are made under `tmp_path`, and pip only says what it was asked for."""
    asked: list[list[str]] = []

    def run(command, check):
        words = [str(word) for word in command]
        if words[1:3] == ["-m", "venv"]:
            python = peers.PEERS / words[3].rpartition("/")[2] / "bin" / "python"
            python.parent.mkdir(parents=True)
            python.touch()
        else:
            assert words[1:5] == ["-m", "pip", "install", "-q"]
            asked.append(words[5:])

    monkeypatch.setattr(peers, "PEERS", tmp_path / ".peers")
    monkeypatch.setattr(peers.subprocess, "run", run)
    return asked


def test_an_environment_has_all_that_any_script_needs(installed):
    peers.set_up("sb3")
    packages = [word for words in installed for word in words]
    assert packages[0].startswith("torch==") and "+" not in packages[0]
    assert any(word.startswith("stable-baselines3") for word in packages)
    assert any(word.startswith("ale-py") for word in packages)
    installed.clear()
    peers.set_up("sb3")
    assert installed == [], "it is there"


def test_an_environment_of_an_older_list_is_completed(installed):
    python = peers.python_of("sb3")
    python.parent.mkdir(parents=True)
    python.touch()  # as train_peers.py once left it, without the emulator
    peers.set_up("sb3")
    assert any("ale-py" in word for words in installed for word in words)
    (peers.PEERS / "sb3" / ".ready").write_text(json.dumps([["stable-baselines3<2"]]))
    installed.clear()
    peers.set_up("sb3")
    assert any("ale-py" in word for words in installed for word in words)


def test_one_whose_installation_failed_is_not_taken_for_ready(installed, monkeypatch):
    def fail(command, check):
        raise subprocess.CalledProcessError(1, command)

    with monkeypatch.context() as patch:
        patch.setattr(peers.subprocess, "run", fail)
        with pytest.raises(subprocess.CalledProcessError):
            peers.set_up("cpprb")
    peers.set_up("cpprb")
    assert installed == peers.NEEDS["cpprb"]


@pytest.mark.parametrize("script", sorted(p.name for p in FOLDER.glob("*_peers.py")))
def test_every_script_of_make_bench_sets_up_its_peers_that_way(script):
    tree = ast.parse((FOLDER / script).read_text())
    calls = [n for n in ast.walk(tree) if isinstance(n, ast.Call)]
    assert any(getattr(call.func, "id", "") == "set_up" for call in calls)
    made = [n for n in ast.walk(tree) if isinstance(n, ast.Constant) and n.value in ("venv", "pip")]
    assert not made, "only peers.py makes environments"
