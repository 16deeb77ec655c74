"""An environment in the main process that never returns: it is reported, and a signal still leaves
with everything that was learned."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ludus.track.checkpoint.reader import load
from ludus.track.metrics.writer import read_metrics
from ludus.track.run_dir.rundir import RunDir
from ludus.track.run_dir.status import read_status
from tests.contract.tiny import run, tiny
from tests.started import kept

ROOT = Path(__file__).parents[2]
SLEEPERS = "tests.run.sleepers"


def start(folder: Path, env: str, *words: str, hang: str = "0.5") -> subprocess.Popen:
    """`ludus train dqn ENV` in a process of its own."""
    return kept(
        subprocess.Popen(
            [sys.executable, "-m", "ludus", "train", "dqn", f"{SLEEPERS}:{env}", "steps=100k",
             "warmup=40", "batch=8", "env.num=2", "tensorboard=off", "report=off",
             f"env.timeout={hang}", "run.grace=1", *words, "--runs-dir", str(folder),
             "--run", "x"],
            cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"}, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )
    )  # fmt: skip


def wait_until(process: subprocess.Popen, holds: Callable[[], bool]) -> None:
    """Fails where it never does."""
    until = time.monotonic() + 120
    while time.monotonic() < until and process.poll() is None:
        if holds():
            return
        time.sleep(0.02)
    if process.poll() is None:
        process.kill()
    raise AssertionError(process.communicate(timeout=30))


def wait_for(process: subprocess.Popen, path: Path, state: str) -> dict:
    """The status once it is `state`."""
    wait_until(process, lambda: status_of(path).get("state") == state)
    return status_of(path)


def status_of(path: Path) -> dict:
    try:
        return json.loads((path / "status.json").read_text())
    except (OSError, ValueError):
        return {}


@pytest.mark.parametrize(
    ("env", "number"),
    [("Sleeper", signal.SIGINT), ("Deadlocked", signal.SIGTERM)],
)
def test_a_hung_step_is_reported_and_a_signal_saves_and_leaves(env, number, tmp_path) -> None:
    """By an exception in Python code; by the watchdog itself where native code hangs."""
    path = tmp_path / "x"
    # Python code leaves at once, but on a busy machine its thread may be late.
    grace = "run.grace=1" if env == "Deadlocked" else "run.grace=60"
    process = start(tmp_path, env, "env.args={after: 100}", grace)
    answer = wait_for(process, path, "stalled")
    assert "step()" in answer["reason"] and f"environment 0 of {SLEEPERS}:{env}" in answer["reason"]
    assert "sleepers.py" in answer["reason"] and read_status(RunDir(path))["state"] == "stalled"
    wait_until(process, lambda: log_of_stall(path))
    process.send_signal(number)
    said, _ = process.communicate(timeout=120)
    assert process.returncode == 128 + number, said
    status, saved = read_status(RunDir(path)), load(path)
    assert status["state"] == "stopped" and status["reason"] in ("interrupted", "terminated")
    assert saved.step == status["step"] == 200 and saved.state["updates"] > 10
    shown = [
        line for line in said.split("has not returned for")[1].splitlines() if "actor " in line
    ]
    assert shown or env == "Deadlocked", "what native code holds leaves without a last line"
    assert all("stalled" in line and "ETA" not in line for line in shown)
    assert "bottleneck" not in said.split("has not returned for")[1]


def log_of_stall(path: Path) -> bool:
    """Whether the stack, the warning and the event are on the disk: a run that hangs writes
    nothing later that could carry them along."""
    log, events = (path / "log.txt").read_text(), read_metrics(path / "events.jsonl")
    said = "has not returned for" in log and "in step" in log
    return said and any(event["kind"] == "stalled" for event in events)


def test_a_signal_does_not_wait_until_a_hung_step_is_reported(tmp_path) -> None:
    """Before `env.timeout` nobody knows that it hangs; `run.grace` is enough."""
    path, asleep = tmp_path / "x", tmp_path / "asleep"
    args = f"env.args={{after: 100, asleep: {asleep}}}"
    process = start(tmp_path, "Sleeper", args, hang="1000")
    wait_until(process, asleep.exists)
    process.send_signal(signal.SIGTERM)
    said, _ = process.communicate(timeout=120)
    assert process.returncode == 143, said
    assert load(path).step == 200 and read_status(RunDir(path))["state"] == "stopped"


@pytest.mark.parametrize(("call", "native"), [("__init__", False), ("reset", True)])
def test_a_hung_start_is_reported_and_left(call, native, tmp_path) -> None:
    path, marker = tmp_path / "x", tmp_path / "x" / "config.user.yaml"  # there once a run begins
    args = f"env.args={{call: {call}, native: {str(native).lower()}, marker: {marker}}}"
    process = start(tmp_path, "NeverMade", args)
    answer = wait_for(process, path, "stalled")
    assert ("constructor" if call == "__init__" else "reset()") in answer["reason"]
    assert "sleepers.py" in answer["reason"]
    process.send_signal(signal.SIGTERM)
    said, _ = process.communicate(timeout=120)
    assert process.returncode == 143, said
    answer = read_status(RunDir(path))
    assert answer["state"] == "stopped" and answer["reason"] == "terminated before the first step"


@pytest.mark.parametrize(
    ("native", "words", "number"),
    [
        (False, (), signal.SIGTERM),
        pytest.param(True, ("env.workers=1",), signal.SIGTERM, marks=pytest.mark.slow),
        pytest.param(False, ("--dry-run",), signal.SIGINT, marks=pytest.mark.slow),
    ],
)
def test_a_hung_first_look_is_reported_and_left(native, words, number, tmp_path) -> None:
    """Before there is a run directory."""
    marker = tmp_path / "marker"
    marker.touch()
    args = f"env.args={{native: {str(native).lower()}, marker: {marker}}}"
    process = start(tmp_path, "NeverMade", args, *words)
    assert process.stdout is not None
    limit = threading.Timer(120, process.kill)  # else silence would be for ever
    limit.start()
    line = process.stdout.readline()
    limit.cancel()
    assert f"the constructor or first reset() of environment {SLEEPERS}:NeverMade" in line
    assert "has not returned for" in line and "at sleepers.py:" in line
    process.send_signal(number)
    said, _ = process.communicate(timeout=120)
    assert process.returncode == 128 + number, said
    reason = "terminated" if number == signal.SIGTERM else "interrupted"
    assert f"{reason} before the run began" in said and not (tmp_path / "x").exists()


@pytest.mark.parametrize("words", [("env.workers=1",), ("fleet=processes", "actors=1")])
def test_a_signal_while_processes_make_their_environments_leaves(words, tmp_path) -> None:
    # Workers are asked to close first: 2 s of the grace.
    process = start(tmp_path, "StuckActor", *words, "run.grace=20", hang="60")
    wait_for(process, tmp_path / "x", "starting")
    process.send_signal(signal.SIGTERM)
    said, _ = process.communicate(timeout=120)
    assert process.returncode == 143 and "terminated before the first step of x" in said
    answer = read_status(RunDir(tmp_path / "x"))
    assert answer["state"] == "stopped" and answer["reason"] == "terminated before the first step"


def test_a_slow_step_is_reported_and_ends_nothing(tmp_path) -> None:
    words = ("steps=300", "env.timeout=0.2", "env.num=1", "env.args={after: 150, seconds: 1.5}")
    result = run(tiny("dqn", f"{SLEEPERS}:Nap", *words), tmp_path)
    assert result.exit_code == 0 and result.reason == "finished"
    kinds = [e["kind"] for e in read_metrics(result.path / "events.jsonl")]
    assert kinds.index("stalled") < kinds.index("returned") < kinds.index("end")
    log = (result.path / "log.txt").read_text()
    assert "has not returned for" in log and "returned after" in log
    assert read_status(RunDir(result.path))["state"] == "finished"


@pytest.mark.slow
def test_a_hung_evaluation_is_reported_and_left(tmp_path) -> None:
    """Environments of evaluations are others, in the same thread."""
    path = tmp_path / "x"
    words = ("eval.every=100", "eval.episodes=50", "env.args={after: 400}", "env.num=1")
    process = start(tmp_path, "Sleeper", *words)
    assert "step()" in wait_for(process, path, "stalled")["reason"]
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=120)
    assert process.returncode == 130, said
    assert load(path).step == read_status(RunDir(path))["step"] > 0
