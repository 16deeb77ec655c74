"""Runs side by side: groups, aggregates, and every warning for its own reason."""

from __future__ import annotations

import subprocess
import sys

import pytest

from ludus.errors import LudusError
from ludus.stats.aggregates import iqm, probability_of_improvement, stratified_bootstrap
from ludus.stats.compare import compare
from ludus.stats.references import human_normalized
from ludus.stats.runs import read_run
from tests.cli.conftest import call
from tests.stats.made import made_run

DQN, PPO = [10.0, 12.0, 14.0, 16.0, 40.0], [9.0, 11.0, 13.0, 15.0, 8.0]


def seeds(folder, algo, scores, *, trained=True, **more):
    made = [
        made_run(folder, name=f"{algo}-{i}", algo=algo, seed=i, scores=[score] * trained, **more)
        for i, score in enumerate(scores)
    ]
    return [read_run(run) for run in made]


@pytest.fixture
def two(tmp_path):
    return seeds(tmp_path, "ppo", PPO) + seeds(tmp_path, "dqn", DQN)


def result(runs):
    return compare(runs)


def warned(runs):
    return [w for env in result(runs)["environments"] for w in env["warnings"]]


def test_groups_are_over_seeds_and_the_best_comes_first(two):
    (env,) = result(two)["environments"]
    first, second = env["algorithms"]
    assert (first["label"], second["label"]) == ("dqn", "ppo") and env["warnings"] == []
    assert first["seeds"] == [0, 1, 2, 3, 4] and first["from"] == "training, 1 episodes"
    assert first["iqm"] == iqm(DQN) == 14 and first["score"] == pytest.approx(18.4)
    assert first["interval"] == stratified_bootstrap(DQN, iqm)
    assert first["human_normalized"] is None and result(two)["overall"] is None
    (pair,) = env["improvement"]
    assert (pair["x"], pair["y"]) == ("dqn", "ppo")
    assert pair["probability"] == probability_of_improvement(DQN, PPO)
    assert pair["interval"][0] < pair["probability"] < pair["interval"][1]


def test_one_seed_has_no_interval(tmp_path):
    runs = seeds(tmp_path, "dqn", [3.0]) + seeds(tmp_path, "ppo", PPO)
    (env,) = result(runs)["environments"]
    by = {group["label"]: group for group in env["algorithms"]}
    assert by["dqn"]["interval"] is None and by["ppo"]["interval"] is not None
    assert env["improvement"][0]["interval"] is None
    assert any("fewer than 5 seeds: dqn (1)" in w for w in env["warnings"])


def test_two_runs_each_say_nothing_of_how_sure_it_is_who_is_better(tmp_path):
    runs = seeds(tmp_path, "dqn", [1.0, 2.0]) + seeds(tmp_path, "ppo", [3.0, 4.0])
    (env,) = result(runs)["environments"]
    (pair,) = env["improvement"]
    assert pair["probability"] in (0.0, 1.0) and pair["interval"] is None


def test_other_settings_are_no_other_seed(tmp_path):
    runs = seeds(tmp_path / "a", "dqn", [1.0, 2.0], settings={"lr": 0.1, "batch": 8})
    runs += seeds(tmp_path / "b", "dqn", [5.0], settings={"lr": 0.2, "batch": 8})
    labels = {g["label"]: g["seeds"] for g in result(runs)["environments"][0]["algorithms"]}
    assert labels == {"dqn lr=0.1": [0, 1], "dqn lr=0.2": [0]}


def test_many_different_settings_are_numbered(tmp_path):
    keys = {f"k{i}": 0 for i in range(5)}
    runs = seeds(tmp_path / "a", "dqn", [1.0], settings={**keys, "x": 1})
    runs += seeds(tmp_path / "b", "dqn", [2.0], settings={**keys, "x": 2})
    runs += seeds(tmp_path / "c", "dqn", [3.0], settings={**keys, "k3": 1, "k4": 1, "x": 3})
    labels = [g["label"] for g in result(runs)["environments"][0]["algorithms"]]
    assert len(set(labels)) == 3
    assert "dqn k3=1 k4=1 x=3" in labels and "dqn k3=0 k4=0 x=2" in labels
    runs += seeds(tmp_path / "d", "dqn", [4.0], settings={**keys, "k0": 9, "x": 9})
    runs += seeds(tmp_path / "e", "dqn", [5.0], settings={**keys, "k0": 9, "x": 8})
    labels = [g["label"] for g in result(runs)["environments"][0]["algorithms"]]
    assert len(set(labels)) == 5 and sum("(+1) #" in label for label in labels) >= 2


