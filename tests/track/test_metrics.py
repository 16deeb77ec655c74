"""Streamed files: buffered, each episode once, cut back on resume."""

import csv
import json
import math
import resource

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ludus.errors import LudusError
from ludus.track.metrics.writer import MetricWriter, is_wall_clock, read_metrics, without_wall_clock
from ludus.track.run_dir.rundir import RunDir
from ludus.types import EpisodeEnd


@pytest.fixture
def run(tmp_path):
    return RunDir.create(tmp_path, "E", "dqn", 1, name="run")


def episodes_of(run):
    with open(run.episodes, newline="") as file:
        return list(csv.DictReader(file))


def fill(writer, begin, end):
    for step in range(begin, end):
        writer.metrics(step, step * 2, {"loss": 1 / (step + 1), "steps_per_second": 5.0 + step})
        writer.episode(step, EpisodeEnd(0, float(step), 10, "terminated"))


def test_every_episode_and_every_iteration_is_one_row(run):
    writer = MetricWriter(run)
    ends = ["terminated", "truncated", "checkpoint"]
    for i in range(300):
        writer.episode(10 * i, EpisodeEnd(i % 4, 0.1 * i, i, ends[i % 3], {"lives": 3.0}))
        writer.metrics(10 * i, i, {"loss": 0.5})
    writer.close()
    rows = episodes_of(run)
    assert [int(r["step"]) for r in rows] == [10 * i for i in range(300)]
    assert [float(r["score"]) for r in rows] == [0.1 * i for i in range(300)]
    assert [r["end"] for r in rows[:3]] == ends
    assert [int(r["slot"]) for r in rows[:5]] == [0, 1, 2, 3, 0]
    assert [int(r["length"]) for r in rows[:3]] == [0, 1, 2]
    assert json.loads(rows[0]["info"]) == {"lives": 3.0}
    assert [m["step"] for m in read_metrics(run.metrics)] == [10 * i for i in range(300)]


def test_lines_are_on_disk_while_the_run_goes_on(run):
    writer = MetricWriter(run, flush_every=0.0)
    writer.metrics(5, 1, {"loss": 0.25, "lr": 1e-3, "time/env": 0.5})
    writer.event("checkpoint", 5, path="x")
    writer.log("two\nlines", "warning")
    assert read_metrics(run.metrics)[0]["loss"] == 0.25
    assert read_metrics(run.metrics)[0]["lr"] == 1e-3
    assert read_metrics(run.events)[0]["kind"] == "checkpoint"
    assert [line.split()[-1] for line in run.log.read_text().splitlines()] == ["two", "lines"]
    writer.close()


def test_lines_wait_in_memory_until_asked_for(run):
    writer = MetricWriter(run, flush_every=3600.0)
    fill(writer, 0, 5)
    assert run.metrics.stat().st_size == 0
    offsets = writer.offsets()
    assert offsets["metrics"] == run.metrics.stat().st_size > 0
    assert offsets["episodes"] == run.episodes.stat().st_size
    writer.close()


def test_resume_cuts_back_to_the_checkpoint_and_equals_an_uninterrupted_run(run, tmp_path):
    straight = RunDir.create(tmp_path, "E", "dqn", 1, name="straight")
    writer = MetricWriter(straight)
    fill(writer, 0, 50)
    writer.close()

    writer = MetricWriter(run)
    fill(writer, 0, 20)
    offsets = writer.offsets()
    fill(writer, 20, 37)
    writer.log("kept")
    writer.flush()
    with open(run.metrics, "ab") as file:
        file.write(b'{"step": 37, "upd')  # torn by a kill

    again = MetricWriter(run)
    assert again.truncate(json.loads(json.dumps(offsets))) == []
    fill(again, 20, 50)
    again.close()

    def plain(rows):
        return [without_wall_clock(r) for r in rows]

    assert plain(read_metrics(run.metrics)) == plain(read_metrics(straight.metrics))
    assert plain(episodes_of(run)) == plain(episodes_of(straight))
    assert "kept" in run.log.read_text()
    assert len(run.evals.read_text().splitlines()) == 1  # one header


def test_the_age_of_a_run_goes_on(run):
    now = [500.0]
    writer = MetricWriter(run, seconds=40.0, clock=lambda: now[0])
    now[0] += 2.5
    writer.metrics(1, 1, {})
    assert writer.seconds == 42.5
    writer.close()
    assert read_metrics(run.metrics)[-1]["seconds"] == 42.5


def test_truncate_never_pads_a_file_that_lost_lines(run):
    writer = MetricWriter(run)
    fill(writer, 0, 3)
    size = writer.offsets()["metrics"]
    warnings = writer.truncate({"metrics": size + 100, "episodes": 0, "evals": 0})
    writer.close()
    assert len(warnings) == 1
    assert "metrics.jsonl" in warnings[0]
    assert run.metrics.stat().st_size == size
    assert run.episodes.read_text().startswith("step,slot,score")  # the header came back
    assert len(run.episodes.read_text().splitlines()) == 1


