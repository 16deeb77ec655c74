"""Bad input of every kind: one screen, a code, a cause, something to type, and its exit code."""

from __future__ import annotations

import json

import gymnasium as gym
import numpy as np
import pytest

from ludus.cli.explain import EXPLAIN
from ludus.errors import CODES
from tests.cli.conftest import Answer, call, train


class WrongShape(gym.Env):
    """Says (4,), gives (3,)."""

    observation_space = gym.spaces.Box(-1, 1, (4,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(3, np.float32), {}

    def step(self, action):
        return np.zeros(3, np.float32), 0.0, False, False, {}


def check(answer, code: str, exit_code: int, says: str) -> None:
    assert answer.code == exit_code, answer.err
    assert answer.err.startswith(f"error[{code}]"), answer.err
    assert says in answer.err
    assert "fix:" in answer.err and f"ludus help {code}" in answer.err
    assert "Traceback" not in answer.err
    assert len(answer.err.splitlines()) <= 20


@pytest.mark.parametrize(
    ("words", "code", "exit_code", "says"),
    [
        (["algo.lrr=1"], "E101", 2, "algo.lr ?"),
        (["algo.batch=many"], "E102", 2, "integer"),
        (["algo.gamma=1.5"], "E103", 2, "less than or equal to 1"),
        (["algo.replay.alpha=1"], "E104", 2, "prioritized"),
        (["-c", "none.yaml"], "E105", 2, "none.yaml"),
        (["--preset", "nothing"], "E107", 2, "nothing"),
        (["--import", "no_such_module"], "E109", 2, "no_such_module"),
        (["algo.capacity=900G"], "E310", 4, "free"),
        (["--run", "../away"], "E103", 2, "name"),
        (["--init-from", "nothing"], "E303", 1, "nothing"),
    ],
)
def test_train(runs, words, code, exit_code, says):
    check(train(runs, *words), code, exit_code, says)
    assert not runs.exists(), "a refused command leaves nothing behind"


def test_names(runs):
    check(train(runs, algo="dqm"), "E106", 2, "dqn ?")
    check(train(runs, env="CartPole-v9"), "E201", 1, "CartPole-v1")
    check(train(runs, env="no_such_module:Env"), "E201", 1, "no_such_module")
    check(train(runs, env="Pendulum-v1"), "E204", 1, "ppo")
    assert not runs.exists()


def test_wrong_shaped_observation(runs):
    answer = train(runs, env=f"{__name__}:WrongShape")
    check(answer, "E203", 1, "(3,)")
    assert "(4,)" in answer.err


def test_wrong_shaped_observation_in_the_middle_of_a_run(runs):
    answer = train(runs, "env.args={fault: shape, after: 30}", "--run", "x", env="ludus/Faulty-v0")
    result = answer.err[answer.err.index("error[") :]  # after the run's own first line
    check(Answer(answer.code, "", result), "E203", 1, "(3,)")
    assert "(2,)" in result
    assert call("status", "x", "--runs-dir", runs, "--json").json["state"] == "failed"


@pytest.mark.parametrize("name", ["checkpoints", "metrics.jsonl", "manifest.json", "LOCK"])
def test_a_run_whose_files_cannot_be_written(runs, finished, name):
    """Something of the wrong kind is in the way; also seen by the superuser."""
    place = runs / "x"
    place.mkdir(parents=True)
    if name == "checkpoints":
        (place / name).write_text("")
    else:
        (place / name).mkdir()
    (place / "config.yaml").write_text((finished / "config.yaml").read_text())
    answer = train(runs, "--run", "x")
    assert answer.code == 1 and "error[E301]" in answer.err, answer.err
    assert name in answer.err and "fix:" in answer.err and "Traceback" not in answer.err


def test_unwritable_directory(tmp_path):
    (tmp_path / "file").write_text("")
    check(train(tmp_path / "file" / "runs"), "E301", 1, "cannot create")


def test_resume_of_a_changed_configuration(finished):
    before = (finished / "config.yaml").read_text()
    check(call("resume", finished, "seed=9"), "E307", 1, "run.seed")
    check(train(finished.parent, "--run", "done", algo="c51"), "E307", 1, "'dqn' -> 'c51'")
    check(call("resume", finished, "seeed=9"), "E101", 2, "seed ?")
    assert (finished / "config.yaml").read_text() == before


def test_chunks_that_change_a_small_replay(runs):
    """Its length follows from them, so the saved rows would not fit."""
    small = ("fleet=processes", "actors=1", "actor.lockstep=true", "algo.capacity=48", "env.num=4")
    assert train(runs, "--run", "x", *small, "actor.rows=4").code == 0
    more = ("resume", runs / "x", "steps=+40", "--quiet", "--json")
    check(call(*more, "actor.rows=40"), "E307", 1, "actor.rows")
    assert call(*more).json["step"] >= 280


@pytest.mark.accept(143)
def test_weights_that_do_not_fit(finished, runs):
    for words in ({"env": "CartPole-v1"}, {"algo": "c51"}, {"algo": "ppo"}):
        algo = words.get("algo", "dqn")
        small = () if algo != "ppo" else ("rollout=8",)
        answer = call(
            "train", algo, words.get("env", "ludus/Identity-v0"), "steps=100", *small,
            "--init-from", finished, "--runs-dir", runs, "-q",
        )  # fmt: skip
        check(answer, "E306", 1, "")


def test_missing_runs_and_checkpoints(finished, runs):
    check(call("resume", "nothing", "--runs-dir", runs), "E303", 1, "nothing")
    check(call("eval", finished, "--checkpoint", "77"), "E304", 1, "available")
    check(call("eval", finished, "--checkpoint", "worst"), "E304", 1, "available")
    check(call("status", "dome", "--runs-dir", finished.parent), "E303", 1, "done ?")
    check(call("stop", "done", "--runs-dir", finished.parent), "E303", 1, "not running")


def test_resume_of_one_checkpoint_names_its_run(finished):
    answer = call("resume", finished / "checkpoints" / "last")
    check(answer, "E303", 1, "is one checkpoint, not a run")
    assert f"ludus resume {finished}" in answer.err


def test_resume_without_any_checkpoint(finished, runs):
    (runs / "empty" / "checkpoints").mkdir(parents=True)
    (runs / "empty" / "config.yaml").write_text((finished / "config.yaml").read_text())
    check(call("resume", "empty", "--runs-dir", runs), "E304", 1, "no checkpoint")


@pytest.mark.parametrize("text", ["", "algo: {}", "algo: {name: nothing}", "[1, 2]", "a: [", "\0"])
def test_a_damaged_config_of_a_run(runs, text):
    (runs / "bad").mkdir(parents=True)
    (runs / "bad" / "config.yaml").write_text(text)
    answer = call("resume", "bad", "--runs-dir", runs)
    assert answer.code in (1, 2) and answer.err.startswith("error[E1"), answer.err
    assert call("ls", "--runs-dir", runs).code == 0


@pytest.mark.parametrize(
    "words",
    [
        ["train", "dqn", "CartPole-v1", "--steps", "3"],
        ["train", "dqn", "CartPole-v1", "third"],
        ["nonsense"],
        ["eval"],
        ["eval", "x", "--episodes", "none"],
        ["list", "nothing"],
        ["help", "E999"],
        ["show", "nothing"],
        ["ls", "--sort", "nothing"],
    ],
)
def test_mistyped_commands(words):
    answer = call(*words)
    assert answer.code in (1, 2) and answer.err.startswith("error")
    assert "fix:" in answer.err and "Traceback" not in answer.err


def test_every_code_is_explained():
    assert set(EXPLAIN) == set(CODES)
    for code, (why, fix) in EXPLAIN.items():
        answer = call("help", code.lower())
        assert answer.code == 0
        assert CODES[code] in answer.out and why in answer.out and fix in answer.out
    assert all(code in call("help").out for code in CODES)


def test_unexpected_errors_end_in_three_and_debug_shows_the_trace(monkeypatch, capsys):
    from ludus.cli import main

    def broken(*_, **__):
        raise RuntimeError("surprise")

    monkeypatch.setattr(main, "app", broken)
    assert main.run(["ls"]) == 3
    assert "Traceback" not in capsys.readouterr().err
    assert main.run(["ls"], debug=True) == 3
    shown = capsys.readouterr().err
    assert "Traceback" in shown and "surprise" in shown
    for error, code in ((MemoryError(), 4), (KeyboardInterrupt(), 130)):
        monkeypatch.setattr(main, "app", lambda error=error, **_: (_ for _ in ()).throw(error))
        assert main.run(["ls"]) == code


def test_json_of_a_finished_run_is_json(finished):
    answer = call("status", finished, "--json")
    assert json.loads(answer.out)["state"] == "finished"


@pytest.mark.parametrize(
    ("words", "code", "option", "page"),
    [
        (("eval", "x", "--episodes", "0"), "E103", "--episodes", "ludus eval --help"),
        (("eval", "x", "--episodes", "many"), "E102", "--episodes", "ludus eval --help"),
        (("record", "x", "--epsilon", "2"), "E103", "--epsilon", "ludus record --help"),
        (("logs", "x", "-n", "-1"), "E103", "-n", "ludus logs --help"),
        (("list", "nothing"), "E103", "WHAT", "ludus list --help"),
        (("bench", "speed", "--seconds", "x"), "E102", "--seconds", "ludus bench speed --help"),
    ],
)
def test_values_of_options_are_refused_like_those_of_settings(words, code, option, page):
    refused = call(*words)
    assert refused.code == 2 and f"error[{code}]" in refused.err, refused.err
    assert option.lower() in refused.err.lower() and f"fix: {page}" in refused.err
    assert f"ludus help {code}" in refused.err and "Input" not in refused.err


def test_other_slips_are_sent_to_the_page_of_their_verb():
    for words in (("eval",), ("eval", "x", "--episodes"), ("eval", "x", "--nothing")):
        refused = call(*words)
        assert refused.code == 1 and "ludus eval --help" in refused.err, refused.err
    assert "ludus --help" in call("nothing").err


@pytest.mark.parametrize("verb", ["compare", "report", "resume", "logs"])
def test_an_agent_where_a_run_is_wanted(verb, tmp_path):
    refused = call(verb, "agent:cartpole-ppo", "--runs-dir", tmp_path)
    assert refused.code == 1 and "E303" in refused.err
    assert "ludus eval agent:cartpole-ppo" in refused.err and "play" in refused.err