def test_environments_are_kept_apart_and_spellings_together(tmp_path):
    runs = seeds(tmp_path / "a", "dqn", [14.6], env="pong")
    runs += seeds(tmp_path / "b", "dqn", [14.6], env="ALE/Pong-v5")
    runs += seeds(tmp_path / "c", "dqn", [1.0])
    pong, cartpole = result(runs)["environments"]
    assert (pong["env"], pong["game"]) == ("ALE/Pong-v5", "pong")
    assert cartpole["env"] == "CartPole-v1" and cartpole["game"] is None
    (group,) = pong["algorithms"]
    assert group["human_normalized"] == 1 and 0 < group["record_normalized"] < 1
    assert any("seed 0 more than once" in w for w in pong["warnings"])
    assert any("fewer than 5 seeds: dqn (1);" in w for w in pong["warnings"]), "runs are no seeds"


def test_several_games_are_aggregated_when_every_one_was_played_as_often(tmp_path):
    games = {"pong": [14.6, -20.7], "breakout": [30.5, 1.7]}
    runs = [r for g, s in games.items() for r in seeds(tmp_path / g, "dqn", s, env=g)]
    runs += seeds(tmp_path / "p", "ppo", [0.0, 1.0], env="pong")
    overall = result(runs)["overall"]
    (row,) = overall["algorithms"]
    assert row["label"] == "dqn" and row["seeds"] == 2
    assert row["mean"]["value"] == pytest.approx(0.5) and row["iqm"]["value"] == pytest.approx(0.5)
    assert row["optimality_gap"]["interval"] == pytest.approx([0, 1])
    assert "ppo left out" in overall["warnings"][0]
    assert human_normalized("breakout", 30.5) == pytest.approx(1)


SABER, SABER2, NATURE = ("saber", "11"), ("saber", "22"), ("dqn-2015", "33")
MIXED = {
    "protocols are mixed": ({"protocol": SABER}, {"protocol": NATURE}),
    "saber stands for different rules": ({"protocol": SABER}, {"protocol": SABER2}),
    "saber with rules changed": ({"protocol": ("saber*", "11")}, {"protocol": ("saber*", "11")}),
    "scores were taken in different ways": ({"evals": [(1000, 5.0)]}, {}),
    "versions of ludus are mixed": ({"version": "0.1.0"}, {"version": "0.2.0"}),
    "best checkpoint": (
        {"trained": False, "files": {"greedy-5": 1.0}, "checkpoints": (5, 9), "best": 5},
        {},
    ),
    "not finished": ({"step": 400}, {}),
    "trained on since the evaluation": ({"evals": [(400, 5.0)]}, {"evals": [(1000, 5.0)]}),
    "fewer than 5 seeds": ({}, {}),
    "are normalised by play that was measured otherwise": (
        {"protocol": SABER},
        {"protocol": SABER},
    ),
}


@pytest.mark.parametrize("reason", MIXED)
def test_each_warning_is_given(tmp_path, reason):
    a, b = MIXED[reason]
    runs = seeds(tmp_path, "dqn", [1.0] * 5, env="pong", **a)
    runs += seeds(
        tmp_path, "ppo", [2.0] * (1 if reason.startswith("fewer") else 5), env="pong", **b
    )
    assert any(reason in text for text in warned(runs)), warned(runs)
    calm = seeds(tmp_path / "calm", "dqn", [1.0] * 5, env="pong", protocol=NATURE)
    calm += seeds(tmp_path / "calm", "ppo", [2.0] * 5, env="pong", protocol=NATURE)
    assert warned(calm) == []


@pytest.mark.parametrize("reason", [r for r in MIXED if "best" not in r and "seeds" not in r])
def test_runs_of_one_name_do_not_hide_a_reason(tmp_path, reason):
    """Two benches name their cells alike."""
    a, b = MIXED[reason]
    runs = seeds(tmp_path / "a", "dqn", [1.0] * 5, env="pong", **a)
    runs += seeds(tmp_path / "b", "dqn", [2.0] * 5, env="pong", **b)
    assert any(reason in text for text in warned(runs)), warned(runs)


