"""Schedules as the algorithm sees them: the tensors handed out over a run."""

from __future__ import annotations

import pytest
import torch

from ludus.contract import NStep, Plan, Prioritized, Values
from ludus.replay.store import build_store
from ludus.run.loop import Every
from ludus.schedules import ramp
from ludus.track.metrics.writer import read_metrics
from tests.contract.tiny import run, tiny
from tests.learn.toy import SPEC


def plan(**schedules) -> Plan:
    ramps = {name: ramp(text) for name, text in schedules.items()}
    return Plan(NStep(1), Prioritized(beta=ramp("0.4->1")), 4, capacity=100, schedules=ramps)


@pytest.mark.accept(100)
def test_linear_schedules_over_steps_and_over_the_run() -> None:
    values = Values(plan(epsilon="1->0.1@50", clip="0.2->0", lr="3e-4"), horizon=200)
    for step, epsilon, clip in ((0, 1, 0.2), (25, 0.55, 0.15 + 0.025), (50, 0.1, 0.15),
                                (100, 0.1, 0.1), (200, 0.1, 0), (999, 0.1, 0)):  # fmt: skip
        got = values.at(step)
        assert float(got["epsilon"]) == pytest.approx(epsilon)
        assert float(got["clip"]) == pytest.approx(clip)
        assert float(got["lr"]) == pytest.approx(3e-4)


def test_tensors_are_written_in_place() -> None:
    """Compiled code and other threads hold on to them."""
    values = Values(plan(epsilon="1->0@10"), horizon=10)
    first = values.at(0)
    held = first["epsilon"]
    again = values.at(5)
    assert again["epsilon"] is held and float(held) == 0.5 and held.dim() == 0


def test_warming_lasts_until_the_warm_up_is_over() -> None:
    values = Values(Plan(NStep(1), Prioritized(), 4, capacity=100, warmup=20), horizon=100)
    assert [float(values.at(s)["warming"]) for s in (0, 19, 20, 21)] == [1, 1, 0, 0]


@pytest.mark.accept(100)
def test_beta_is_annealed_where_sampling_happens() -> None:
    store = build_store(plan(), SPEC, 2, seed=0, horizon=100)
    for steps, beta in ((0, 0.4), (50, 0.7), (100, 1.0), (300, 1.0)):
        store.ratio.steps_inserted = steps
        assert store.beta == pytest.approx(beta)


@pytest.mark.accept(100)
def test_schedules_over_a_run_as_metrics_tell_it(tmp_path) -> None:
    settings = ("steps=400", "log.every=100", "checkpoint_every=400", "lr=1e-3->1e-4^2")
    dqn = tiny("prioritized-dqn", "CartPole-v1", *settings, "algo.epsilon=1->0.2@200")
    for row in read_metrics(run(dqn, tmp_path).path / "metrics.jsonl"):
        done = min(1.0, row["step"] / 400)
        assert row["agent/epsilon"] == pytest.approx(max(0.2, 1 - 0.8 * row["step"] / 200))
        assert row["learner/lr"] == pytest.approx(1e-4 + 9e-4 * (1 - done) ** 2, rel=1e-5)
        assert row["replay/beta"] == pytest.approx(0.4 + 0.6 * done)
    ppo = tiny("ppo", "CartPole-v1", *settings, "algo.clip=0.3->0.1")
    rows = read_metrics(run(ppo, tmp_path).path / "metrics.jsonl")
    assert rows[-1]["agent/clip"] == pytest.approx(0.1)
    assert all(0.1 <= r["agent/clip"] <= 0.3 for r in rows) and rows[0]["agent/clip"] < 0.29


def test_every_fires_once_per_period_however_the_counter_jumps() -> None:
    every = Every(100)
    steps = [0, 99, 100, 101, 350, 399, 400, 1000]
    assert [every.due(s) for s in steps] == [False, False, True, False, True, False, True, True]
    assert not any(Every(None).due(s) for s in steps)


def test_every_depends_on_the_counter_alone() -> None:
    """A run resumed at any step acts where the uninterrupted one does."""
    steps = torch.randint(1, 60, (200,), generator=torch.Generator().manual_seed(0)).cumsum(0)
    whole = Every(100)
    due = [s for s in steps.tolist() if whole.due(s)]
    for start in (17, 60, 133):
        later = Every(100, seen=int(steps[start]))
        assert [s for s in steps[start + 1 :].tolist() if later.due(s)] == [
            s for s in due if s > steps[start]
        ]