def test_a_torn_line_is_dropped_when_the_file_is_opened_again(run):
    run.metrics.write_bytes(b'{"step":1}\n' + b"x" * 200_000)
    writer = MetricWriter(run)
    writer.metrics(2, 0, {})
    writer.close()
    assert [m["step"] for m in read_metrics(run.metrics)] == [1, 2]


def test_values_of_all_kinds_become_strict_json(run):
    writer = MetricWriter(run)
    values = {
        "tensor": torch.tensor(0.5),
        "numpy": np.float32(0.25),
        "integer": np.int64(3),
        "nan": float("nan"),
        "inf": torch.tensor(math.inf),
        "text": "a,b\n",
    }
    writer.metrics(1, 2, values)
    writer.close()
    row = json.loads(run.metrics.read_text(), parse_constant=lambda name: pytest.fail(name))
    got = {k: row[k] for k in values}
    assert got == {
        "tensor": 0.5, "numpy": 0.25, "integer": 3, "nan": None, "inf": None, "text": "a,b\n",
    }  # fmt: skip


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_numbers_come_back_bit_equal(tmp_path_factory, value):
    run = RunDir.create(tmp_path_factory.mktemp("r"), "E", "a", 1, name="run")
    writer = MetricWriter(run)
    writer.metrics(1, 1, {"x": value})
    writer.close()
    assert read_metrics(run.metrics)[0]["x"].hex() == value.hex()


def test_evaluations_are_one_row_each(run):
    writer = MetricWriter(run)
    facts = writer.evaluation(100, 7, [1.0, 2.0, 6.0], [10, 20, 30], checkpoint="best")
    assert writer.evaluation(200, 9, [4.0], [10])["std"] == 0.0
    writer.close()
    assert facts["mean"] == 3.0
    assert facts["std"] == pytest.approx(np.std([1, 2, 6], ddof=1))
    with open(run.evals, newline="") as file:
        row, _ = csv.DictReader(file)
    assert row["checkpoint"] == "best"
    assert (row["episodes"], row["median"], row["length"]) == ("3", "2.0", "20.0")


RULES = {"protocol": "saber*", "protocol_hash": "0123456789ab"}
OLD_HEAD = "step,updates,checkpoint,episodes,mean,std,median,min,max,length,seconds\n"


def test_the_rules_of_a_game_are_stored_with_its_scores(run):
    for rules in (RULES, {}):
        writer = MetricWriter(run, rules=rules)
        writer.evaluation(100, 7, [1.0], [10])
        writer.close()
    with open(run.evals, newline="") as file:
        atari, other = csv.DictReader(file)
    assert {k: atari[k] for k in RULES} == RULES
    assert {k: other[k] for k in RULES} == {k: "" for k in RULES}


def test_a_file_from_before_the_rules_goes_on_as_it_began(run):
    old = OLD_HEAD + "50,3,,1,2.0,0.0,2.0,2.0,2.0,9.0,0.1\n"
    run.evals.write_text(old)
    writer = MetricWriter(run, rules=RULES)
    assert writer.truncate({"evals": len(old)}) == []
    writer.evaluation(100, 7, [1.0], [10], seconds=0.5)
    writer.close()
    assert run.evals.read_text() == old + "100,7,,1,1.0,0.0,1.0,1.0,1.0,10.0,0.5\n"
    again = MetricWriter(run, rules=RULES)
    again.truncate({})  # back to the start: the head is written anew
    again.evaluation(100, 7, [1.0], [10])
    again.close()
    with open(run.evals, newline="") as file:
        (row,) = csv.DictReader(file)
    assert row["protocol"] == "saber*" and row["mean"] == "1.0"


def test_the_episode_file_can_be_put_elsewhere(run, tmp_path):
    place = tmp_path / "mine.csv"
    writer = MetricWriter(run, episodes_path=place)
    writer.episode(3, EpisodeEnd(0, 1.5, 10, "terminated"))
    writer.close()
    assert place.read_text().splitlines()[1].startswith("3,0,1.5,10,terminated")
    assert not run.episodes.exists()


def test_a_full_disk_keeps_lines_in_memory_and_training_alive(run):
    writer = MetricWriter(run, flush_every=3600)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    writer.metrics(1, 1, {"text": "x" * 4_000_000})
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, hard))
    try:
        writer.flush()
        assert "metrics.jsonl" in writer.problems[0]
        with pytest.raises(LudusError):
            writer.offsets()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert run.metrics.stat().st_size == 0
    writer.metrics(2, 1, {})
    writer.close()
    assert [m["step"] for m in read_metrics(run.metrics)] == [1, 2]


def test_wall_clock_fields_follow_one_rule():
    clock = ["time", "seconds", "steps_per_second", "performance/steps_per_second", "time/env"]
    assert all(is_wall_clock(name) for name in clock)
    assert not any(is_wall_clock(name) for name in ["loss", "performance/return", "steps", "timer"])
