"""`ludus bench speed`: what it prints and writes, and what it refuses before it measures."""

from __future__ import annotations

import json

import pytest

from .conftest import call

QUICK = ("--seconds", "0.3", "env.num=2")


def test_it_measures_and_writes_json(tmp_path):
    out = tmp_path / "speed.json"
    small = ("algo.torso={kind: mlp, hidden: [16]}",)
    answer = call("bench", "speed", "dqn,ppo", "CartPole-v1", *QUICK, *small, "--json",
                  "--counts", "1,2", "--out", out)  # fmt: skip
    assert answer.code == 0, answer.err
    assert json.loads(out.read_text()) == answer.json
    assert {"python", "torch", "cores", "gpu"} <= answer.json["machine"].keys()
    assert answer.json["best"].keys() == {"1", "2"} and min(answer.json["best"].values()) > 0
    dqn, ppo = answer.json["runs"]
    assert (dqn["algo"], ppo["algo"]) == ("dqn", "ppo")
    for run in (dqn, ppo):
        assert run["env"] == "CartPole-v1" and run["envs"] == 2 and run["build_seconds"] > 0
        row = run["modes"]["auto"]
        assert row["compute"]["updates"].startswith(("eager", "captured"))
        for key in (
            "ceiling_steps_per_second", "acting_alone_steps_per_second",
            "learner_alone_updates_per_second", "steps_per_second", "updates_per_second",
        ):  # fmt: skip
            assert row[key] > 0, key
        assert 0 < row["of_ceiling"] < 1.5
        # Whole rollouts and whole batches: over so short a time one more or less shows.
        assert row["done_of_due"] == pytest.approx(1.0, abs=0.15)


def test_a_table_for_people():
    answer = call("bench", "speed", "dqn", "CartPole-v1", *QUICK)
    assert answer.code == 0, answer.err
    for words in ("dqn on CartPole-v1: 2 environments", "training, steps/s", "updates done / due"):
        assert words in answer.out


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ((), 2, "needs an algorithm and an environment"),
        (("ppo",), 2, "needs an algorithm and an environment"),
        (("dqn,pppo", "CartPole-v1"), 2, "E106"),
        (("dqn", "CartPole-v1", "--counts", "4,many"), 2, "--counts"),
        (("dqn", "CartPole-v1", "--counts", "0"), 2, "--counts"),
        (("dqn", "CartPole-v1", "--out", "/nowhere/at/all.json"), 1, "E301"),
        (("dqn", "CartPole-v1", "--seconds", "0"), 1, "seconds"),
        (("dqn", "CartPole-v1", "nonsense=1"), 2, "E101"),
    ],
)
def test_bad_input_is_refused_before_anything_is_measured(monkeypatch, words, code, said):
    def never(*_, **__):
        raise AssertionError("measured")

    monkeypatch.setattr("ludus.bench.speed.measure", never)
    answer = call("bench", "speed", *words)
    assert answer.code == code and said in answer.err and "Traceback" not in answer.err


CAPTURED, BOTH = ("auto",), ("auto", "off")


@pytest.mark.parametrize(
    ("gpu", "flag", "modes"),
    [(True, "--eager", BOTH), (True, "--no-eager", CAPTURED), (False, "--eager", CAPTURED)],
)
def test_which_modes_and_which_preset(monkeypatch, gpu, flag, modes):
    asked = {}

    def measure(cfg, *, seconds, modes):
        asked.update(modes=modes, rollout=cfg.algo.rollout)
        raise KeyboardInterrupt

    monkeypatch.setattr("ludus.bench.speed.measure", measure)
    monkeypatch.setattr("ludus.bench.speed.machine", dict)
    monkeypatch.setattr("torch.cuda.is_available", lambda: gpu)
    call("bench", "speed", "ppo", "CartPole-v1", flag, "--preset", "none")
    assert asked == {"modes": modes, "rollout": 128}  # the preset for CartPole has 32
