"""The record of learning: what a row says of who collected it, and where a trial's row goes."""

from __future__ import annotations

import json

import learning_classic as classic
import pytest


@pytest.fixture
def typed(tmp_path, monkeypatch):
    """Every command the script runs; nothing trains, every evaluation gives 321."""
    commands: list[tuple[str, ...]] = []

    def pretend(*words: str) -> str:
        commands.append(words)
        return json.dumps({"mean": 321.0, "std": 1.0, "step": 145_000})

    monkeypatch.setattr(classic, "ludus", pretend)
    monkeypatch.setattr(classic, "RESULTS", tmp_path / "rows.jsonl")
    monkeypatch.setattr(classic, "TRIALS", tmp_path / "trials.jsonl")
    return commands


def rows(path):
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_a_row_says_who_collected_it(typed):
    classic.main(["--only", "apex-dqn", "--only", "a3c:CartPole-v1", "--seeds", "2"])
    apex, a3c = rows(classic.RESULTS)
    assert (apex["fleet"], apex["actors"], apex["lockstep"]) == ("processes", 2, True)
    assert (a3c["fleet"], a3c["actors"], a3c["lockstep"]) == ("hogwild", 2, False)
    assert apex["config"] == classic.digest("apex-dqn", "CartPole-v1") and apex["last"] == 321.0
    assert not rows(classic.TRIALS)
    before = len(typed)
    classic.main(["--only", "apex-dqn", "--seeds", "2"])
    assert len(typed) == before, "what is there is not run again"


def test_a_trial_changes_settings_and_never_counts(typed):
    changed = ["--set", "actor.lockstep=auto", "actor.rows=4"]
    classic.main(["--only", "apex-dqn", "--trial", "free-4", "--seeds", "3", *changed])
    (row,) = rows(classic.TRIALS)
    asked = "run.fleet=processes run.actors=2 env.num=4 actor.lockstep=auto actor.rows=4"
    assert row["settings"] == asked and set(asked.split()) < set(typed[0])
    assert row["trial"] == "free-4" and row["seed"] == 3 and row["lockstep"] is False
    assert "config" not in row and not rows(classic.RESULTS)


@pytest.mark.parametrize(
    "words", [["--trial", "x"], ["--set", "actor.rows=4"], ["--seeds", "1", "4"]]
)
def test_a_trial_has_a_name_and_settings_and_only_it_has_other_seeds(typed, words):
    with pytest.raises(SystemExit):
        classic.main(words)
    assert not typed
