"""Scores and epsilons by actor: at most eight are shown, the least exploring one among them."""

from __future__ import annotations

import json

import pytest

from ludus.run.recording.statistics import SHOWN, ActorScores
from ludus.track.metrics.writer import read_metrics
from ludus.types import EpisodeEnd
from tests.contract.tiny import run, tiny


def test_scores_and_epsilons_are_reported_by_actor():
    each = ActorScores(2, 3)
    ended = (0, 10.0, "terminated"), (2, 20.0, "truncated"), (5, 4.0, "terminated")
    for slot, score, end in (*ended, (4, 99.0, "checkpoint")):
        each.add(EpisodeEnd(slot, score, 5, end, {"epsilon": 0.4 ** (1 + slot)}))
    result = each.metrics()
    assert result["score_0"] == 15.0 and result["score_1"] == 4.0, (
        "what a checkpoint cut is no score"
    )
    assert result["epsilon_0"] == pytest.approx(0.4**3)
    assert result["epsilon_1"] == pytest.approx(0.4**6)


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


def test_the_record_has_all_of_them():
    """Also those that are not shown; small, and nothing where every one is shown anyway."""
    each = ActorScores(100, 1)
    for actor in range(100):
        if actor != 3:
            each.add(EpisodeEnd(actor, actor / 3, 5, "terminated", {"epsilon": 0.4 ** (1 + actor)}))
    result = each.record()
    assert result["scores"][:5] == [0.0, 0.333333, 0.666667, None, 1.33333]
    assert result["epsilons"][99] == pytest.approx(0.4**100, rel=1e-5)
    assert all(len(values) == 100 for values in result.values())
    assert len(json.dumps(result)) < 3000
    few = ActorScores(8, 1)
    few.add(EpisodeEnd(0, 1.0, 5, "terminated"))
    assert few.record() == {} and few.metrics() == {"score_0": 1.0}


def test_none_has_an_epsilon_of_its_own():
    each = ActorScores(9, 1)
    each.add(EpisodeEnd(8, 1.0, 5, "terminated"))
    assert each.record() == {"scores": [None] * 8 + [1.0]}


def test_metrics_jsonl_has_every_actor_and_tensorboard_eight(tmp_path):
    words = ("actors=10", "env.num=1", "steps=4000", "log.every=1000")
    path = run(tiny("dqn", "CartPole-v1", *words, "log.tensorboard=true"), tmp_path).path
    line = read_metrics(path / "metrics.jsonl")[-1]
    assert len(line["actors/scores"]) == 10 and None not in line["actors/scores"]
    one_by_one = {name for name in line if name.startswith("actors/score_")}
    assert len(one_by_one) == SHOWN
    assert line["actors/score_0"] == pytest.approx(line["actors/scores"][0], rel=1e-5)
    (events,) = (path / "tb").glob("events*")
    assert b"actors/score_0" in events.read_bytes()
    assert b"actors/scores" not in events.read_bytes()
