"""Scores and epsilons by actor: at most eight are shown, the least exploring one among them."""

from __future__ import annotations

import pytest

from ludus.run.actor_scores import SHOWN, ActorScores
from ludus.types import EpisodeEnd


def test_scores_and_epsilons_are_told_by_actor():
    each = ActorScores(2, 3)
    ended = (0, 10.0, "terminated"), (2, 20.0, "truncated"), (5, 4.0, "terminated")
    for slot, score, end in (*ended, (4, 99.0, "checkpoint")):
        each.add(EpisodeEnd(slot, score, 5, end, {"epsilon": 0.4 ** (1 + slot)}))
    told = each.metrics()
    assert told["score_0"] == 15.0 and told["score_1"] == 4.0, "what a checkpoint cut is no score"
    assert told["epsilon_0"] == pytest.approx(0.4**3)
    assert told["epsilon_1"] == pytest.approx(0.4**6)


def test_a_lone_actor_is_the_run():
    each = ActorScores(1, 8)
    each.add(EpisodeEnd(3, 1.0, 5, "terminated"))
    assert each.metrics() == {}


@pytest.mark.parametrize("least", [0, 7, 50, 99])
def test_eight_of_many_are_shown_and_the_least_exploring_is_one(least):
    each = ActorScores(100, 1)
    for actor in range(100):
        epsilon = 0.001 if actor == least else 0.1
        each.add(EpisodeEnd(actor, 1.0, 5, "terminated", {"epsilon": epsilon}))
    shown = each.shown()
    assert len(shown) == SHOWN == len(set(shown)) and least in shown
    assert sum(name.startswith("score_") for name in each.metrics()) == SHOWN
