"""Rows of the Atari benchmarks say which game was played, on what and with which code."""

from __future__ import annotations

import json

import pytest

from tests.skips import REASONS

pytest.importorskip("ale_py", reason=REASONS["atari"])

import atari_learning
import facts
import pong_seconds

SMALL = {
    "env.num": 2, "env.threads": 1, "algo.rollout": 8, "algo.minibatches": 2, "algo.epochs": 1,
    "algo.torso": {"kind": "nips", "hidden": 8}, "run.device": "cpu", "log.every": 16,
}  # fmt: skip
FACTS = {"protocol", "protocol_hash", "rules", "precision", "envs", "commit", "config", "compute"}


def test_pong_is_played_in_whole_games_of_half_an_hour():
    row = pong_seconds.one("ppo", "atari-fast", 1, 18.0, 60.0, {**SMALL, "run.steps": 64})
    assert FACTS <= row.keys() and json.dumps(row)
    whole = {"life_loss": "ignore", "max_frames": 108_000, "sticky": 0.0, "full_actions": False}
    assert whole.items() <= row["rules"].items()
    assert row["protocol"] == "dqn-2015*" and len(row["protocol_hash"]) == 12
    assert row["envs"] == 2 and row["precision"] in ("fp32", "bf16") and row["commit"]
    assert row["steps"] >= 64 and row["solved_seconds"] is row["final_100"] is None


def test_its_rules_cannot_be_set_otherwise():
    cut = {"env.atari.max_frames": 18_000}
    with pytest.raises(SystemExit, match=r"env\.atari\.max_frames"):
        pong_seconds.one("ppo", "atari-fast", 1, 18.0, 60.0, {**SMALL, **cut})


def test_rows_of_learning_curves_say_as_much(monkeypatch):
    monkeypatch.setitem(atari_learning.SETTINGS, "ppo", SMALL)
    row = atari_learning.one("ppo", "pong", {}, 1, 4 * 64)
    assert FACTS <= row.keys() and json.dumps(row) and row["kind"] == "result"
    assert row["protocol"] == "dopamine" and row["rules"]["life_loss"] == "ignore"
    assert row["envs"] == 2 and row["curve"] == []
    row = atari_learning.one("ppo", "pong", {"env.num": 4}, 1, 4 * 64)
    assert row["kind"] == "trial" and row["settings"]["env.num"] == row["envs"] == 4


def test_a_trial_holds_nothing(capsys):
    row = {"algo": "ppo", "game": "breakout", "seed": 1, "curve": [(5.0, 40.0, 100)]}
    atari_learning.verdict([row | {"kind": "trial"}])
    assert "ppo          breakout  seed 1: not run" in capsys.readouterr().out
    atari_learning.verdict([row | {"kind": "result"}])
    assert "ok  ppo          breakout  seed 1" in capsys.readouterr().out


def test_where_only_files_were_copied_the_commit_is_reported(monkeypatch):
    monkeypatch.setenv("BENCH_COMMIT", "abc1234")
    assert facts.commit() == "abc1234"
    monkeypatch.delenv("BENCH_COMMIT")
    monkeypatch.setattr(facts.subprocess, "run", raise_no_git)
    assert facts.commit() == "unknown"


def raise_no_git(*_, **__):
    raise FileNotFoundError("git")
