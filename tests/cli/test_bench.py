"""`ludus bench speed`: what it prints and writes, and what it refuses before it measures."""

from __future__ import annotations

import json
import re

import pytest

from ludus.bench import speed
from ludus.bench.ceilings import best_ceiling, default_counts
from ludus.envs.config import EnvConfig
from ludus.envs.make import make_envs
from ludus.errors import LudusError
from ludus.learn.learner import Learner
from ludus.settings.resolve import Request, resolve
from tests.cli.conftest import call

QUICK = ("--seconds", "0.3", "env.num=2")


def test_it_measures_and_writes_json(tmp_path):
    out = tmp_path / "speed.json"
    small = ("algo.torso={kind: mlp, hidden: [16]}",)
    answer = call("bench", "speed", "dqn,ppo", "CartPole-v1", *QUICK, *small, "--json",
                  "--counts", "1,2", "--out", out)  # fmt: skip
    assert answer.code == 0, answer.err
    assert json.loads(out.read_text()) == answer.json
    assert {"python", "torch", "cores", "gpu"} <= answer.json["machine"].keys()
    best = answer.json["best"]
    assert best.keys() == {"1", "2"} and min(best.values()) > 0
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
        most = max(*best.values(), row["ceiling_steps_per_second"])
        assert row["of_best_ceiling"] == pytest.approx(row["steps_per_second"] / most)
        # Whole rollouts and whole batches: over so short a time one more or less shows.
        assert row["done_of_due"] == pytest.approx(1.0, abs=0.15)


def test_a_table_for_people(monkeypatch):
    monkeypatch.setattr("ludus.bench.ceilings.available_cores", lambda: 2)
    answer = call("bench", "speed", "dqn", "CartPole-v1", *QUICK)
    assert answer.code == 0, answer.err
    for words in ("dqn on CartPole-v1: 2 environments", "training, steps/s", "updates done / due",
                  "share of the best ceiling", "best ceiling here"):  # fmt: skip
        assert words in answer.out


def test_it_tells_what_it_is_at_and_for_how_long():
    answer = call("bench", "speed", "dqn", "CartPole-v1", *QUICK, "warmup=100", "--counts", "1")
    assert [line for line in answer.err.splitlines() if line.startswith("dqn")] == [
        "dqn: 2 environments alone, 0.15 s",
        "dqn: training, 0.3 s after its first update (100 steps before it, 0 s or more)",
        "dqn: learner alone, 0.15 s",
        "dqn: acting alone, 0.15 s",
        "dqn: 2 environments alone once more, 0.15 s",
        "dqn: 1 environments alone, 0.15 s",
    ]
    for header in ("step 0 ->", "ludus-bench-", "not exact", "is not saved"):
        assert header not in answer.err + answer.out, "that is a run's, and this is none"


def test_the_best_ceiling_is_sought_by_default_over_counts_that_suit_the_cores(monkeypatch):
    monkeypatch.setattr("ludus.bench.ceilings.available_cores", lambda: 2)
    monkeypatch.setattr("ludus.bench.speed.available_cores", lambda: 2)
    answer = call("bench", "speed", "dqn", "CartPole-v1", *QUICK, "--json")
    assert list(answer.json["best"]) == ["4", "8", "16"], answer.err
    assert answer.json["machine"]["cores"] == 2, "those it may use, not those there are"
    without = call("bench", "speed", "dqn", "CartPole-v1", *QUICK, "--json", "--counts", "none")
    assert "best" not in without.json and "of_best_ceiling" not in without.out


def test_default_counts_divide_into_the_groups():
    for groups, cores, want in ((1, 2, [4, 8, 16]), (2, 3, [6, 12, 24]), (3, 4, [9, 18, 33])):
        cfg = EnvConfig(id="CartPole-v1", num=6, groups=groups)
        assert default_counts(cfg, cores) == want


def test_a_replay_may_be_full_from_the_start():
    words = ("--json", "--counts", "none", "capacity=3000", "warmup=100")
    rows = []
    for full in ((), ("--full",)):
        answer = call("bench", "speed", "dqn", "CartPole-v1", *QUICK, *words, *full)
        assert answer.code == 0, answer.err
        rows.append(answer.json["runs"][0]["modes"]["auto"])
    grown, filled = rows
    assert filled["learner_alone_on"]["rows"] == 3000 and filled["fill_seconds"] > 0
    assert grown["learner_alone_on"]["rows"] < 3000 and "fill_seconds" not in grown


def test_nothing_but_json_goes_to_stdout(monkeypatch):
    def talkative(*arguments, **options):
        print("building")
        return make_envs(*arguments, **options)

    monkeypatch.setattr("ludus.bench.ceilings.make_envs", talkative)
    monkeypatch.setattr("ludus.bench.speed.make_envs", talkative)
    answer = call("bench", "speed", "dqn", "CartPole-v1", *QUICK, "--json", "--counts", "1")
    assert answer.json["runs"] and "building" in answer.err


