"""Aggregates against golden numbers made by rliable itself (tools/record_rliable_golden.py), and
against slow code written as the definitions read."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from ludus.stats import aggregates
from ludus.stats.aggregates import (
    bootstrap_improvement,
    bootstrap_profile,
    iqm,
    mean,
    median,
    optimality_gap,
    performance_profile,
    probability_of_improvement,
    stratified_bootstrap,
)

GOLDEN = json.loads((Path(__file__).parents[1] / "data" / "rliable_golden.json").read_text())
NAMES = ("made_up", "ties", "own_test", "atari100k")
CASES = [(case, agent) for case in NAMES for agent in GOLDEN[case]["scores"]]
STATISTICS = {"mean": mean, "median": median, "iqm": iqm, "optimality_gap": optimality_gap}


@pytest.mark.parametrize(("case", "agent"), CASES)
def test_point_estimates_equal_rliable(case, agent):
    scores = GOLDEN[case]["scores"][agent]
    for name, statistic in STATISTICS.items():
        assert statistic(scores) == pytest.approx(GOLDEN[case][agent][name], abs=1e-6), name
    profile = performance_profile(scores, GOLDEN["taus"])
    np.testing.assert_allclose(profile, GOLDEN[case][agent]["profile"], atol=1e-6)


@pytest.mark.parametrize("case", NAMES)
def test_improvement_equals_rliable(case):
    x, y = GOLDEN[case]["scores"].values()
    assert probability_of_improvement(x, y) == pytest.approx(GOLDEN[case]["improvement"], abs=1e-6)


@pytest.mark.parametrize(("case", "agent"), [c for c in CASES if "intervals" in GOLDEN[c[0]][c[1]]])
def test_interval_ends_equal_rliable_to_one_percent(case, agent):
    scores = GOLDEN[case]["scores"][agent]
    for name, statistic in STATISTICS.items():
        ends = stratified_bootstrap(scores, statistic, resamples=50_000)
        np.testing.assert_allclose(ends, GOLDEN[case][agent]["intervals"][name], rtol=0.01)


def test_improvement_interval_equals_rliable_to_one_percent():
    x, y = GOLDEN["atari100k"]["scores"].values()
    ends = bootstrap_improvement(x, y, resamples=50_000)
    np.testing.assert_allclose(ends, GOLDEN["atari100k"]["improvement_interval"], rtol=0.01)


def test_improvement_interval_of_few_runs_equals_rliable_to_one_pair():
    """A probability over so few pairs of runs moves in steps of 1.7 % and cannot meet 1 %: the
    97.5 % point lies within the noise of 50k resamples of such a step (97.41 % of 2 million)."""
    x, y = map(np.array, GOLDEN["made_up"]["scores"].values())
    ends = bootstrap_improvement(x, y, resamples=50_000)
    step = 1 / (len(x) * len(y) * x.shape[1])
    wanted = GOLDEN["made_up"]["improvement_interval"]
    np.testing.assert_allclose(ends, wanted, rtol=0, atol=step * 1.001)


def test_counting_draws_equals_drawing_scores():
    """The product of matrices gives what comparing every pair of every resample gives."""
    rng = np.random.default_rng(5)
    x, y, columns = rng.normal(size=(4, 3)), rng.normal(0.3, 1, size=(6, 3)), np.arange(3)
    values = []
    for _ in range(4000):
        a, b = x[rng.integers(4, size=(4, 3)), columns], y[rng.integers(6, size=(6, 3)), columns]
        values.append((a[:, None] > b[None]).mean())
    quick = aggregates.resampled_wins((x[:, None] > y[None]).astype(float), resamples=4000, seed=0)
    shares = np.linspace(0.05, 0.95, 10)
    np.testing.assert_allclose(
        np.quantile(quick, shares), np.quantile(values, shares), rtol=0, atol=0.03
    )


def slow_iqm(scores):
    flat = sorted(float(x) for row in scores for x in row)
    cut = int(0.25 * len(flat))
    kept = flat[cut : len(flat) - cut]
    return sum(kept) / len(kept)


def slow_improvement(x, y):
    total = 0.0
    for task in range(x.shape[1]):
        wins = [float(a > b) + 0.5 * float(a == b) for a in x[:, task] for b in y[:, task]]
        total += sum(wins) / len(wins)
    return total / x.shape[1]


@pytest.mark.parametrize("runs", [1, 2, 3, 5, 6, 7])
@pytest.mark.parametrize("tasks", [1, 2, 5])
def test_every_size_equals_the_definition(runs, tasks):
    rng = np.random.default_rng(runs * 10 + tasks)
    x, y = rng.integers(0, 6, (runs, tasks)) / 2, rng.integers(0, 6, (runs + 1, tasks)) / 2
    assert iqm(x) == pytest.approx(slow_iqm(x))
    assert optimality_gap(x, 2.0) == pytest.approx(2 - np.minimum(x, 2).sum() / x.size)
    assert probability_of_improvement(x, y) == pytest.approx(slow_improvement(x, y))
    assert probability_of_improvement(x, y) + probability_of_improvement(y, x) == pytest.approx(1)


def test_what_outliers_do():
    calm, wild = [[1.0, 1, 1, 1]], [[1.0, 1, 1, 1000]]
    assert iqm(wild) == iqm(calm) == 1 and median(wild) == 1 and mean(wild) > 200
    assert optimality_gap(wild) == 0 and optimality_gap([[0.0, 0.5, 2, 3]]) == 0.375


def test_a_list_is_the_runs_of_one_task():
    assert mean([1.0, 2, 6]) == 3 and iqm([0.0, 1, 2, 100]) == 1.5
    assert probability_of_improvement([2.0, 3], [1, 2]) == 0.875


def test_profile_is_of_scores_above():
    np.testing.assert_array_equal(
        performance_profile([[0.0, 1], [1, 2]], [-1, 0, 1, 2]), [1, 0.75, 0.25, 0]
    )
    assert performance_profile([1.0], []).shape == (0,)


def test_runs_are_drawn_within_their_task():
    """Tasks of one score each cannot vary, whatever the difference between them."""
    scores = np.tile([[1.0, 100.0]], (5, 1))
    assert stratified_bootstrap(scores, mean, resamples=200) == (50.5, 50.5)
    low, high = bootstrap_profile(scores, [50.0], resamples=200)
    assert low == high == 0.5


def test_intervals_repeat_and_depend_on_the_seed():
    rng = np.random.default_rng(3)
    scores = rng.normal(size=(5, 4))
    first = stratified_bootstrap(scores, iqm)
    assert first == stratified_bootstrap(scores, iqm) != stratified_bootstrap(scores, iqm, seed=1)
    wide, narrow = (stratified_bootstrap(scores, mean, confidence=c) for c in (0.99, 0.5))
    assert wide[0] < narrow[0] < mean(scores) < narrow[1] < wide[1]
    own = stratified_bootstrap(scores, lambda s: float(s.mean(0).mean()))
    np.testing.assert_allclose(own, stratified_bootstrap(scores, mean))


def test_many_resamples_come_in_chunks(monkeypatch):
    scores = np.random.default_rng(3).normal(size=(5, 4))
    whole = stratified_bootstrap(scores, iqm, resamples=1001)
    monkeypatch.setattr(aggregates, "_CHUNK", 20 * 100)
    cut = stratified_bootstrap(scores, iqm, resamples=1001)
    np.testing.assert_allclose(cut, whole, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "bad", [[], [[[1.0]]], [[1.0, float("nan")]], [float("inf")], [[]]], ids=str
)
def test_what_is_no_matrix_of_scores_is_refused(bad):
    with pytest.raises(ValueError, match="scores must"):
        iqm(bad)


def test_what_cannot_be_compared_is_refused():
    with pytest.raises(ValueError, match="2 tasks and y has 1"):
        probability_of_improvement([[1.0, 2]], [1.0])
    with pytest.raises(ValueError, match="between 0 and 1"):
        stratified_bootstrap([1.0, 2], mean, confidence=95)
    with pytest.raises(ValueError, match="at least one"):
        stratified_bootstrap([1.0, 2], mean, resamples=0)
