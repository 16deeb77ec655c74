"""Runs are read from whatever is there: whole, begun, torn, or long."""

from __future__ import annotations

import json

from ludus.stats import run_files
from ludus.stats.run_files import read_lines, sampled_lines
from ludus.stats.runs import read_run
from ludus.track.run_dir.rundir import RunDir


def test_a_run_that_has_just_begun(tmp_path):
    (tmp_path / "new").mkdir()
    run = read_run(RunDir(tmp_path / "new"), history=True)
    assert (run.algo, run.metrics, run.windows, run.after, run.state) == ("?", [], [], [], "empty")


def test_files_that_are_not_what_they_should_be(tmp_path):
    place = tmp_path / "odd"
    (place / "eval").mkdir(parents=True)
    (place / "config.yaml").write_text("algo: [1, 2]\nenv: 3\nrun: {seed: x, steps: null}\n")
    (place / "manifest.json").write_text("[]")
    (place / "status.json").write_text("{")
    (place / "metrics.jsonl").write_text('{"step": 1}\n{"step": \n[]\n{"step": 5}\n{"st')
    (place / "eval" / "greedy-10.json").write_text('{"step": 10, "mean": "nan"}')
    timed = {"5min": {"mean": 2}, "full": {"mean": 3}, "odd": 1}
    good = {"step": 20, "mean": 3, "scores": [2, 4, None], "by_length": timed}
    (place / "eval" / "saber-20.json").write_text(json.dumps(good))
    run = read_run(RunDir(place), history=True)
    assert [row["step"] for row in run.metrics] == [1, 5]
    assert [(e.label, e.step, e.scores) for e in run.after] == [("saber", 20, (2.0, 4.0))]
    assert run.after[0].by_length == {"5min": 2.0, "full": 3.0}


def test_long_files_are_thinned_and_keep_their_end(tmp_path, monkeypatch):
    path = tmp_path / "m.jsonl"
    path.write_text("".join(json.dumps({"step": i}) + "\n" for i in range(10_000)))
    some = [row["step"] for row in read_lines(path, 100)]
    assert len(some) <= 101 and some[-1] == 9_999 and some == sorted(some)
    monkeypatch.setattr(run_files, "WHOLE", 5_000)
    parts = [json.loads(line)["step"] for line in sampled_lines(path)]
    assert len(parts) <= 1_501 and (parts[0], parts[-1]) == (0, 9_999)
    assert parts == sorted(parts)
