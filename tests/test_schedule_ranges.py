"""Schedules are checked before a run exists."""

from __future__ import annotations

import multiprocessing

import pytest

from ludus import api
from ludus.errors import LudusError
from ludus.settings.resolve import Request, resolve


@pytest.mark.parametrize(
    ("algo", "setting"),
    [
        ("dqn", "lr=-1"),
        ("dqn", "lr=1e-3->-1"),
        ("dqn", "algo.epsilon=2"),
        ("dqn", "algo.epsilon=1->2"),
        ("dqn", "algo.epsilon=1->0.1@-5"),
        ("dqn", "algo.epsilon=1->0.1@0"),
        ("dqn", "algo.epsilon=1->0.1@150%"),
        ("prioritized-dqn", "replay.beta=1.5"),
        ("ppo", "clip=-1"),
    ],
)
def test_values_out_of_range_are_refused(algo, setting) -> None:
    with pytest.raises(LudusError) as caught:
        resolve(Request(algo, "CartPole-v1", (setting,), environ={}))
    assert caught.value.code in ("E102", "E103") and caught.value.exit_code == 2


def test_training_inside_a_worker_that_imports_the_script_is_refused(monkeypatch) -> None:
    monkeypatch.setattr(multiprocessing.current_process(), "_inheriting", True, raising=False)
    with pytest.raises(LudusError, match="__main__"):
        api.train(api.config("dqn", "CartPole-v1", steps=10))