@pytest.mark.parametrize("counts", [[4, 0], [-2], [4, 3], [1]])
def test_a_count_that_makes_no_sense_is_refused_before_any_is_measured(monkeypatch, counts):
    def never(*_, **__):
        raise AssertionError("measured")

    monkeypatch.setattr("ludus.bench.ceilings.make_envs", never)
    cfg = resolve(Request("dqn", "CartPole-v1", ["env.num=4", "env.groups=2"], [], None)).config
    with pytest.raises(LudusError) as caught:
        best_ceiling(cfg, counts, 0.1)
    assert caught.value.code == "E103" and str(counts[-1]) in caught.value.what


def test_each_mode_has_its_own_peak_of_gpu_memory(monkeypatch):
    taken = {"now": 0.0, "peak": 0.0}

    def take(amount):
        taken["now"] += amount
        taken["peak"] = max(taken["peak"], taken["now"])

    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.synchronize", lambda *_: None)
    monkeypatch.setattr("torch.cuda.empty_cache", lambda: None)
    monkeypatch.setattr(
        "torch.cuda.reset_peak_memory_stats", lambda: taken.update(peak=taken["now"])
    )
    monkeypatch.setattr("torch.cuda.max_memory_allocated", lambda: taken["peak"] * 1e9)
    peaks = []
    for amount in (8.0, 2.0):
        with speed.own_peak() as peak:
            take(amount)
            take(-amount)
        peaks.append(peak["gpu_gb"])
    assert peaks == [8.0, 2.0]


