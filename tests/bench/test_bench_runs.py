"""A matrix of real runs: killed, stopped, with failures, and started again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import deque
from pathlib import Path

import psutil
import pytest

from ludus.bench import results
from ludus.bench.matrix import load_matrix
from ludus.bench.runner import Runner, Share
from ludus.track.metrics.writer import read_metrics
from ludus.track.run_dir.lock import RunLock, holder
from tests.bench.tables import table
from tests.cli.conftest import call

ENV = "ludus/Identity-v0"
TINY = ["env.num=8", "rollout=16", "epochs=1", "minibatches=1", "tensorboard=off", "run.keep=1"]
RUNS = [f"ludus-Identity-v0-ppo-s{seed}" for seed in (1, 2)]


def words(runs, *more, envs=ENV):
    return ["bench", "--envs", envs, "--algos", "ppo", *TINY, *more, "--name", "b",
            "--runs-dir", str(runs)]  # fmt: skip


@pytest.fixture
def bench(tmp_path):
    """Starts `ludus bench` as a process of its own, and leaves nothing running."""
    made = []

    def start(*more):
        process = subprocess.Popen(
            [sys.executable, "-m", "ludus", *words(tmp_path, *more)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        made.append(process)
        return process

    yield start
    for process in made:
        if process.poll() is None:
            kill_all(process)
        process.stdout.close()


def kill_all(process):
    """The bench and every process below it, at once and without warning."""
    family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
    for member in family:
        member.kill()
    psutil.wait_procs(family, timeout=20)


def wait_for(condition, process, seconds=120.0):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return
        assert process.poll() is None, process.stdout.read()
        time.sleep(0.01)
    raise AssertionError("it did not come to that")


def state(folder: Path, run: str) -> str:
    return json.loads((folder / run / "status.json").read_text())["state"] if (
        folder / run / "status.json"
    ).is_file() else ""  # fmt: skip


def saved(folder: Path, run: str) -> bool:
    """It trains, and has a checkpoint."""
    return state(folder, run) == "running" and (folder / run / "checkpoints" / "last").exists()


def begun(folder: Path, run: str) -> list[tuple[str, int]]:
    events = read_metrics(folder / run / "events.jsonl")
    return [(e["kind"], e["step"]) for e in events if e["kind"] in ("start", "resume")]


def files(folder: Path, run: str) -> dict[str, bytes]:
    names = ("status.json", "episodes.csv", "metrics.jsonl", "events.jsonl", "log.txt")
    return {name: (folder / run / name).read_bytes() for name in names}


@pytest.mark.slow  # five runs of 8k steps in processes
@pytest.mark.accept(126)
def test_killed_half_way_it_finishes_the_rest_and_nothing_twice(bench, tmp_path):
    folder, size = tmp_path / "b", ("steps=8k", "checkpoint_every=800", "--jobs", "1")
    process = bench(*size, "--seeds", "2")

    done, half = RUNS
    wait_for(lambda: saved(folder, half), process)
    kill_all(process)
    before = files(folder, done)
    assert state(folder, done) == "finished" and state(folder, half) == "running"
    assert [c.state for c in load_matrix(folder).cells] == ["finished", "running"]
    again = call(*words(tmp_path, *size, "--seeds", "2", "--json"))
    assert again.code == 0, again.err
    assert [c["state"] for c in again.json["cells"]] == ["finished"] * 2
    assert [c["attempts"] for c in again.json["cells"]] == [1, 2]
    assert files(folder, done) == before, "a finished run is left alone"
    assert begun(folder, done) == [("start", 0)]
    (start, resume) = begun(folder, half)
    assert start == ("start", 0) and resume[0] == "resume" and resume[1] >= 800
    for run in RUNS:  # every episode once, whatever was killed over it
        rows = [r for r in table(folder / run / "episodes.csv") if r["end"] != "checkpoint"]
        assert len({(r["step"], r["slot"]) for r in rows}) == len(rows) > 400
    third = call(*words(tmp_path, *size, "--seeds", "2", "--json"))
    assert third.json["cells"] == again.json["cells"], "nothing is left to do"
    loud, quiet = (call(*words(tmp_path, *size, "--seeds", "2", *q)) for q in ((), ("-q",)))
    assert loud.code == 0 and loud.out.endswith(quiet.out) and "2 of 2 finished" in quiet.out
    assert "2 runs, 1 at a time" in loud.out and "2 runs" not in quiet.out
    (row,) = table(folder / "results.csv")
    assert (row["finished"], row["seeds"]) == ("2", "1 2")
    assert row["mean"] == str(again.json["results"][0]["mean"])


@pytest.mark.slow  # four runs in processes
def test_runs_save_and_leave_when_the_bench_is_gone_or_asked_to(bench, tmp_path):
    folder, size = tmp_path / "b", ("steps=100M", "checkpoint_every=800", "--jobs", "1")
    run = RUNS[0]
    process = bench(*size, "--seeds", "2")
    wait_for(lambda: saved(folder, run), process)
    process.kill()  # it alone
    process.wait(20)
    end = time.monotonic() + 60
    while holder(folder / run) is not None and time.monotonic() < end:
        time.sleep(0.05)
    assert state(folder, run) == "stopped", "its checkpoint is of its last step"
    first = json.loads((folder / run / "status.json").read_text())["step"]
    assert int((folder / run / "checkpoints" / "last").resolve().name) == first

    process = bench(*size, "--seeds", "2")
    wait_for(lambda: len(begun(folder, run)) == 2 and state(folder, run) == "running", process)
    process.send_signal(signal.SIGINT)
    assert process.wait(90) == 130
    assert begun(folder, run)[1] == ("resume", first)
    by_run = {c.run: c for c in load_matrix(folder).cells}
    assert (by_run[run].state, by_run[run].attempts) == ("stopped", 2)
    assert (by_run[RUNS[1]].state, by_run[RUNS[1]].attempts) == ("waiting", 0)
    assert holder(folder / run) is None and holder(folder) is None
    assert "the same command again" in process.stdout.read()


@pytest.mark.slow  # six runs in processes; test_plan.py has the rest of line 126 in `make test`
@pytest.mark.accept(126)
def test_a_failure_is_reported_and_retried_and_stops_no_other_run(tmp_path, monkeypatch):
    module = tmp_path / "fragile.py"
    module.write_text(
        "import gymnasium\n"
        "class Env(gymnasium.Env):\n"
        "    observation_space = gymnasium.spaces.Box(0.0, 1.0, (1,))\n"
        "    action_space = gymnasium.spaces.Discrete(2)\n"
        "    def reset(self, *, seed=None, options=None):\n"
        "        return self.observation_space.low, {}\n"
        "    def step(self, action):\n"
        "        raise RuntimeError('the wheel came off')\n"
    )
    monkeypatch.chdir(tmp_path)  # where a person's own module lies
    size = ("steps=400", "eval.episodes=2", "--seeds", "1,", "--jobs", "2")
    asked = words(tmp_path, *size, envs=f"{ENV},fragile:Env")
    first = call(*asked)
    assert first.code == 3, first.err
    assert "the wheel came off" in first.out and "E205" in first.out
    assert "1 of 2 finished, 1 failed" in first.out and "results.csv" in first.out
    assert "report:" in first.out
    good, bad = load_matrix(tmp_path / "b").cells
    assert (good.state, good.scored_by, good.episodes) == ("finished", "eval while training", 2)
    assert (bad.state, bad.attempts) == ("failed", 1) and "the wheel came off" in bad.error
    better = "return self.observation_space.low, 1.0, True, False, {}"
    text = module.read_text().replace("raise RuntimeError('the wheel came off')", better)
    module.write_text(text)
    second = call(*asked)
    assert second.code == 0, second.out + second.err
    good, bad = load_matrix(tmp_path / "b").cells
    assert (good.attempts, bad.attempts) == (1, 2) and bad.state == "finished" and bad.error is None


class Silent:
    def __init__(self):
        self.result = []

    def started(self, cell):
        self.result.append(("started", cell.run))

    def ended(self, cell):
        self.result.append((cell.state, cell.run))

    def update(self, running):
        pass

    def say(self, text):
        self.result.append(text)


def test_what_a_kill_left_of_a_directory_is_out_of_the_way(tmp_path):
    from ludus.bench.matrix import Cell, Matrix

    matrix = Matrix(tmp_path, cells=[Cell("ppo", ENV, 1, "empty"), Cell("ppo", ENV, 1, "part")])
    for cell in matrix.cells:
        (tmp_path / cell.run / "checkpoints").mkdir(parents=True)
    (tmp_path / "part" / ".config.yaml.1.tmp").touch()
    runner = Runner(matrix, [Share()], Silent())
    assert runner._leftover(matrix.cells[0]) == [] and not (tmp_path / "empty").exists()
    assert runner._leftover(matrix.cells[1]) == ["--fresh"]


def test_a_run_that_still_saves_elsewhere_is_waited_for(tmp_path, monkeypatch):
    """However long it takes: started in parallel, it would fail for the lock."""
    from ludus.bench.matrix import Cell, Matrix

    matrix, said = Matrix(tmp_path, cells=[Cell("ppo", ENV, 1, "x")]), []
    watcher = Silent()
    monkeypatch.setattr(watcher, "say", said.append, raising=False)
    runner, left = Runner(matrix, [Share()], watcher), deque(matrix.cells)
    monkeypatch.setattr(runner, "_start", lambda cell, share: cell)
    (tmp_path / "x").mkdir()
    waited_for: set[str] = set()
    with RunLock(tmp_path / "x"):
        for _ in range(3):
            runner._next(0, left, waited_for)
    assert runner.jobs == [None] and len(left) == 1 and len(said) == 1 and "waiting" in said[0]
    runner._next(0, left, waited_for)
    assert runner.jobs == matrix.cells and not left


def test_the_report_is_no_reason_to_fail(tmp_path, monkeypatch):
    from ludus.bench.matrix import Cell, Matrix

    matrix = Matrix(tmp_path, cells=[Cell("ppo", ENV, 1, "x")])
    assert results.write_report(matrix) == (None, "no run has finished")
    matrix.cells[0].state = "finished"
    asked = []

    def write_report(runs, out, *, title=None):
        asked.append((list(runs), out, title))
        if len(asked) > 1:
            raise RuntimeError("no ink")
        return out

    monkeypatch.setattr("ludus.reporting.write_report", write_report)
    assert results.write_report(matrix) == (tmp_path / "report.html", "")
    assert asked == [([tmp_path / "x"], tmp_path / "report.html", tmp_path.name)]
    assert "no ink" in results.write_report(matrix)[1]


def test_cores_of_a_cell_are_its_own(tmp_path):
    core = str(min(os.sched_getaffinity(0)))
    code = (
        "import os, sys, runpy\n"
        f"sys.argv = ['cell', str(os.getppid()), {core!r}, 'list', 'algos', '--json']\n"
        "try:\n    runpy.run_module('ludus.bench.cell', run_name='__main__')\n"
        "except SystemExit as ended:\n    print('exit', ended.code)\n"
        f"print(os.sched_getaffinity(0) == {{{core}}})\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.splitlines()[-2:] == ["exit 0", "True"], done.stderr
    assert '"dqn"' in done.stdout
