"""Runs as processes of their own: stopped by `ludus stop`, by Ctrl-C, and seen from outside."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from .conftest import call

ENDLESS = [
    "train", "dqn", "ludus/Identity-v0", "steps=100M", "warmup=40", "batch=8", "tensorboard=off",
    "checkpoint_every=1M", "env.num=2", "env.workers=1", "--run", "x",
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
    try:
        until = time.monotonic() + 60
        while time.monotonic() < until and process.poll() is None:
            status = runs / "x" / "status.json"
            if status.is_file() and json.loads(status.read_text())["state"] == "running":
                break
            time.sleep(0.05)
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


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
    assert endless.wait(30) == 143
    seen = call("status", "x", "--runs-dir", runs, "--json").json
    assert seen["state"] == "stopped" and seen["last"] == seen["step"] > 0
    psutil.wait_procs(workers, timeout=10)
    assert not [w for w in workers if w.is_running() and w.status() != psutil.STATUS_ZOMBIE]


@pytest.mark.accept(141)
def test_interrupt_saves_too(endless, runs):
    workers = _workers(endless)
    endless.send_signal(signal.SIGINT)
    assert endless.wait(30) == 130
    seen = call("status", "x", "--runs-dir", runs, "--json").json
    assert seen["last"] == seen["step"] > 0
    psutil.wait_procs(workers, timeout=10)
    assert not [w for w in workers if w.is_running() and w.status() != psutil.STATUS_ZOMBIE]


def test_a_killed_run_is_seen_as_dead_and_stop_waits(endless, runs):
    endless.kill()
    endless.wait(10)
    assert call("status", "x", "--runs-dir", runs, "--json").json["state"] == "dead"
    assert call("stop", "x", "--runs-dir", runs).code == 1
