"""What a bench shows while it goes, and the table it ends with."""

from __future__ import annotations

import io
import json
import sys

import pytest

from ludus.bench import progress
from ludus.bench.matrix import Cell, Matrix
from ludus.bench.progress import Lines, Live, Quiet, counts, make_progress, outcome
from ludus.bench.results import rows_of, write_results
from tests.bench.tables import table


@pytest.fixture
def matrix(tmp_path):
    cells = [Cell("dqn", "CartPole-v1", seed, f"s{seed}") for seed in (1, 2, 3, 4)]
    matrix = Matrix(tmp_path / "night", cells=cells)
    done, under_way, bad, _ = cells
    done.state, done.score, done.scored_by, done.seconds = "finished", 475.25, "evaluation", 61.0
    under_way.state = "running"
    bad.state, bad.error = "failed", "error[E201] unknown environment\n  fix: another one"
    run = matrix.run_dir(under_way)
    run.path.mkdir(parents=True)
    result = {
        "state": "stopped",
        "step": 1500,
        "steps": 6000,
        "score": 9.5,
        "steps_per_second": 700,
    }
    run.status.write_text(json.dumps(result))
    return matrix


def test_in_words(matrix):
    assert counts(matrix.cells) == "1 of 4 finished, 1 running, 1 failed"
    done, under_way, bad, new = matrix.cells
    assert outcome(done) == "finished, score 475.2 (evaluation), 1m01s"
    assert outcome(bad) == "failed: error[E201] unknown environment"
    under_way.step = 1500
    assert (outcome(under_way), outcome(new)) == ("running at step 1.5k", "waiting")
    assert str(Cell("dqn", "X", 3, "r", ["lr=1"])) == "dqn on X, lr=1, seed 3"


def test_lines_where_there_is_no_terminal(matrix, monkeypatch):
    monkeypatch.setattr(progress, "LINES_SECONDS", 0.0)
    out = io.StringIO()
    lines = Lines(matrix, matrix.cells, out)
    done, under_way, bad, _ = matrix.cells
    under_way.attempts = 2
    lines.started(under_way)
    lines.update([under_way])
    lines.ended(bad)
    lines.close()
    said = [line.split(" ", 2)[2] for line in out.getvalue().splitlines()]
    assert said[0] == "dqn on CartPole-v1, seed 2: started (attempt 2)"
    assert said[1] == "dqn on CartPole-v1, seed 2: step 1.5k / 6k, training 9.5"
    assert said[2].startswith("dqn on CartPole-v1, seed 3: failed: error[E201]")
    assert "1 of 4 finished" in said[2]
    quiet = Quiet(matrix, matrix.cells, out := io.StringIO())
    for cell in (done, bad):
        quiet.started(cell)
        quiet.ended(cell)
    quiet.update([under_way])
    assert out.getvalue().count("\n") == 1 and "E201" in out.getvalue()


def test_a_table_on_a_terminal(matrix, monkeypatch):
    out = io.StringIO()
    live = Live(matrix, matrix.cells, out)
    live.update([matrix.cells[1]])
    live.update([])  # at most once a second
    live.ended(matrix.cells[0])
    live.close()
    assert "seed 1: finished, score 475.2" in out.getvalue()
    from rich.console import Console

    drawn = io.StringIO()
    Console(file=drawn, width=120).print(live._table([matrix.cells[1]]))
    for word in ("night", "1 of 4 finished", "CartPole-v1", "1.5k / 6k", "9.5", "700"):
        assert word in drawn.getvalue()
    assert type(make_progress(matrix, matrix.cells, quiet=True)) is Quiet
    assert type(make_progress(matrix, matrix.cells, quiet=False)) is Lines
    monkeypatch.setattr(out, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stdout", out)
    shown = make_progress(matrix, matrix.cells, quiet=False)
    shown.close()
    assert type(shown) is Live


def test_one_run_has_no_interval_and_an_atari_game_a_human():
    cell = Cell("dqn", "ALE/Pong-v5", 1, "x", state="finished", score=14.6, scored_by="training")
    (row,) = rows_of([cell])
    assert (row.iqm, row.low, row.high, row.std) == (14.6, None, None, None)
    assert row.human == pytest.approx(1.0, abs=0.01)
    (none,) = rows_of([Cell("dqn", "ALE/Pong-v5", 1, "x")])
    assert none.mean is None and none.iqm is None and none.scored_by == "-"


def test_the_table_at_the_end(matrix):
    for cell, score in zip(matrix.cells[1:3], (400.0, 500.0), strict=True):
        cell.state, cell.score, cell.scored_by = "finished", score, "training"
    (row,) = rows_of(matrix.cells)
    assert (row.finished, row.failed, row.runs, row.seeds) == (3, 0, 4, "1 2 3")
    assert row.mean == pytest.approx((475.25 + 400 + 500) / 3)
    assert row.iqm == row.mean and row.low < row.mean < row.high, "three runs lose none"
    assert row.human is None
    assert row.std == pytest.approx(52.08187, rel=1e-5)
    assert row.scored_by == "evaluation or training", "what should not be mixed is seen"
    matrix.folder.mkdir(exist_ok=True)
    (read,) = table(write_results(matrix))
    assert read["scores"] == "475.25 400.0 500.0" and float(read["mean"]) == pytest.approx(row.mean)
    assert read["env"] == "CartPole-v1" and read["algo"] == "dqn" and read["runs"] == "4"
