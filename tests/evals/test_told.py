"""What `ludus eval` says of how its scores were made: in print, in JSON and in the help."""

from __future__ import annotations

from tests.cli.conftest import call


def test_random_actions_are_told_with_the_score(finished):
    """A score with random actions must not read as one without."""
    words = ("eval", finished, "--episodes", "2", "--no-video")
    assert "epsilon" not in call(*words).out
    assert ", epsilon 0.25" in call(*words, "--epsilon", "0.25").out
