"""benchmarks/atari_presets.py: rows of what passed and failed, in parts, and not twice."""

from __future__ import annotations

import json

import pytest

from tests.skips import REASONS

pytest.importorskip("ale_py", reason=REASONS["atari"])

import atari_presets


@pytest.fixture
def script(tmp_path, monkeypatch):
    """Runs it without runs: every preset passes but those in `broken`."""
    out, broken, ran = tmp_path / "rows.jsonl", set(), []

    class Done:
        def __init__(self, words):
            task = tuple(words[words.index("--work") + 1 :][:2])
            ran.append(task)
            self.returncode = 3 if task[1] in broken else 0
            self.stderr = "Traceback\nValueError: broken"
            self.stdout = 'hello\n{"ok": true, "steps": 20000, "score": -21.0, "seconds": 1.0}\n'

    monkeypatch.setattr(atari_presets, "apart", lambda words, _: Done(words))
    monkeypatch.setattr(atari_presets.facts, "commit", lambda: "abc")

    def call(*words):
        ran.clear()
        return atari_presets.main([*words, "--out", str(out)]), list(ran)

    call.out, call.broken = out, broken
    return call


def rows_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_one_that_fails_is_a_row_and_the_rest_go_on(script):
    script.broken.add("c51")
    code, ran = script("--jobs", "3")
    every = set(atari_presets.EVERY)
    assert {("atari", "a3c"), ("atari-fast", "dqn")} <= every
    assert code == 1 and set(ran) == every
    rows = rows_of(script.out)
    assert len(rows) == len(every)
    bad = [row for row in rows if not row["ok"]]
    assert {row["algo"] for row in bad} == {"c51"}
    assert bad[0]["failed"] == "exit code 3: ValueError: broken"
    wanted = {"algo", "preset", "env", "seed", "device", "config", "commit", "steps", "score"}
    assert all(wanted <= row.keys() for row in rows if row["ok"])


def test_it_goes_on_where_it_was(script):
    script.broken.add("dqn")
    assert script("--preset", "atari", "--only", "dqn", "iqn")[0] == 1
    script.broken.clear()
    assert script("--preset", "atari", "--only", "dqn", "iqn") == (0, [("atari", "dqn")])
    assert script("--preset", "atari", "--only", "dqn", "iqn") == (0, [])
    assert len(script("--preset", "atari", "--only", "dqn", "iqn", "--again")[1]) == 2
    assert len(script("--preset", "atari", "--only", "dqn", "iqn", "--seed", "2")[1]) == 2
    assert len(script("--preset", "atari", "--only", "dqn", "iqn", "--steps", "10")[1]) == 2


def test_parts_make_the_whole(script):
    parts = [script("--part", f"{k}/3", "--again")[1] for k in (1, 2, 3)]
    found = [task for part in parts for task in part]
    assert sorted(found) == sorted(atari_presets.EVERY)
    with pytest.raises(SystemExit):
        script("--part", "4/3")


def test_one_really_trains_and_evaluates():
    words = ["--steps", "40", "--frames", "200", "--device", "cpu", "--episodes", "2"]
    args = atari_presets.arguments(words)
    row = atari_presets.one(("atari", "dqn"), args)
    assert row["ok"] and row["steps"] >= 40 and row["updates"] > 0 and json.dumps(row)
    assert row["protocol"] == "saber*" and row["rules"]["max_frames"] == 200
    assert max(row["lengths"]) <= 51 and len(row["scores"]) == 2
