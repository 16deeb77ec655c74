"""The training return: whole episodes only, and a best that needs a full window of them."""

from __future__ import annotations

import csv

import pytest

from ludus.run.recording.statistics import Scores
from ludus.track.checkpoint.reader import load
from ludus.track.metrics.writer import read_metrics
from ludus.types import EpisodeEnd
from tests.contract.tiny import run, tiny


def episode(score: float, end: str = "terminated", length: int | None = None) -> EpisodeEnd:
    return EpisodeEnd(0, score, int(abs(score)) if length is None else length, end)


@pytest.mark.accept(138)
def test_best_needs_a_full_window_of_real_episodes() -> None:
    scores = Scores(window=3)
    seen = []
    for score in (-5, -9, -1, -3, -2, -2, -6):
        scores.add(episode(score))
        seen.append(scores.improved())
    # Means of three: none, none, -5, -4.33, -2, -2.33, -3.33
    assert seen == [False, False, True, True, True, False, False] and scores.best == -2


@pytest.mark.accept(138)
@pytest.mark.parametrize("end", ["terminated", "truncated"])
def test_episodes_cut_by_a_checkpoint_count_for_nothing(end) -> None:
    scores = Scores(window=2)
    scores.add(episode(1, end))
    for _ in range(5):
        scores.add(episode(1000, "checkpoint"))
    assert not scores.improved() and scores.mean == 1 and scores.episodes == 1
    scores.add(episode(3, end))
    assert scores.improved() and scores.best == 2 == scores.mean == scores.mean_length


def test_state_comes_back() -> None:
    scores, again = Scores(window=3), Scores(window=3)
    assert scores.mean is None and scores.mean_length is None
    for score in (1, 2, 3, 4):
        scores.add(episode(score))
    scores.improved()
    again.load(scores.state())
    assert again.state() == scores.state() and again.mean == 3 and again.best == 3
    again.add(episode(10))
    assert list(again.scores) == [3, 4, 10]


@pytest.mark.accept(138)
def test_best_of_a_run(tmp_path) -> None:
    """Barriers cut an episode in every slot, and none of them enters the score."""
    settings = ("steps=1000", "checkpoint_every=100", "best_window=4", "keep=2")
    path = run(tiny("dqn", "CartPole-v1", *settings), tmp_path).path
    rows = list(csv.DictReader((path / "episodes.csv").open()))
    cut = [r for r in rows if r["end"] == "checkpoint"]
    whole = [float(r["score"]) for r in rows if r["end"] != "checkpoint"]
    last = load(path)
    assert len(cut) >= 10 and last.state["scores"]["episodes"] == len(whole)
    assert last.state["scores"]["scores"] == whole[-4:]
    means = [sum(whole[i : i + 4]) / 4 for i in range(len(whole) - 3)]
    result = [e for e in read_metrics(path / "events.jsonl") if e["kind"] == "best"]
    assert result[-1]["score"] == last.state["scores"]["best"] and result[-1]["score"] in means
    assert load(path, "best").step == result[-1]["step"]
    none = run(tiny("dqn", "CartPole-v1", "steps=600", "best_window=500"), tmp_path).path
    assert not (none / "checkpoints" / "best").exists()
    assert all(e["kind"] != "best" for e in read_metrics(none / "events.jsonl"))


def test_a_score_does_not_freeze_when_every_episode_is_cut() -> None:
    scores = Scores(window=3)
    scores.barrier(0)
    scores.add(episode(20))
    for number in (1, 2):
        scores.barrier(number)
        assert scores.mean == 20, "an episode ended in this interval or in the one before"
        scores.barrier(number)  # once more, as a resumed run does
        for _ in range(2):
            scores.add(episode(5, "checkpoint", length=40))
    scores.barrier(3)
    assert scores.mean is None and scores.mean_length is None and not scores.improved()
    assert scores.cut == 4 and scores.episodes == 1
    again = Scores(window=3)
    again.load(scores.state())
    again.barrier(3)
    assert again.state() == scores.state() and again.mean is None
    again.add(episode(30))
    assert again.mean == 25


def test_checkpoints_in_quick_succession_leave_the_score_alone() -> None:
    """No episode could have ended meanwhile: whole ones are longer."""
    scores = Scores(window=3)
    scores.barrier(0)
    scores.add(episode(20))
    for number in range(1, 6):
        scores.add(episode(5, "checkpoint", length=19))
        scores.barrier(number)
    assert scores.mean == 20


def test_scores_of_an_older_checkpoint_are_understood() -> None:
    scores = Scores(window=3)
    scores.load({"scores": [1.0], "lengths": [4], "episodes": 7, "best": None})
    assert scores.mean == 1 and scores.cut == 0


def test_a_run_that_cuts_every_episode_says_so(tmp_path, capsys) -> None:
    settings = ("steps=600", "checkpoint_every=100", "log.every=100", "env.args.length=300")
    cfg = tiny("dqn", "ludus/Identity-v0", *settings)
    done = run(cfg, tmp_path, quiet=False)
    lines = read_metrics(done.path / "metrics.jsonl")
    assert done.score is None and lines[-1]["performance/score"] is None
    assert lines[-1]["performance/cut_episodes"] >= 10
    result = capsys.readouterr().out
    assert "no whole episode" in result and "cut by checkpoints" in result
