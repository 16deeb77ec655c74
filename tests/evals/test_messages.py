"""What `ludus eval` says of how its scores were made: in print, in JSON and in the help."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ludus.evals.agent import load_agent
from tests.cli.conftest import call

PAGE = (Path(__file__).parents[2] / "docs" / "evaluation.md").read_text(encoding="utf-8")


def test_random_actions_are_reported_with_the_score(finished):
    """A score with random actions must not read as one without."""
    words = ("eval", finished, "--episodes", "2", "--no-video")
    assert "epsilon" not in call(*words).out
    assert ", epsilon 0.25" in call(*words, "--epsilon", "0.25").out


def test_an_evaluation_is_called_what_it_is(finished):
    result = load_agent(finished).evaluate(2, epsilon=0.1).as_dict()
    assert result["evaluation"] == result["label"] == "epsilon0.1"


@pytest.mark.parametrize("verb", ["eval", "play", "record"])
def test_the_default_seed_is_reported(finished, verb):
    agent = load_agent(finished)
    assert agent.evaluate(1).settings["seed"] == 10_000 + agent.cfg.run.seed
    found = re.search(r"--seed.*?--", " ".join(call(verb, "--help").out.split()))
    assert found is not None and "10000 + the run's seed" in found[0]
    assert "10,000 + `run.seed`" in PAGE


def test_the_interval_says_how_it_was_found(finished):
    words = ("eval", finished, "--no-video", "--episodes")
    assert "95 % bootstrap interval" in call(*words, "5").out
    assert "interval" not in call(*words, "1").out, "one episode has none"
    assert "`bootstrap_interval`" in PAGE


@pytest.mark.parametrize("part", ["play", "film"])
def test_an_interrupt_says_what_was_kept(finished, tmp_path, monkeypatch, part):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    where = "ludus.evals.agent.evaluate_policy" if part == "play" else "ludus.evals.film.record"
    monkeypatch.setattr(where, interrupted)
    monkeypatch.setattr("ludus.evals.film.video_installed", lambda: True)
    answer = call("eval", finished, "--episodes", "2", "--out", tmp_path)
    assert answer.code == 130
    kept = list(tmp_path.glob("*.json"))
    if part == "play":
        assert "before the last episode, so no score was kept" in answer.err and not kept
    else:
        assert "the scores are kept" in answer.err and kept
