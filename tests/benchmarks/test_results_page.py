"""docs/results.md: what the scripts recorded and what they add to presets stands there."""

from __future__ import annotations

import sys
from pathlib import Path

import learning_classic as classic
import pytest

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "tools"))

import results  # noqa: E402
import results_processes  # noqa: E402
from result_files import lines_of  # noqa: E402

PAGE = (ROOT / "docs" / "results.md").read_text(encoding="utf-8").splitlines()
WHERE = {"machine": {"cores": 2}, "actors": 4, "load_after": 1.5, "threads": 1}


def test_every_fault_that_was_recorded_is_shown():
    rows = lines_of("actor_faults.jsonl")
    assert {row["kind"] for row in rows} == set(results_processes.FAULTS)
    for row in rows:
        assert results_processes.FAULTS[row["kind"]](row) in PAGE, "python tools/results.py"


@pytest.mark.parametrize(
    ("seconds", "said"), [([1.5, 2.25], "gone after at most 2.25 s"), ([1.5, None], "not always")]
)
def test_orphans_that_stayed_are_not_hidden(seconds, said):
    left = [0, seconds.count(None)]
    row = {"fleet": "hogwild", "repeats": 2, "one_stopped": [False, True], "processes": [7, 8],
           "seconds_until_shared_clean": seconds, "processes_left": left, "shared_left": [0, 0],
           **WHERE}  # fmt: skip
    line = results_processes.orphans(row)
    assert "4 Hogwild workers" in line and said in line and f"left {sum(left)} and 0" in line
    assert "in 1 of them one was stopped" in line
    assert line.endswith("(load afterwards 1.5 on 2 cores, torch threads 1).")


def test_a_hang_is_reported_with_its_time_limit():
    row = {"fleet": "processes", "how": "sleeping", "replaced_after_seconds": 21.3,
           "rows_again_after_seconds": 22.5, "hang_seconds": 20.0, "steps_meanwhile": 12345,
           **WHERE}  # fmt: skip
    line = results_processes.hang(row)
    assert "An environment of one of 4 actors asleep" in line and "actor.hang_seconds=20;" in line
    assert "after 21.3 s" in line and "after 22.5 s" in line and "12,345 steps" in line


def test_every_learning_curve_that_was_recorded_is_shown():
    lines = results.atari_curves()
    assert all(line in PAGE for line in lines), "python tools/results.py"
    rows = [line for line in lines if line.startswith("| ") and "algorithm" not in line]
    assert len(rows) == len(lines_of("atari_learning.jsonl"))


def test_a_trial_without_a_published_curve_shows_its_scores(monkeypatch):
    row = {"algo": "iqn", "game": "freeway", "seed": 7, "envs": 8, "kind": "trial"}
    curve = [[0.5, None, 0], [1.0, 0.5, 9], [1.5, 2.0, 9]]
    curves = [{**row, "curve": curve}, {**row, "curve": []}]
    monkeypatch.setattr(results, "lines_of", lambda name: curves)
    shown = results.atari_curves()[-2:]
    assert shown == [f"| iqn | freeway | 7 | 8 | {cell} | trial |" for cell in ("1M: 0.5", "-")]


def test_rows_of_the_present_presets_count():
    assert all(line in PAGE for line in results.learning()), "python tools/results.py"
    assert any(classic.current(row) for row in classic.known())


def test_what_is_added_to_presets_is_read_from_the_script(monkeypatch):
    lines = results.added_settings()
    assert all(line in PAGE for line in lines), "python tools/results.py"
    assert "apex-dqn on CartPole-v1: `run.fleet=processes" in "\n".join(lines)
    assert "274.4 (seed 3)" in "\n".join(lines)
    monkeypatch.setitem(classic.FLEETS, ("ppo", "CartPole-v1"), {"run.actors": 3})
    assert "- ppo on CartPole-v1: `run.actors=3`" in results.added_settings()