def test_every_mode_is_closed_and_the_environments_once(monkeypatch):
    """Else processes and streams of one measurement outlive it."""
    seen, closed, real = [], [], speed.build_loop
    made = make_envs

    def built(*arguments, **options):
        loop, needed = real(*arguments, **options)
        seen.append(loop)
        monkeypatch.setattr(loop.streams, "close", lambda: closed.append("streams"))
        return loop, needed

    def counted(*arguments, **options):
        envs = made(*arguments, **options)
        close = envs.backend.close
        monkeypatch.setattr(envs.backend, "close", lambda: (closed.append("envs"), close()))
        return envs

    monkeypatch.setattr(speed, "build_loop", built)
    monkeypatch.setattr(speed, "make_envs", counted)
    words = ["env.num=2", "warmup=64", "batch=16"]
    cfg = resolve(Request("dqn", "CartPole-v1", words, [], "none")).config
    speed.measure(cfg, seconds=0.1, modes=("auto", "off"))
    assert len(seen) == 2 and closed == ["streams", "streams", "envs"]
    closed.clear()
    monkeypatch.setattr(speed, "training", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        speed.measure(cfg, seconds=0.1, modes=("auto",))
    assert closed == ["streams", "envs"]


def test_what_was_measured_before_a_failure_is_written(monkeypatch, tmp_path):
    out, before = tmp_path / "speed.json", []

    def measure(cfg, **_):
        if cfg.algo_name == "ppo":
            before.append(json.loads(out.read_text()))
            raise LudusError("E205", "an environment died")
        return {"algo": cfg.algo_name, "modes": {}}

    monkeypatch.setattr(speed, "measure", measure)
    words = ("--counts", "none", "--json", "--out", out)
    answer = call("bench", "speed", "dqn,ppo", "CartPole-v1", *words)
    assert answer.code == 3 and "E205" in answer.err
    kept = json.loads(out.read_text())
    assert kept == before[0] and [r["algo"] for r in kept["runs"]] == ["dqn"]


def test_a_full_gpu_is_one_error_with_sizes(monkeypatch):
    def full(*_, **__):
        raise RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate")

    monkeypatch.setattr("ludus.learn.learner.Learner._gradients", full)
    answer = call("bench", "speed", "dqn", "CartPole-v1", *QUICK, "--counts", "none")
    assert answer.code == 4 and "E311" in answer.err and "CUBLAS_STATUS_ALLOC_FAILED" in answer.err
    assert "run.replay_on=host" in answer.err and "newest checkpoint" not in answer.err


def test_refused_updates_are_not_done(monkeypatch):
    """Every other sample gives a loss that is not finite; half of what is due is done."""
    calls = []
    real = Learner._reduce

    def spoilt(self, *arguments):
        calls.append(1)
        return real(self, *arguments) * (float("nan") if len(calls) % 2 == 0 else 1.0)

    monkeypatch.setattr(Learner, "_reduce", spoilt)
    for capture in ("auto", "on"):
        words = ["env.num=2", "warmup=64", "batch=16", f"run.capture={capture}"]
        cfg = resolve(Request("dqn", "CartPole-v1", words, [], "none")).config
        row = speed.measure(cfg, seconds=0.5, modes=(capture,))["modes"][capture]
        assert row["done_of_due"] == pytest.approx(0.5, abs=0.1), capture


def test_hogwild_algorithms_are_measured_inline():
    inline = ("run.fleet=inline", "run.actors=1")
    answer = call("bench", "speed", "a3c", "CartPole-v1", *QUICK, *inline, "--json",
                  "--counts", "none")  # fmt: skip
    assert answer.code == 0, answer.err
    assert answer.json["runs"][0]["modes"]["auto"]["steps_per_second"] > 0


@pytest.mark.parametrize(
    "words",
    [
        ("dqn", "CartPole-v1", "run.fleet=processes", "run.actors=2"),
        ("dqn", "CartPole-v1", "run.fleet=processes"),
        ("dqn", "CartPole-v1", "run.actors=2"),
        ("dqn,a3c", "CartPole-v1"),
    ],
)
def test_only_one_actor_in_this_process_can_be_measured(monkeypatch, words):
    def never(*_, **__):
        raise AssertionError("built")

    monkeypatch.setattr("ludus.bench.speed.make_envs", never)
    monkeypatch.setattr("ludus.bench.ceilings.make_envs", never)
    answer = call("bench", "speed", *words)
    assert answer.code == 2 and "E104" in answer.err and "Traceback" not in answer.err
    assert "run.fleet=inline run.actors=1" in answer.err and words[0].split(",")[-1] in answer.err


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ((), 2, "needs an algorithm and an environment"),
        (("ppo",), 2, "needs an algorithm and an environment"),
        (("dqn,pppo", "CartPole-v1"), 2, "E106"),
        (("dqn", "CartPole-v1", "--counts", "4,many"), 2, "--counts"),
        (("dqn", "CartPole-v1", "--counts", "0"), 2, "--counts"),
        (("dqn", "CartPole-v1", "--counts", "4,-4"), 2, "--counts"),
        (("dqn", "CartPole-v1", "--counts", "3", "env.num=2", "env.groups=2"), 2, "3"),
        (("ppo", "CartPole-v1", "--full"), 2, "E104"),
        (("dqn", "CartPole-v1", "--out", "/nowhere/at/all.json"), 1, "E301"),
        (("dqn", "CartPole-v1", "--out", "/"), 1, "is a directory"),
        (("dqn", "CartPole-v1", "--seconds", "0"), 2, "--seconds 0"),
        (("dqn", "CartPole-v1", "--seconds", "-1"), 2, "--seconds"),
        (("ppo,", "CartPole-v1"), 2, "an empty name"),
        (("dqn,ppo", "CartPole-v1", "--full"), 2, "E104"),
        (("dqn", "CartPole-v1", "nonsense=1"), 2, "E101"),
    ],
)
def test_bad_input_is_refused_before_anything_is_measured(monkeypatch, words, code, said):
    def never(*_, **__):
        raise AssertionError("measured")

    monkeypatch.setattr("ludus.bench.speed.training", never)
    monkeypatch.setattr("ludus.bench.speed.ceiling", never)
    monkeypatch.setattr("ludus.bench.ceilings.ceiling", never)
    answer = call("bench", "speed", *words)
    assert answer.code == code and said in answer.err and "Traceback" not in answer.err


CAPTURED, BOTH = ("auto",), ("auto", "off")


@pytest.mark.parametrize(
    ("gpu", "flag", "modes"),
    [(True, "--eager", BOTH), (True, "--no-eager", CAPTURED), (False, "--eager", CAPTURED)],
)
def test_which_modes_and_which_preset(monkeypatch, gpu, flag, modes):
    asked = {}

    def measure(cfg, *, seconds, modes, full, say):
        asked.update(modes=modes, rollout=cfg.algo.rollout)
        raise KeyboardInterrupt

    monkeypatch.setattr("ludus.bench.speed.measure", measure)
    monkeypatch.setattr("ludus.bench.speed.machine", dict)
    monkeypatch.setattr("torch.cuda.is_available", lambda: gpu)
    call("bench", "speed", "ppo", "CartPole-v1", flag, "--preset", "none", "--counts", "none")
    assert asked == {"modes": modes, "rollout": 128}  # the preset for CartPole has 32


@pytest.mark.parametrize("word", ["--help", "-h"])
def test_help_shows_the_options_of_a_matrix(word):
    """They are typed after `ludus bench` alone, so that is where they are looked for."""
    result, whole = call("bench", word), call("bench", "matrix", "--help").out
    assert result.code == 0 and "speed" in result.out
    options = set(re.findall(r"--[a-z][a-z-]+", whole))
    assert {"--envs", "--algos", "--seeds", "--dry-run"} <= options
    assert options <= set(re.findall(r"--[a-z][a-z-]+", result.out))
    assert "Usage: ludus bench matrix" in result.out, "and what the words before them are"
