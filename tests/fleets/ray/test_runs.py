"""Whole runs with actors on Ray: resumed exactly, stopped by a signal."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from ludus.cli.main import run as command
from ludus.track.checkpoint.reader import load
from tests.contract.same import same_checkpoints
from tests.started import kept, survivors

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[3]
WORDS = ("train", "dqn", "CartPole-v1", "fleet=ray", "actors=2", "env.num=2", "exact=on",
         "checkpoint_every=400", "horizon=800", "warmup=64", "batch=16", "tensorboard=off",
         "report=off", "--quiet")  # fmt: skip


def test_a_resumed_run_in_lockstep_equals_an_uninterrupted_one(ray_here, tmp_path):
    where = ("--runs-dir", str(tmp_path))
    assert command([*WORDS, "steps=800", *where, "--run", "whole"]) == 0
    assert command([*WORDS, "steps=400", *where, "--run", "cut"]) == 0
    assert command(["resume", str(tmp_path / "cut"), "steps=800", "--quiet"]) == 0
    same_checkpoints(tmp_path / "whole", tmp_path / "cut")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_and_leaves_no_process(tmp_path, number):
    """Ray has its own handler of SIGTERM, which aborts."""
    run = subprocess.Popen(
        [sys.executable, "-m", "ludus", *WORDS[:5], "steps=100M", "tensorboard=off", "report=off",
         "actor.lockstep=on", "log.every=100", "--runs-dir", str(tmp_path), "--run", "x"],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    kept(run)
    assert run.stdout is not None
    next(line for line in run.stdout if "step 0 ->" in line)
    family = [p.pid for p in psutil.Process(run.pid).children(recursive=True)]
    os.killpg(run.pid, number)
    said = run.communicate()[0]
    assert run.returncode == 128 + number, said
    assert not survivors(family)
    assert load(tmp_path / "x").step >= 0
