"""The speed record: a learner on a full replay, small enough for a CPU."""

from __future__ import annotations

import json

import pytest

from tests.skips import REASONS

pytest.importorskip("ale_py", reason=REASONS["atari"])

import atari_speed

SMALL = ["--set", "algo.capacity=2048", "env.num=2", "env.threads=1", "algo.batch=8",
         "run.device=cpu", "algo.warmup=64", "algo.torso={kind: nips, hidden: 8}",
         "run.precision=fp32"]  # fmt: skip


def test_the_learner_is_measured_on_a_full_replay(tmp_path):
    out = tmp_path / "speed.json"
    other = {"label": "ppo", "modes": {}}
    out.write_text(json.dumps({"runs": [other], "learner": [{"label": "like Ape-X"}]}))
    words = ["--learner", "--seconds", "0.3", "--modes", "auto", "--out", str(out), *SMALL]
    atari_speed.main(words)
    result = json.loads(out.read_text())
    assert result["runs"] == [other], "what was not measured is kept"
    (row,) = result["learner"]
    mode = row["modes"]["auto"]
    assert mode["learner_alone_on"]["rows"] == 2048 and mode["learner_alone_on"]["drawable"] > 1990
    assert mode["learner_alone_updates_per_second"] > 0 and mode["fill_seconds"] > 0
    assert row["settings"]["algo.n_step"] == 3 and row["commit"] and row["protocol_hash"]


def test_the_whole_record_trains_on_it_too(tmp_path):
    out = tmp_path / "speed.json"
    words = ["--only", "like Ape-X", "--seconds", "0.4", "--modes", "auto", "--out", str(out)]
    atari_speed.main([*words, *SMALL, "--counts", "2", "4"])
    result = json.loads(out.read_text())
    (row,) = result["runs"]
    mode = row["modes"]["auto"]
    assert result["best"].keys() == {"2", "4"} and 0 < mode["of_best_ceiling"] < 1.5
    assert mode["learner_alone_on"]["rows"] == 2048 and mode["steps_per_second"] > 0
    assert mode["done_of_due"] == pytest.approx(1.0, abs=0.3), "the rows put there owe nothing"
