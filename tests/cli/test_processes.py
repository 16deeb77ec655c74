"""Runs as processes of their own: stopped by `ludus stop`, by Ctrl-C, and seen from outside."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import psutil
import pytest

from tests.cli.conftest import call
from tests.run.test_faults import wait_for_updates
from tests.started import kept, survivors

ENDLESS = [
    "train", "dqn", "ludus/Identity-v0", "steps=100M", "warmup=40", "batch=8", "tensorboard=off",
    "checkpoint_every=1M", "env.num=2", "env.workers=1", "log.every=50", "--run", "x",
]  # fmt: skip


@pytest.fixture
def endless(runs):
    """A run in its own process, past its first update."""
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, "-m", "ludus", *ENDLESS, "--runs-dir", str(runs)],
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    wait_for_updates(kept(process), runs / "x")
    return process


def _workers(process):
    return psutil.Process(process.pid).children(recursive=True)


@pytest.mark.accept(141)
def test_stop_ends_a_run_with_a_checkpoint(endless, runs):
    workers = _workers(endless)
    assert workers, "the environments have a process of their own"
    assert call("status", "x", "--runs-dir", runs, "--json").json["pid"] == endless.pid
    busy = call("resume", "x", "--runs-dir", runs)
    assert busy.code == 1 and "E302" in busy.err and str(endless.pid) in busy.err
    asked = call("stop", "x", "--runs-dir", runs, "--wait", "0")
    assert asked.code == 0 and "asked to stop" in asked.out
    assert endless.wait(120) == 143
    seen = call("status", "x", "--runs-dir", runs, "--json").json
    assert seen["state"] == "stopped" and seen["last"] == seen["step"] > 0
    assert not survivors(w.pid for w in workers)


@pytest.mark.accept(141)
def test_interrupt_saves_too(endless, runs):
    workers = _workers(endless)
    endless.send_signal(signal.SIGINT)
    assert endless.wait(120) == 130
    seen = call("status", "x", "--runs-dir", runs, "--json").json
    assert seen["last"] == seen["step"] > 0
    assert not survivors(w.pid for w in workers)


def test_a_killed_run_is_seen_as_dead_and_stop_waits(endless, runs):
    endless.kill()
    endless.wait(60)
    assert call("status", "x", "--runs-dir", runs, "--json").json["state"] == "dead"
    assert call("stop", "x", "--runs-dir", runs).code == 1
