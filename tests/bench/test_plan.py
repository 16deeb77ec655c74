"""What a matrix consists of, before anything is started: suites, pairs, seeds, sweeps, shares."""

from __future__ import annotations

import json

import gymnasium
import pytest

from ludus.bench import plan
from ludus.bench.matrix import Cell, Matrix, load_matrix, merged
from ludus.bench.plan import (
    UNABLE,
    BenchRequest,
    auto_jobs,
    core_shares,
    parse_seeds,
    parse_sweeps,
    plan_matrix,
)
from ludus.bench.suites import SUITES
from ludus.envs.atari.names import GAMES
from ludus.errors import LudusError
from ludus.settings.resolve import Request, resolve
from tests.cli.conftest import call
from tests.skips import needs_mujoco


def dry(*words):
    answer = call("bench", *words, "--dry-run", "--json")
    assert answer.code == 0, answer.err
    return answer.json


def test_suites_name_what_exists():
    assert len(SUITES["atari57-saber"].envs) == 57 and len(set(SUITES["atari57-saber"].envs)) == 57
    assert set(SUITES["atari-5"].envs) < set(SUITES["atari57-saber"].envs) <= set(GAMES)
    assert set(SUITES["classic"].envs) <= set(gymnasium.registry)
    assert set(SUITES["mujoco"].envs) <= set(gymnasium.registry)


@needs_mujoco
def test_the_mujoco_suite_trains_a_million_steps_by_presets(tmp_path):
    result = dry("mujoco", "--algos", "ppo", "--seeds", "2", "--runs-dir", tmp_path)
    assert not result["left_out"] and len(result["cells"]) == 2 * len(SUITES["mujoco"].envs)
    wish = BenchRequest(("Humanoid-v5",), ("ppo",), (1,), suite=SUITES["mujoco"])
    (cfg,) = plan_matrix(wish, tmp_path)[1]
    assert cfg.run.steps == 1_000_000 and cfg.eval.episodes == 20
    assert cfg.algo.clip_norm == 2.0 and cfg.env.normalize.reward, "the Zoo's"


@pytest.mark.accept(126)
def test_the_classic_suite_is_what_has_tuned_presets(tmp_path):
    result = dry("classic", "--seeds", "2", "--runs-dir", tmp_path)
    pairs = {(c["algo"], c["env"]) for c in result["cells"]}
    assert {("dqn", "CartPole-v1"), ("ppo", "LunarLander-v3"), ("ppo", "Pendulum-v1")} <= pairs
    assert ("dqn", "Pendulum-v1") not in pairs and len(result["cells"]) == 2 * len(pairs)
    assert {"algo": "dqn", "env": "Pendulum-v1", "why": "no tuned preset"} in result["left_out"]
    assert not list(tmp_path.iterdir()), "a dry run writes nothing"
    more = dry("classic", "--seeds", "2", "--untuned", "--runs-dir", tmp_path)
    assert len(more["cells"]) == 2 * (2 * len(SUITES["classic"].envs) - len(more["left_out"]))
    assert {(row["algo"], row["why"]) for row in more["left_out"]} == {("dqn", UNABLE)}
    every = dry("classic", "--seeds", "1", "--algos", "all", "--runs-dir", tmp_path)
    assert {c["algo"] for c in every["cells"]} > {"dqn", "ppo", "impala", "rainbow"}


def test_atari_runs_one_at_a_time_under_saber(tmp_path):
    words = ("--algos", "dqn", "--seeds", "1,2", "--runs-dir", tmp_path)
    result = dry("atari-5", *words)
    assert len(result["cells"]) == 2 * 5 and result["jobs"] == 1
    assert dry("atari-5", *words, "--jobs", "4")["jobs"] == 4
    wish = BenchRequest(("pong",), ("dqn",), (1,), suite=SUITES["atari57-saber"])
    (cfg,) = plan_matrix(wish, tmp_path)[1]
    assert cfg.env.protocol == "saber" and cfg.env.id == "ALE/Pong-v5"


def test_seeds_and_sweeps():
    assert parse_seeds("3") == (1, 2, 3) and parse_seeds("7,") == (7,)
    assert parse_seeds("1,4,9") == (1, 4, 9)
    for bad in ("0", "-1", "x", "1,1", "", "1,x"):
        with pytest.raises(LudusError, match="E103"):
            parse_seeds(bad)
    assert parse_sweeps([]) == [()]
    found = parse_sweeps(["lr=1e-3,1e-4", "batch=32"])
    assert found == [("lr=1e-3", "batch=32"), ("lr=1e-4", "batch=32")]
    for bad in ("lr", "lr=", "=1,2", "lr=1,,2"):
        with pytest.raises(LudusError, match="E103"):
            parse_sweeps([bad])