@pytest.mark.parametrize("reason", [*list(MIXED)[:5], list(MIXED)[-1]])
def test_each_reason_is_reported_for_all_games_together(tmp_path, reason):
    """One game may be played by one protocol alone, and the next by another."""
    a, b = MIXED[reason]
    runs = seeds(tmp_path / "a", "dqn", [1.0] * 5, env="pong", **a)
    runs += seeds(tmp_path / "b", "dqn", [2.0] * 5, env="breakout", **b)
    assert any(reason in text for text in result(runs)["overall"]["warnings"])
    calm = seeds(tmp_path / "c", "dqn", [1.0] * 5, env="pong", protocol=NATURE)
    calm += seeds(tmp_path / "d", "dqn", [2.0] * 5, env="breakout", protocol=NATURE)
    # ppo is in no aggregate, so its rules are no reason to doubt one.
    calm += seeds(tmp_path / "e", "ppo", [2.0] * 5, env="breakout", protocol=SABER)
    (left,) = result(calm)["overall"]["warnings"]
    assert left.startswith("ppo left out")


def test_different_lengths_and_missing_scores_are_reported(tmp_path, two):
    extra = made_run(tmp_path, name="new", algo="iqn")
    other = made_run(tmp_path, name="long", algo="iqn", scores=[3.0])
    text = other.config.read_text().replace("steps: 1000", "steps: 2000000")
    other.config.write_text(text)
    found = warned([*two, read_run(extra), read_run(other)])
    assert any("no score yet, left out: new" in w for w in found)
    assert any("different numbers of steps" in w and "2M (iqn)" in w for w in found)
    with pytest.raises(LudusError, match="none of these runs"):
        compare([read_run(extra)])


def test_the_verb_prints_what_json_has(tmp_path):
    seeds(tmp_path, "ppo", [14.6] * 3, env="pong", protocol=SABER)
    seeds(tmp_path, "dqn", DQN, env="pong", protocol=NATURE)
    seeds(tmp_path / "more", "dqn", DQN, env="breakout", protocol=SABER)
    shown = call("compare", tmp_path, tmp_path / "more", "ppo-0", "--runs-dir", tmp_path)
    assert shown.code == 0, shown.err
    lines = shown.out.splitlines()
    assert lines[0] == "ALE/Pong-v5 (dqn-2015, saber)"
    row = next(line for line in lines if line.startswith("ppo"))
    assert row.split()[:5] == ["ppo", "3", "14.6", "14.6", "[14.6,"] and "training" in row
    assert any(line.startswith("P(ppo > dqn) = ") for line in lines)
    assert any(line.startswith("warning: protocols are mixed") for line in lines)
    assert "2 games, human-normalised" in shown.out
    found = call("compare", tmp_path, tmp_path / "more", "--json").json
    assert [env["env"] for env in found["environments"]] == ["ALE/Pong-v5", "ALE/Breakout-v5"]
    assert [len(g["seeds"]) for g in found["environments"][0]["algorithms"]] == [3, 5]


def test_a_folder_of_runs_is_found_by_its_name_as_runs_are(tmp_path):
    seeds(tmp_path / "first", "ppo", [1.0, 2.0])
    found = call("compare", "first", "--runs-dir", tmp_path, "--json")
    assert found.code == 0, found.err
    (env,) = found.json["environments"]
    assert [group["seeds"] for group in env["algorithms"]] == [[0, 1]]


def test_a_name_that_is_no_run_is_refused(tmp_path):
    answer = call("compare", "nothing", "--runs-dir", tmp_path)
    assert answer.code == 1 and "E303" in answer.err
    assert call("compare").code != 0


def test_comparing_does_not_wait_for_torch(tmp_path):
    seeds(tmp_path, "ppo", [14.6] * 3, env="pong")
    code = (
        "import sys\nfrom ludus.cli.main import run\n"
        f"assert run(['compare', {str(tmp_path)!r}]) == 0\n"
        "assert not {'torch', 'gymnasium'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_score_of_few_episodes_is_reported(tmp_path):
    runs = [read_run(made_run(tmp_path, name="r", files={"greedy-1000": 9.0}, played=1))]
    assert "evaluated over fewer than 10 episodes: r (1)" in warned(runs)
