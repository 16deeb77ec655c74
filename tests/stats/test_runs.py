"""What a run scored: the newest evaluation, else the last training episodes; from its files."""

from __future__ import annotations

import json
import os

import pytest

from ludus.errors import LudusError
from ludus.stats.groups import result_settings
from ludus.stats.runs import read_run
from ludus.track.run_dir.rundir import RunDir
from tests.stats.made import EPISODES, made_run


def test_the_last_hundred_whole_episodes(tmp_path):
    rows = [f"{i},0,{i}.0,10,terminal,0.1," for i in range(150)]
    rows += ["150,1,999.0,3,checkpoint,0.1,"] * 30  # cut by a checkpoint: no score
    run = made_run(tmp_path, episodes=EPISODES + "\n".join(rows) + "\n160,0,5")  # and a torn line
    score = read_run(run).score
    assert (score.mean, score.episodes, score.source) == (99.5, 100, "training")
    assert not score.evaluated and score.step == 1000


def test_the_tail_is_enough_unless_checkpoints_fill_it(tmp_path):
    whole = [f"{i},0,{float(i)},10,terminal,0.1," for i in range(120)]
    cut = ["120,0,7.0,3,checkpoint,0.1,"] * 12_000  # more than is looked at first
    text = EPISODES + "\n".join([*whole, *cut]) + "\n"
    assert read_run(made_run(tmp_path, episodes=text)).score.mean == 69.5
    many = EPISODES + "\n".join(f"{i},0,{i % 7}.0,10,terminal,0.1," for i in range(30_000)) + "\n"
    expected = sum(i % 7 for i in range(29_900, 30_000)) / 100
    assert read_run(made_run(tmp_path, name="b", episodes=many)).score.mean == expected


def test_without_the_file_the_status_tells(tmp_path):
    score = read_run(made_run(tmp_path, status={"score": 12.5})).score
    assert score.mean == 12.5 and score.source == "training"
    assert read_run(made_run(tmp_path, name="none")).score is None
    assert read_run(made_run(tmp_path, name="empty", episodes=EPISODES)).score is None


def test_an_evaluation_wins_over_training(tmp_path):
    run = made_run(tmp_path, scores=[1.0, 2.0], evals=[(500, 10.0), (1000, 20.0)])
    score = read_run(run).score
    assert (score.mean, score.source, score.step) == (20.0, "eval while training", 1000)
    assert score.evaluated and score.episodes == 5


def test_the_newest_evaluation_is_of_the_latest_weights(tmp_path):
    run = made_run(tmp_path, evals=[(500, 10.0), (1000, 20.0)], files={"greedy-500": 90.0})
    assert read_run(run).score.mean == 20.0
    file = {"mean": 30.0, "step": 1000, "episodes": 5}
    (run.eval / "greedy-1000.json").write_text(json.dumps(file))
    assert read_run(run).score.source == "eval greedy", "at one step the file wins"
    (run.eval / "saber-1000.json").write_text(
        json.dumps({"mean": 31.0, "step": 1000, "scores": [31] * 5, "protocol": "saber*"})
    )
    os.utime(run.eval / "greedy-1000.json", (1, 1))
    newest = read_run(run).score
    assert (newest.mean, newest.source, newest.episodes) == (31.0, "eval saber", 5)
    assert newest.protocol == "saber*"


def test_files_of_others_are_not_scores(tmp_path):
    run = made_run(tmp_path, scores=[4.0], files={"greedy-1": 1.0})
    (run.eval / "greedy-1.json").write_text("{torn")
    (run.eval / "notes.json").write_text('{"mean": "NaN"}')
    (run.eval / "list.json").write_text("[1]")
    (run.eval / "odd-2.json").write_text('{"mean": null, "step": "two"}')
    run.evals.write_text("step,mean\n,\n12,x\n,5\n")
    assert read_run(run).score.source == "training"


def test_a_best_checkpoint_is_known(tmp_path):
    run = made_run(tmp_path, files={"greedy-500": 9.0}, checkpoints=(500, 1000), best=500)
    assert read_run(run).score.of_best
    last = made_run(tmp_path, name="l", files={"greedy-1000": 9.0}, checkpoints=(1000,), best=1000)
    assert not read_run(last).score.of_best, "the last one would have been taken anyway"


def test_circumstances(tmp_path):
    run = made_run(tmp_path, env="PongNoFrameskip-v4", algo="ppo", seed=3, settings={"lr": 0.1})
    run.manifest.write_text(
        json.dumps(
            {
                "versions": {"ludus": "0.1.0", "ale-py": "0.11"},
                "sessions": [{"step": 0}, {"changed": {"versions": {"ludus": "0.2.0"}}}],
            }
        )
    )
    found = read_run(run)
    assert (found.env, found.game, found.algo, found.seed) == ("ALE/Pong-v5", "pong", "ppo", 3)
    assert found.versions("ludus") == {"0.1.0", "0.2.0"} and found.versions("ale-py") == {"0.11"}
    settings = result_settings(found.config)
    assert settings["algo.lr"] == 0.1
    assert not {"algo.name", "env.id", "env.workers"} & set(settings)


def test_odd_settings_do_not_stop_it(tmp_path):
    run = made_run(tmp_path, files={"greedy-7": 2.0})
    (run.eval / "greedy-7.json").write_text('{"mean": 2, "step": "x", "episodes": []}')
    run.config.write_text("algo: dqn\nenv: {id: CartPole-v1}\nrun: {seed: first}\n")
    found = read_run(run)
    assert (found.algo, found.seed, found.steps) == ("?", None, 0)
    assert found.score.mean == 2.0 and found.score.step == 0


def test_a_run_without_settings_is_refused(tmp_path):
    run = made_run(tmp_path)
    run.config.unlink()
    with pytest.raises(LudusError, match="E303"):
        read_run(RunDir(run.path))


def test_a_seed_in_a_files_name_is_no_other_way_to_play(tmp_path):
    run = made_run(tmp_path, files={"greedy-1000": 5.0})
    second = {"mean": 6.0, "step": 1000, "episodes": 20, "label": "greedy"}
    (run.eval / "greedy-seed7-20episodes-1000.json").write_text(json.dumps(second))
    score = read_run(run).score
    assert (score.mean, score.source) == (6.0, "eval greedy")


def test_damaged_files_cost_only_what_was_in_them(tmp_path):
    run = made_run(tmp_path, scores=[1.0])
    run.eval.mkdir()
    odd = {"mean": 6.0, "step": 1000, "scores": 5, "protocol": {}, "label": 3}
    (run.eval / "greedy-1000.json").write_text(json.dumps(odd))
    run.manifest.write_text(json.dumps({"sessions": 5, "versions": "none"}))
    found = read_run(run)
    assert (found.score.mean, found.score.source, found.score.protocol) == (
        6.0,
        "eval greedy",
        "",
    )
    assert found.versions("ludus") == found.versions("ale-py") == set()