@pytest.mark.accept(126)
def test_a_sweep_is_one_run_for_each_value(tmp_path):
    words = ("--envs", "CartPole-v1", "--algos", "dqn", "--seeds", "1,2", "--runs-dir", tmp_path)
    result = dry(*words, "--sweep", "lr=1e-3,1e-4", "--sweep", "batch=32,64")
    assert len(result["cells"]) == 8
    assert [c["run"] for c in result["cells"][:2]] == [
        "CartPole-v1-dqn-lr-1e-3-batch-32-s1", "CartPole-v1-dqn-lr-1e-3-batch-64-s1",
    ]  # fmt: skip
    matrix = Matrix(tmp_path, settings=["steps=1k"])
    cell = Cell("dqn", "CartPole-v1", 2, "x", ["lr=1e-3"])
    typed = matrix.words(cell)
    assert typed[:6] == ["train", "dqn", "CartPole-v1", "steps=1k", "lr=1e-3", "run.seed=2"]


REFUSED = [
    (["classic", "--envs", "CartPole-v1"], "E104"),
    ([], "E104"),
    (["classic", "atari-5"], "E104"),
    (["clasic"], "E103"),
    (["--envs", "CartPole-v1"], "E106"),
    (["--envs", "CartPole-v1", "--algos", "dqnn"], "E106"),
    (["--envs", "CartPole-v1", "--algos", "dqn,"], "E103"),
    (["--envs", "CartPole-v1,CartPole-v1", "--algos", "dqn"], "E104"),
    (["classic", "seed=3"], "E104"),
    (["classic", "env=CartPole-v1"], "E104"),
    (["classic", "nosuch=3"], "E101"),
    (["classic", "--jobs", "many"], "E103"),
    (["classic", "--jobs", "0"], "E103"),
    (["classic", "--algos", "c51", "--preset", "nosuch"], "E107"),
    (["classic", "--name", "../up"], "E103"),
    (["classic", "--import", "no_such_module"], "E109"),
    (["--envs", "CartPole-v1,Nope-v3", "--algos", "dqn"], "E201"),
    (["--envs", "Pendulum-v1", "--algos", "dqn"], "E204"),
]


@pytest.mark.parametrize(("words", "code"), REFUSED, ids=[" ".join(w) for w, _ in REFUSED])
def test_refused_before_anything_is_made(words, code, tmp_path):
    asked = ["matrix", *words] if not words else words
    answer = call("bench", *asked, "--runs-dir", tmp_path / "runs")
    assert answer.code != 0 and code in answer.err, answer.err
    assert not (tmp_path / "runs").exists()


def test_what_cannot_train_is_left_out_and_said(tmp_path):
    words = ("--envs", "Pendulum-v1,CartPole-v1", "--algos", "dqn,ppo", "--seeds", "1,")
    result = dry(*words, "--runs-dir", tmp_path)
    assert result["left_out"] == [{"algo": "dqn", "env": "Pendulum-v1", "why": UNABLE}]
    words = ("--envs", "Pendulum-v0,CartPole-v1", "--algos", "dqn", "--untuned")
    (old,) = dry(*words, "--runs-dir", tmp_path)["left_out"]
    assert old["env"] == "Pendulum-v1", "the version that would be trained"
    assert len(result["cells"]) == 3


def test_each_algorithm_is_tried_on_the_environment_as_it_would_see_it():
    """Two presets may show one environment otherwise."""
    specs = {}
    for stack in (1, 4):
        cfg = resolve(Request("dqn", "CartPole-v1", [f"env.stack={stack}"], [], "none")).config
        assert plan.cannot_train(cfg, specs) == "" == plan.cannot_train(cfg, specs)
    assert len(specs) == 2


def test_a_short_key_is_the_same_setting_for_all(tmp_path):
    words = ("--envs", "CartPole-v1", "--algos", "ppo,dqn", "--runs-dir", tmp_path, "--dry-run")
    refused = call("bench", *words, "--sweep", "epsilon=0.1,0.2")
    assert refused.code != 0 and "E104" in refused.err
    assert "epsilon is eval.epsilon of ppo, but algo.epsilon of dqn" in refused.err
    assert call("bench", *words, "lr=1e-3", "--sweep", "gamma=0.9,0.99").code == 0


def test_an_error_says_which_pair_it_is_about(tmp_path):
    words = ("--envs", "CartPole-v1", "--algos", "dqn,ppo", "warmup=100", "--runs-dir", tmp_path)
    answer = call("bench", *words)
    assert answer.code == 2 and "where: ppo on CartPole-v1, command line" in answer.err


def test_a_suite_that_has_no_preset_left_is_refused(tmp_path):
    wish = BenchRequest(("BipedalWalker-v3",), ("dqn",), (1,), suite=SUITES["classic"])
    with pytest.raises(LudusError, match="E107"):
        plan_matrix(wish, tmp_path)


