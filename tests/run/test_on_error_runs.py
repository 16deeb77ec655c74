"""env.on_error in runs: the same meaning in every fleet, counted, logged, and never a silent loop
of failures."""

from __future__ import annotations

import signal

import pytest

from ludus.errors import LudusError
from ludus.fleets.health import Restarts
from ludus.process.supervisor import NO_HEARTBEAT, exit_cause
from ludus.seeding import env_seed
from ludus.track.checkpoint.reader import load
from ludus.track.metrics.writer import read_metrics
from ludus.track.run_dir.rundir import RunDir
from ludus.track.run_dir.status import read_status
from tests.contract.tiny import run, tiny

FLEETS = {
    "inline": ("dqn",),
    "workers": ("dqn", "env.workers=2"),
    "processes": ("dqn", "fleet=processes", "actors=2"),
    "hogwild": ("a3c", "fleet=hogwild", "actors=2"),
}


def cfg_of(fleet: str, on_error: str, **args: object):
    """Two environments of each actor; the first of them fails at its 90th step."""
    algo, *words = FLEETS[fleet]
    answer = {"bad": env_seed(1, "env", 0, 0), "at": 90} | args
    text = ", ".join(f"{k}: {v}" for k, v in answer.items())
    words += [f"env.args={{{text}}}", f"env.on_error={on_error}", "env.max_episode_steps=200"]
    return tiny(algo, "tests.run.sleepers:Flaky", *words, "steps=600", "checkpoint_every=100k")


@pytest.mark.parametrize("fleet", FLEETS)
def test_a_run_goes_on_with_another_environment(fleet, tmp_path) -> None:
    result = run(cfg_of(fleet, "restart"), tmp_path)
    assert result.exit_code == 0 and result.step >= 600
    rows = read_metrics(result.path / "metrics.jsonl")
    assert rows[-1]["actors/env_restarts"] == 1 and rows[-1].get("actors/restarts", 0) == 0
    (event,) = [e for e in read_metrics(result.path / "events.jsonl") if e["kind"] == "environment"]
    assert "a tooth broke" in event["what"] and "seed" in event["what"] and event["slot"] == 0
    assert "Traceback" in (result.path / "log.txt").read_text()
    ends = [line.split(",") for line in (result.path / "episodes.csv").read_text().splitlines()]
    assert [line[3] for line in ends if line[4] == "error"] == ["89"]


@pytest.mark.parametrize("fleet", ["inline", "processes", "hogwild"])
def test_stop_ends_a_run_with_the_cause_and_a_checkpoint(fleet, tmp_path) -> None:
    with pytest.raises(LudusError, match="a tooth broke") as caught:
        run(cfg_of(fleet, "stop"), tmp_path)
    assert caught.value.code == "E205" and caught.value.exit_code == 3
    (path,) = tmp_path.iterdir()
    assert read_status(RunDir(path))["state"] == "failed" and load(path).step > 0


def test_an_environment_that_fails_in_its_first_reset_is_said_once_the_run_begins(tmp_path) -> None:
    """Then no file of the run is open."""
    cfg = tiny("dqn", "tests.run.sleepers:Shy", "env.on_error=restart", "steps=200")
    path = run(cfg, tmp_path).path
    assert "warning: RuntimeError in reset(): not yet" in (path / "log.txt").read_text()


def test_an_evaluation_with_a_failing_environment_does_not_end_the_run(tmp_path) -> None:
    bad = env_seed(1, "eval", 0, 0)
    words = ("env.on_error=restart", "eval.every=100", "eval.episodes=2", "steps=300")
    args = f"env.args={{bad: {bad}, at: 3, length: 10}}"
    result = run(tiny("dqn", "tests.run.sleepers:Flaky", *words, args), tmp_path)
    assert result.exit_code == 0 and result.step >= 300
    assert "warning: RuntimeError in step(): a tooth broke" in (result.path / "log.txt").read_text()


@pytest.mark.parametrize("fleet", ["processes", pytest.param("hogwild", marks=pytest.mark.slow)])
def test_actors_that_all_fail_for_the_same_cause_end_the_run(fleet, tmp_path) -> None:
    """Otherwise they would be replaced again and again, and the run would end well."""
    algo, *words = FLEETS[fleet]
    words += ["steps=100k", "actor.restarts=1000"]
    cfg = tiny(algo, "tests.run.sleepers:Dying", *words)
    with pytest.raises(LudusError, match="all 2 actors failed 2 times") as caught:
        run(cfg, tmp_path)
    assert caught.value.code == "E206" and caught.value.exit_code == 3
    assert "a tooth broke" in caught.value.what and "a tooth broke" in str(caught.value.__cause__)
    (path,) = tmp_path.iterdir()
    assert load(path).step > 0


def test_what_counts_as_the_same_cause() -> None:
    restarts = Restarts(100, 10.0, actors=2)
    for actor in (0, 0, 0, 1):
        restarts.add(actor, f"ValueError at step {actor}", "Traceback")
    for _ in range(5):  # killed, or stopped: no cause of their own
        restarts.add(1, exit_cause(-9))
        restarts.add(1, f"{NO_HEARTBEAT} for 20 s; it wrote no stack, as a stopped process cannot")
    restarts.add(1, "KeyError", "Traceback")
    with pytest.raises(LudusError, match="all 2 actors"):
        restarts.add(1, "ValueError at step 977", "Traceback")


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGFPE])
def test_a_crash_of_native_code_is_a_cause(number) -> None:
    restarts = Restarts(100, 10.0, actors=2)
    for actor in (0, 0, 1):
        restarts.add(actor, exit_cause(-number))
    for other in (signal.SIGKILL, signal.SIGTERM, signal.SIGILL):
        restarts.add(1, exit_cause(-other))
    with pytest.raises(LudusError, match=rf"all 2 actors .*signal {number:d}, {number.name}"):
        restarts.add(1, exit_cause(-number))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_kill_from_outside_is_no_cause(number) -> None:
    restarts = Restarts(100, 10.0, actors=2)
    for actor in (0, 1) * 5:
        restarts.add(actor, exit_cause(-number))
    assert restarts.count == 10


def test_a_lone_actor_fails_three_times_before_it_counts_as_all() -> None:
    restarts = Restarts(100, 10.0)
    for _ in range(2):
        restarts.add(0, "ValueError", "Traceback")
    with pytest.raises(LudusError, match="the only actor failed 3 times"):
        restarts.add(0, "ValueError", "Traceback")


def test_actors_that_all_hang_at_the_same_line_end_the_run() -> None:
    restarts = Restarts(100, 10.0, actors=2)
    cause = f"{NO_HEARTBEAT} for 20 s in maze.py:7 in step; its stack is in crash"
    for actor in (0, 0, 1):
        restarts.add(actor, cause)
    with pytest.raises(LudusError, match=r"all 2 actors .* maze.py:7 in step"):
        restarts.add(1, cause)
