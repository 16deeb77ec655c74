"""Which runs belong together, what their score is, and what a reader is warned of."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from ludus.reporting.curves import group_colours, profile_chart
from ludus.reporting.html import render
from ludus.reporting.page_data import page_data
from ludus.stats import aggregates
from ludus.stats.compare import aggregate, games
from ludus.stats.groups import group_runs
from ludus.stats.references import human_normalized
from ludus.stats.runs import Evaluation, Saved
from ludus.stats.warnings import report_warnings
from ludus.stats.windows import Window
from tests.reporting.conftest import read_all


@pytest.fixture(scope="module")
def run(one):
    return read_all(one)


def like(run, seed=1, **changes):
    """The same run with another seed, score or setting."""
    score = changes.pop("score", 10.0)
    settings = changes.pop("settings", {})
    algo = {**run.config["algo"], "name": changes.get("algo", run.algo), **settings}
    windows = [Window(600, 1.0, score, 1.0, score - 1, score + 1, 100)]
    given = {"windows": windows, "during": [], "config": {**run.config, "algo": algo}}
    name = changes.pop("name", f"{changes.get('algo', run.algo)}-{seed}-{score}")
    return replace(run, name=name, seed=seed, **{**given, **changes})


def test_seeds_are_one_group_and_variants_are_two(run):
    seeds = [like(run, seed=s) for s in (3, 1, 2)]
    (group,) = group_runs(seeds)
    assert group.seeds == [1, 2, 3] and group.label == "dqn"
    variants = [like(run, s, settings={"lr": lr}) for lr in (1e-3, 1e-4) for s in (1, 2)]
    assert [g.label for g in group_runs(variants)] == ["dqn lr=0.001", "dqn lr=0.0001"]


def test_colours_are_those_of_the_algorithm(run):
    alone = group_colours(group_runs([like(run, algo="ppo")]))
    names = ("a3c", "c51", "dqn", "impala", "mine", "ppo")
    many = group_colours(group_runs([like(run, algo=name) for name in names]))
    assert alone["ppo"] == many["ppo"] and len(set(many.values())) == len(names)


def test_the_score_is_of_the_last_weights(run):
    ended = like(run, score=5.0, step=600, saved=Saved(600, 300))
    assert ended.score.source == "training"
    during = Evaluation(600, 7.0, 1.0, 10)
    assert replace(ended, during=[during]).score.mean == 7.0
    last = Evaluation(600, 8.0, 2.0, 100, "saber", protocol="saber")
    best = Evaluation(300, 99.0, 0.0, 100, "saber", checkpoint="best")
    both = replace(ended, during=[during], after=[best, last])
    assert both.score.mean == 8.0 and both.score.source == "eval saber"
    assert replace(ended, after=[best]).score.mean == 5.0
    assert replace(ended, after=[best], windows=[], status={}).score.of_best
    called = Evaluation(600, 9.0, 0.0, 100, checkpoint="best")
    same = replace(ended, saved=Saved(600, 600), after=[called])
    assert same.score.mean == 9.0 and not same.score.of_best, "the last ones anyway"


def test_evaluations_of_one_protocol_that_differ_are_distinguished(run):
    """As `ludus compare` does: the exploration is in the label, not in the protocol."""
    rules = {"protocol": "saber", "protocol_hash": "x"}
    marks = ("saber", "saber-epsilon0.9", "saber", "saber", "saber")
    runs = [
        like(run, seed, manifest=rules, after=[Evaluation(600, 1.0, 0.0, 5, mark, **rules)])
        for seed, mark in enumerate(marks)
    ]
    kinds = {r.score.source for r in runs}
    assert kinds == {"eval saber", "eval saber-epsilon0.9"}
    assert "eval saber-epsilon0.9" in said(runs) and "different ways" not in said(runs[2:])
    data = page_data(runs, Path("a.html"))
    assert [name for name, *_ in data["protocols"]["rules"]] == ["saber"]
    assert "saber-epsilon0.9" in " ".join(data["protocols"]["sources"])


def test_intervals(run):
    (alone,) = group_runs([like(run, score=10.0)])
    assert (alone.interval_over, alone.interval) == ("episodes", None)
    assert alone.half_width == pytest.approx(0.196)
    three = [like(run, s, score=v) for s, v in ((1, 1.0), (2, 2.0), (3, 6.0))]
    (seeds,) = group_runs(three)
    assert seeds.interval_over == "seeds" and seeds.mean == 3.0 and seeds.half_width is None
    assert seeds.interval == aggregates.stratified_bootstrap([1.0, 2.0, 6.0], aggregates.mean)
    lone = Evaluation(600, 7.0, 0.0, 1)
    (episode,) = group_runs([like(run, during=[lone])])
    assert (episode.interval_over, episode.interval, episode.half_width) == ("", None, None)
    few = Evaluation(600, 400.0, 150.0, 9)
    (rough,) = group_runs([replace(like(run), during=[few])])
    assert rough.half_width is None, "1.96 deviations are no interval of so few"


def test_one_seed_has_no_interval_over_seeds(run):
    runs = [
        like(run, algo=algo, env=env, score=score)
        for algo, score in (("dqn", 10.0), ("ppo", 50.0))
        for env in ("ALE/Pong-v5", "ALE/Breakout-v5")
    ]
    data = page_data(runs, Path("report.html"))
    found = data["aggregates"]
    assert {e.interval for row in found.rows for e in row.estimates.values()} == {None}
    assert [i.probability.interval for i in found.improvements] == [None]
    assert not any(line.band for line in data["profile"].lines)
    assert not any("hi" in line for line in data["profile"].data["lines"])
    assert 'class="interval-bar"' not in (text := render(data)) and "No intervals: one run" in text
    twice = render(page_data([*runs, *(replace(r, seed=2) for r in runs)], Path("report.html")))
    assert twice.count('class="interval-bar"') == 4, "of who is better not below three"
    assert "by stratified bootstrap over runs" in twice
    three = [replace(r, seed=seed) for r in runs for seed in (1, 2, 3)]
    assert render(page_data(three, Path("report.html"))).count('class="interval-bar"') == 5


def test_every_interval_says_what_it_is_of(run):
    """compare and results.csv have one of the interquartile mean: two names for two numbers."""
    lone = render(page_data([like(run)], Path("a.html")))
    assert "<br>95 % interval of the mean, normal over episodes" in lone
    runs = [like(run, s, algo=a, score=10.0 + s) for a in ("dqn", "ppo") for s in (1, 2, 3)]
    seeds = render(page_data(runs[:3], Path("a.html")))
    assert "<br>95 % interval of the mean, bootstrap over seeds" in seeds
    several = render(page_data(runs, Path("a.html")))
    assert several.count('95 % interval of the mean, bootstrap over seeds"></i>') == 2, "bars"
    assert "95 % interval of the probability, bootstrap over runs" in several
    assert "and the 95 % interval of the share" in several
    for text in (lone, seeds, several):
        assert all(after[:4] == " of " for after in text.split("95 % interval")[1:])


def test_aggregates_over_environments(run):
    runs = [
        like(run, seed, algo=algo, env=env, score=score + seed)
        for algo, score in (("dqn", 10.0), ("ppo", 50.0))
        for env in ("A-v0", "B-v0")
        for seed in (1, 2, 3)
    ]
    groups = group_runs(runs)
    found = aggregate(groups, ["dqn", "ppo"])
    assert {row.label: row.runs for row in found.rows} == {"dqn": 3, "ppo": 3}
    best = found.improvements[0]
    assert (best.better, best.than, best.probability.value) == ("ppo", "dqn", 1.0)
    assert "lowest run of this report" in found.scale
    tables = {"dqn": [0.0, 1 / 42, 2 / 42], "ppo": [40 / 42, 41 / 42, 1.0]}
    for row in found.rows:
        table = [[v, v] for v in tables[row.label]]
        assert row.estimates["IQM"].value == pytest.approx(aggregates.iqm(table))
        ends = aggregates.stratified_bootstrap(table, aggregates.iqm)
        assert row.estimates["IQM"].interval == pytest.approx(ends)
    profile = profile_chart(found.tables, group_colours(groups))
    assert profile.data["y"] == (0.0, 1.0), "shares"
    assert aggregate(group_runs(runs[:3]), ["dqn"]) is None


def test_a_sweep_is_one_algorithm_and_has_one_order(run):
    rates = {1e-2: 5.0, 1e-3: 20.0, 1e-4: 10.0}
    runs = [like(run, s, settings={"lr": lr}, score=v) for lr, v in rates.items() for s in (1, 2)]
    data = page_data(runs, Path("a.html"))
    assert ("1", "algorithm") in data["summary"] and ("3", "settings") in data["summary"]
    assert data["title"] == "dqn with 3 settings on CartPole-v1"
    best_first = ["dqn lr=0.001", "dqn lr=0.0001", "dqn lr=0.01"]
    assert [row["group"].label for row in data["forests"][0]["rows"]] == best_first
    assert [row.label for row in data["aggregates"].rows] == best_first
    assert [entry.name for entry in data["profile"].legend] == best_first
    plain = page_data([like(run), like(run, algo="ppo")], Path("a.html"))
    assert ("2", "algorithms") in plain["summary"] and plain["title"] == "dqn, ppo on CartPole-v1"
    assert not [noun for _, noun in plain["summary"] if "setting" in noun]


def test_games_are_shown_with_references_of_their_protocol(run):
    pong = {"protocol": "dopamine", "protocol_hash": "abc"}
    runs = [like(run, s, env="ALE/Pong-v5", score=10.0, manifest=pong) for s in (1, 2)]
    (game,) = games(group_runs(runs))
    assert game.rows[0].human == human_normalized("pong", 10.0)
    assert game.random == -20.7 and game.record == 21
    assert game.published and {r.protocol for r in game.published} == {"sticky"}
    mixed = [*runs, like(run, 3, env="ALE/Pong-v5", manifest={"protocol": "dqn-2015"})]
    assert games(group_runs(mixed))[0].published == ()
    assert games(group_runs([run])) == []


def test_references_of_another_kind_of_protocol_are_reported(run):
    """Sticky actions, beside random and human play that was measured with no-op starts."""
    ids = ("ALE/Pong-v5", "ALE/Breakout-v5")
    for protocol, result in (("saber", 1), ("dqn-2015", 0), ("saber*", 1)):
        rules = {"protocol": protocol, "protocol_hash": "x"}
        played = [like(run, s, env=env, manifest=rules) for env in ids for s in range(5)]
        assert said(played).count("normalised by play that was measured otherwise") == result
        assert (
            render(page_data(played, Path("a.html"))).count("by play that was measured otherwise")
            == result
        )


def test_a_bench_that_is_not_complete(run, tmp_path):
    runs = [like(run, s, path=tmp_path / f"r{s}", name=f"r{s}") for s in range(5)]
    cells = [{"run": f"r{s}", "state": "finished"} for s in range(5)]
    (tmp_path / "bench.json").write_text(json.dumps({"cells": cells}))
    assert said(runs) == ""
    cells += [{"run": "r5", "state": "waiting"}, {"run": "r6", "state": "failed"}]
    (tmp_path / "bench.json").write_text(json.dumps({"cells": cells}))
    assert "of 7 runs 1 failed, 1 waiting" in said(runs)


def said(runs):
    groups = group_runs(runs)
    return " ".join(report_warnings(groups, aggregate(groups, sorted({g.label for g in groups}))))


def test_a_seed_used_twice_is_reported_the_same_way_everywhere(run):
    """Header, warning, headline and legend count one seed and two runs."""
    runs = [like(run, 1, name=f"r{i}", score=10.0 + i) for i in range(2)]
    longer = [Window(step, 1.0, 1.0, 1.0, 0.0, 2.0, 100) for step in (300, 600)]
    data = page_data([replace(r, windows=longer) for r in runs], Path("a.html"))
    assert ("2", "runs") in data["summary"] and ("1", "seed each") in data["summary"]
    (legend,) = data["learning"][0].legend
    assert legend.note == "2 runs"
    text = render(data)
    assert "Fewer than 5 seeds: dqn (1); another seed may score otherwise." in text
    assert "Dqn has seed 1" not in text and "dqn has seed 1 more than once" in text
    assert "bootstrap over runs" in text and "bootstrap over seeds" not in text
    assert "more than once" not in said([runs[0], like(run, 2)])
    more = [like(run, 1, algo="ppo", name=f"p{i}") for i in range(2)]
    result = "dqn has seed 1 more than once, ppo has seed 1 more than once: such runs are not"
    assert result in said([*runs, *more])


def test_different_numbers_of_steps_are_reported_by_environment(run):
    def played(env, algo, steps):
        return [like(run, s, env=env, algo=algo, steps=steps, step=steps) for s in range(5)]

    result = "Trained for different numbers of steps: 1k (dqn); 2k (ppo)"
    one = [*played("A-v0", "dqn", 1000), *played("A-v0", "ppo", 2000)]
    assert f"{result}." in said(one)
    same = [*played("B-v0", "dqn", 3000), *played("B-v0", "ppo", 3000)]
    assert f"{result}, in A-v0." in said([*one, *same])
    both = [*played("B-v0", "dqn", 1000), *played("B-v0", "ppo", 2000)]
    assert said([*one, *both]).count("different numbers") == 1
    assert "different numbers" not in said([*played("A-v0", "dqn", 1000), *same])


def test_warnings(run):
    five = [like(run, s) for s in range(5)]
    assert said(five) == ""
    assert "One seed" in said(five[:1])
    assert "Fewer than 5 seeds: dqn (2); intervals are rough." in said(five[:2])
    other = {**run.manifest, "versions": {**run.manifest["versions"], "torch": "1.0"}}
    assert "Versions of torch are mixed" in said([*five, like(run, 6, manifest=other)])
    rules = [like(run, s, manifest={"protocol": p}) for s, p in enumerate(("saber", "r2d2"))]
    assert "Protocols are mixed" in said(rules)
    assert "Protocols are mixed" in said([replace(r, name="same") for r in rules])
    best = Evaluation(300, 9.0, 0.0, 10, checkpoint="best")
    assert "Best checkpoint: dqn-0-10.0 also" in said([*five[1:], replace(five[0], after=[best])])
    assert "flatters" in said([replace(r, after=[best], windows=[], status={}) for r in five])
    evaluated = replace(five[0], during=[Evaluation(600, 1.0, 0.0, 5)])
    assert "Scores were taken in different ways" in said([evaluated, *five[1:]])
    old = [replace(r, step=600, during=[Evaluation(300, 1.0, 0.0, 5)]) for r in five]
    assert "Trained on since the evaluation" in said(old)
    other_rules = Evaluation(600, 1.0, 0.0, 5, "r2d2", protocol="r2d2", protocol_hash="x")
    scored = [replace(r, manifest={"protocol": "saber"}) for r in five]
    assert "Protocols" not in said(scored)
    assert "Protocols are mixed" in said([replace(scored[0], after=[other_rules]), *scored[1:]])
    changed = {"changed": {"versions": {"torch": "0.1"}}}
    resumed = like(run, 6, manifest={**run.manifest, "sessions": [{}, changed]})
    assert "0.1 (dqn-6-10.0)" in said([*five, resumed])
    assert "Failed before the end" in said([replace(five[0], state="failed"), *five[1:]])
    uneven = [*five, *(like(run, s, algo="ppo") for s in range(6))]
    assert "Numbers of runs differ" in said(uneven)
    partly = [*five, *(like(run, s, env="B-v0") for s in range(5)),
              *(like(run, s, algo="ppo") for s in range(5))]  # fmt: skip
    assert "Not in the aggregates: ppo" in said(partly)
