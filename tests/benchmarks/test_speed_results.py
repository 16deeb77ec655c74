"""The recorded comparisons of speed: ours against comparable projects, in turns on the same cores.

Measured by benchmarks/*_peers.py; the ratios are computed here again from every round.
"""

from __future__ import annotations

import json
from statistics import median

import pytest

from tests.benchmarks.conftest import FOLDER


def recorded(name: str):
    return json.loads((FOLDER / "results" / name).read_text())


def in_turns(ours: list[float], theirs: list[float]) -> float:
    assert len(ours) == len(theirs) >= 3
    return median(a / b for a, b in zip(ours, theirs, strict=True))


@pytest.mark.accept(93)
@pytest.mark.parametrize("task", ["ppo", "a2c", "dqn", "sac"])
def test_small_tasks_take_more_steps_a_second_than_stable_baselines3(task):
    """dqn makes one update per four steps and sac one per step, so updates a second, too."""
    result = recorded("train_peers.json")
    row = result["tasks"][task]
    assert result["threads"] == 1 and result["cores"] >= 1
    assert in_turns(row["ludus"], row["sb3"]) == pytest.approx(row["median_ratio"])
    assert row["median_ratio"] > 1


@pytest.mark.accept(93)
@pytest.mark.parametrize("task", ["ppo", "dqn"])
def test_pong_takes_more_steps_a_second_than_stable_baselines3(task):
    row = recorded("atari_peers.json")["tasks"][task]
    for precision, rates in row["ludus"].items():
        assert in_turns(rates, row["sb3"]) > 1, precision


@pytest.mark.accept(93)
@pytest.mark.parametrize("task", ["pong", "cartpole"])
def test_impala_takes_more_steps_a_second_than_rllib(task):
    rates = recorded("impala_peers.json")["tasks"][task]["steps_per_second"]
    for way in ("inline fp32", "processes"):
        assert in_turns(rates[way], rates["rllib"]) > 1, way


@pytest.mark.accept(93)
@pytest.mark.parametrize("name", ["replay_peers.json", "atari_replay_peers.json"])
def test_a_replay_makes_more_cycles_a_second_than_cpprb_and_tianshou(name):
    """A cycle: add 64 rows, sample a batch of 512, write its priorities."""
    cycles = recorded(name)["compare"]["cycles_per_second"]
    peers = [rate for peer, rate in cycles.items() if peer.startswith(("cpprb", "tianshou"))]
    assert len(peers) >= 2 and cycles["ludus"] > max(peers)