def test_a_run_is_not_a_bench(tmp_path):
    (tmp_path / "classic" / "checkpoints").mkdir(parents=True)
    answer = call("bench", "classic", "--runs-dir", tmp_path)
    assert answer.code == 1 and "E301" in answer.err


def test_cores_are_shared(monkeypatch):
    monkeypatch.setattr(plan.os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    monkeypatch.setattr(plan, "available_cores", lambda: 8)
    assert core_shares(1) == [""]
    assert core_shares(3) == ["0,1", "2,3", "4,5"]
    assert core_shares(9) == [""] * 9, "more runs than cores: the system shares them out"
    plain, wide = (
        resolve(Request("dqn", "CartPole-v1", words)).config for words in ([], ["env.workers=2"])
    )
    assert auto_jobs([plain], 30) == 8 and auto_jobs([plain], 3) == 3
    assert auto_jobs([plain, wide], 30) == 1


def test_gpus_are_dealt_out(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,6")
    assert plan.device_shares(3) == ["4", "6", "4"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4")
    assert plan.device_shares(2) == ["", ""]


def cells(*seeds):
    return [Cell("dqn", "CartPole-v1", seed, f"s{seed}") for seed in seeds]


def test_a_matrix_grows_but_its_settings_stay(tmp_path):
    first, wanted = merged(Matrix(tmp_path, "classic", ["steps=1k"], cells=cells(1, 2)))
    assert wanted == first.cells
    first.cells[0].state, first.cells[0].score = "finished", 3.0
    first.save()
    more, wanted = merged(Matrix(tmp_path, "classic", ["steps=1k"], cells=cells(2, 3)))
    assert [c.run for c in more.cells] == ["s1", "s2", "s3"] and [c.seed for c in wanted] == [2, 3]
    assert more.cells[0].score == 3.0
    for other in (Matrix(tmp_path, None, ["steps=2k"]), Matrix(tmp_path, None, ["steps=1k"], "p")):
        with pytest.raises(LudusError, match="E307") as refused:
            merged(other)
        assert "--name" in refused.value.fix


TOLD = [
    ({"state": "finished"}, "finished"),
    ({"state": "stopped", "reason": "time limit"}, "finished"),  # run.time: as long as was asked
    ({"state": "stopped", "reason": "interrupted"}, "stopped"),
    ({"state": "running"}, "stopped"),  # by nobody any more
    (None, "waiting"),
]


@pytest.mark.parametrize("before", ["running", "finished"])
@pytest.mark.parametrize(("result", "state"), TOLD, ids=lambda x: str(x))
def test_what_a_run_says_counts_and_not_what_a_killed_bench_wrote(result, state, before, tmp_path):
    cell = Cell("dqn", "CartPole-v1", 1, "x", state=before)
    matrix = Matrix(tmp_path, cells=[cell])
    if result is not None:
        run = matrix.run_dir(cell)
        run.path.mkdir()
        run.config.write_text("algo: {name: dqn}\nenv: {id: CartPole-v1}\nrun: {seed: 1}\n")
        run.status.write_text(json.dumps({**result, "step": 70, "score": 12.5}))
        run.metrics.write_text(json.dumps({"step": 70, "seconds": 3.5}) + "\n")
    assert matrix.refresh(cell) == ("finished" if state == "finished" else "")
    assert cell.state == state and cell.step == (70 if result else None)
    if state == "finished":
        assert (cell.score, cell.scored_by, cell.seconds) == (12.5, "training", 3.5)


def test_a_file_that_is_no_bench_is_refused(tmp_path):
    assert load_matrix(tmp_path) is None
    (tmp_path / "bench.json").write_text("{")
    with pytest.raises(LudusError, match="E105"):
        load_matrix(tmp_path)
    matrix = Matrix(tmp_path, cells=[Cell("dqn", "X", 1, "../../etc")])
    matrix.save()
    with pytest.raises(LudusError, match="E103"):
        load_matrix(tmp_path)
    result = json.loads((tmp_path / "bench.json").read_text())
    (tmp_path / "bench.json").write_text(json.dumps({**result, "format": 99}))
    with pytest.raises(LudusError, match="E105"):
        load_matrix(tmp_path)


def test_a_bench_keeps_no_secret_and_needs_it_again(tmp_path):
    given = ["env.args.api_key=s3cr3t-12", "steps=1k"]
    first, _ = merged(Matrix(tmp_path, None, given, cells=[Cell("ppo", "E", 1, "x")]))
    first.save()
    assert "s3cr3t-12" not in first.path.read_text()
    again, (cell,) = merged(Matrix(tmp_path, None, given, cells=[Cell("ppo", "E", 1, "x")]))
    assert given[0] in again.words(cell)
    with pytest.raises(LudusError, match="E307"):
        merged(Matrix(tmp_path, None, given[1:]))
    with pytest.raises(LudusError, match="E104"):
        parse_sweeps(["env.args.api_key=a,b"])
