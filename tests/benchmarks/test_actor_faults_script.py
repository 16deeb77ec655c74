"""The record of faults, in small: what the bars ask for is in the rows."""

from __future__ import annotations

import json
import os
import time

import actor_faults
import fault_envs
import pytest
from orphans import MARK, family


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    monkeypatch.setattr(actor_faults, "SETTLE", 0.0)


def recorded(tmp_path, *words: str) -> list[dict]:
    out = tmp_path / "rows.jsonl"
    actor_faults.main([*words, "--out", str(out)])
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    for row in rows:
        assert row["commit"] and row["machine"]["cores"] and row["load_after"] >= 0
        assert row["command"].startswith(f"python benchmarks/actor_faults.py {words[0]}")
    return rows


@pytest.mark.slow
def test_every_kill_is_replaced_before_the_end(tmp_path):
    (row,) = recorded(tmp_path, "--kills", "2", "--minutes", "0.02", "--actors", "2")
    assert row["kills"] == row["restarts"] == 2
    assert row["longest_stall_seconds"] > 0 and row["updates"] > 0
    assert row["left_behind"]["processes"] <= 2, "the fork server and its tracker stay"


@pytest.mark.slow
@pytest.mark.parametrize("fleet", ["processes", "hogwild"])
def test_a_crowd_starts_trains_and_stops(tmp_path, fleet):
    (row,) = recorded(tmp_path, "--crowd", "3", "--fleet", fleet)
    assert (row["fleet"], row["actors"], row["processes_seen"]) == (fleet, 3, 3)
    assert row["updates"] >= 200 and row["restarts"] == 0 and row["steps"] > 0


@pytest.mark.slow
@pytest.mark.parametrize(("fleet", "how"), [("processes", "sleeping"), ("hogwild", "stopped")])
def test_who_hangs_is_replaced_and_its_rows_come_again(fleet, how):
    row = actor_faults.hang(fleet, how, 2, **{"actor.hang_seconds": 2})
    assert row["hang_seconds"] == 2
    assert {"replaced_after_seconds", "rows_again_after_seconds"} <= row.keys()
    assert "no heartbeat for 2 s" in row["cause"] and row["steps_meanwhile"] > 0
    stack = " in step; its stack is in RUN/crash"
    assert (stack in row["cause"]) == (how == "sleeping")


@pytest.mark.slow
def test_a_killed_parent_is_followed_by_all_of_its_processes(tmp_path):
    words = ["--orphans", "--fleet", "processes", "--actors", "1", "--repeats", "1"]
    (row,) = recorded(tmp_path, *words)
    assert row["processes"][0] >= 3, "the main process, its actor and the live evaluator"
    assert row["seconds_until_gone"][0] > 0 and row["seconds_until_shared_clean"][0] > 0
    assert row["processes_left"] == row["shared_left"] == [0] and row["one_stopped"] == [False]


def test_a_family_is_found_by_its_mark(tmp_path):
    child = os.posix_spawn("/bin/sleep", ["sleep", "100"], {MARK: "ours"})
    try:
        for _ in range(300):  # its environment is not to be read before its program has begun
            if family("ours"):
                break
            time.sleep(0.1)
        assert family("ours") == [child] and not family("our")
    finally:
        os.kill(child, 9)
        os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
        assert not family("ours"), "also before it is reaped"
        os.waitpid(child, 0)


def test_one_environment_sleeps_and_only_once(tmp_path, monkeypatch):
    slept = []
    monkeypatch.setattr(fault_envs.time, "sleep", slept.append)
    envs = [fault_envs.SleepsOnce(str(tmp_path / "asleep"), after=3) for _ in range(2)]
    for env in envs:
        env.reset(seed=1)
        for _ in range(5):
            env.step(0)
    assert slept == [1e6] and float((tmp_path / "asleep").read_text()) > 0
