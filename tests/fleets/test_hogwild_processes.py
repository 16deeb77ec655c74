"""Hogwild with real processes: equality with one process, exact counts, deaths, signals, resume."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from multiprocessing import forkserver
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch

from ludus.errors import LudusError
from ludus.fleets.hogwild.shared_parameters import Board
from ludus.process.fork_server import process_context
from ludus.process.shared_tensors import SharedTensors
from ludus.settings.sections import FLEETS
from ludus.track.callbacks import Callback
from ludus.track.checkpoint.reader import load
from ludus.track.metrics.writer import read_metrics
from tests.contract.same import same_checkpoints
from tests.contract.tiny import run, tiny
from tests.envs.conftest import module_of  # noqa: F401 (a fixture)
from tests.started import gone, kept, survivors

ROOT = Path(__file__).parents[2]
QUICK = ("env.num=1", "t_max=5", "log.every=200")


def hogwild(actors: int) -> tuple[str, ...]:
    return ("run.fleet=hogwild", f"run.actors={actors}")


def raise_counter(slab: SharedTensors, index: int, times: int) -> None:
    board = Board(slab)
    for _ in range(times):
        board.add(index, "steps", 1)


EQUAL = {
    "a3c": ("a3c", ()),
    "a3c with rmsprop": ("a3c", ("optimizer={kind: rmsprop, eps: 0.1}",)),
    "a3c with an lstm": ("a3c", ("lstm=8",)),
    "async-q": ("async-q", ("target_period=150",)),
    "async-nstep-q with normalisers": (
        "async-nstep-q",
        ("env.normalize={obs: true, reward: true}", "optimizer={kind: sgd, momentum: 0.9}"),
    ),
}  # fmt: skip


@pytest.mark.accept(82)
@pytest.mark.accept(25)
@pytest.mark.parametrize("what", EQUAL)
def test_one_worker_equals_inline_bit_for_bit(what, tmp_path) -> None:
    name, settings = EQUAL[what]
    words = (*QUICK, "steps=1300", "checkpoint_every=500", "lr=1e-2->0", *settings)
    here = run(tiny(name, "CartPole-v1", *words), tmp_path)
    there = run(tiny(name, "CartPole-v1", *words, *hogwild(1)), tmp_path)
    assert here.updates >= 200 and here.updates == there.updates and here.step == there.step
    same_checkpoints(here.path, there.path)
    episodes = [(p / "episodes.csv").read_text().splitlines() for p in (here.path, there.path)]
    assert [x.split(",")[:5] for x in episodes[0]] == [x.split(",")[:5] for x in episodes[1]]
    lines = [list(read_metrics(p / "metrics.jsonl"))[-1] for p in (here.path, there.path)]
    assert lines[0]["step"] == lines[1]["step"]


@pytest.mark.accept(84)
def test_counters_are_exact_under_concurrency() -> None:
    context = process_context("ludus")
    slab = SharedTensors.like(Board.room(6), context)
    procs = [context.Process(target=raise_counter, args=(slab, i, 20_000)) for i in range(6)]
    for p in procs:
        p.start()
    for p in procs:
        p.join(120)
    assert Board(slab).steps == 6 * 20_000


@pytest.mark.accept(84)
@pytest.mark.accept(82)
def test_the_run_ends_at_its_steps_plus_at_most_a_fragment_each(tmp_path) -> None:
    cfg = tiny("async-q", "CartPole-v1", *QUICK, "steps=1500", "checkpoint_every=400", *hogwild(5))
    result = run(cfg, tmp_path)
    assert 1500 <= result.step <= 1500 + 5 * 5
    saved = load(result.path)
    numbers = saved.state["replay"]["numbers"]
    assert numbers["steps_inserted"] == numbers["samples_drawn"] == result.step == saved.step
    assert numbers["popped"] == result.updates
    slots = {x.split(",")[1] for x in (result.path / "episodes.csv").read_text().splitlines()[1:]}
    assert slots == {"0", "1", "2", "3", "4"}
    manifest = json.loads((result.path / "manifest.json").read_text())
    assert len(manifest["drawn"]["epsilon"]) == 5
    line = list(read_metrics(result.path / "metrics.jsonl"))[-1]
    assert line["learner/loss"] > 0 and line["performance/episodes"] > 10


@pytest.fixture
def modest_server(monkeypatch) -> Iterator[None]:
    """A fork server whose processes leave the cores to other tests, which a hundred of them would
    starve. One that is there already was started by another test and has imported something else;
    this one is for no other test."""
    server = forkserver._forkserver
    server._stop()

    def modest(*preload: str):
        context = process_context(*preload)
        os.setpriority(os.PRIO_PROCESS, server._forkserver_pid, 19)
        return context

    monkeypatch.setattr("ludus.fleets.hogwild.loop.process_context", modest)
    yield
    server._stop()


@pytest.mark.slow  # a hundred processes
@pytest.mark.accept(83)
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("modest_server")
def test_a_hundred_workers_start_train_and_stop(tmp_path) -> None:
    """Also in little memory: what the fork server has imported, they share."""
    seen: dict[int, int] = {}

    class Measure(Callback):
        def on_episode(self, run, episode):
            if not seen:
                for member in run.loop.fleet.members.values():
                    info = psutil.Process(member.process.pid).memory_full_info()
                    seen[member.process.pid] = info.uss

    settings = ("steps=3000", "actor.hang_seconds=300")  # for those who wait for a core
    cfg = tiny("a3c", "CartPole-v1", *QUICK, *settings, *hogwild(100))
    result = run(cfg, tmp_path, callbacks=[Measure()])
    assert result.reason == "finished" and 3000 <= result.step <= 3000 + 100 * 5
    assert len(seen) == 100 and all(map(gone, seen))
    assert sum(seen.values()) / 100 < 2 * FLEETS["hogwild"].actor_bytes, "bytes of its own"


@pytest.mark.parametrize("statistics", ["true", "false"])
def test_a_resumed_run_goes_on_with_weights_and_statistics(statistics, tmp_path) -> None:
    settings = (*QUICK, *hogwild(2), f"run.shared_statistics={statistics}")
    optimizer = "optimizer={kind: rmsprop, eps: 0.1, initial_square: 1e6}"
    cfg = tiny("a3c", "CartPole-v1", *settings, "steps=600", optimizer)
    first = run(cfg, tmp_path)
    before = load(first.path)
    extra = [k for k in before.tensors.get("envs", {}) if k.startswith("stat1/")]
    assert bool(extra) == (statistics == "false")
    longer = tiny("a3c", "CartPole-v1", *settings, "steps=1500", "horizon=600", optimizer)
    from ludus import registry
    from ludus.run.session import train_run

    result = train_run(longer, registry.make(longer.algo), path=first.path, resume=True, quiet=True)
    after = load(first.path)
    assert result.step >= 1500 and after.state["updates"] > before.state["updates"] + 40
    # The square average decays by 0.99 an update from 1e6: had it begun anew, it would be higher.
    key = "0/square"
    assert after.tensors["optim"][key].mean() < before.tensors["optim"][key].mean()
    for name in extra:
        if name.endswith("square"):
            assert after.tensors["envs"][name].mean() < before.tensors["envs"][name].mean()


def test_an_environment_that_cannot_be_made_stops_the_start(
    module_of,  # noqa: F811
    tmp_path,
) -> None:
    name = module_of(
        """
        import multiprocessing
        from ludus.envs.test_envs import Counter
        class Shy(Counter):
            def __init__(self):
                if multiprocessing.parent_process() is not None:
                    raise RuntimeError("not in a worker")
                super().__init__()
        """
    )
    with pytest.raises(LudusError, match="not in a worker"):
        run(tiny("a3c", f"{name}:Shy", *QUICK, *hogwild(2)), tmp_path)


def test_numbers_that_are_not_finite_end_the_run_with_a_checkpoint(tmp_path) -> None:
    cfg = tiny(
        "a3c", "ludus/Counter-v0", *QUICK, "steps=5000", "env.reward_scale=1e30", *hogwild(2)
    )
    with pytest.raises(LudusError) as caught:
        run(cfg, tmp_path)
    assert caught.value.code == "E401"
    [path] = tmp_path.iterdir()
    assert all(w.isfinite().all() for w in load(path).tensors["model"].values())
    assert list((path / "crash").rglob("nonfinite-*"))


def test_a_callback_on_updates_is_refused(tmp_path) -> None:
    class Each(Callback):
        def on_update(self, run, metrics):
            return None

    with pytest.raises(LudusError, match="on_update"):
        run(tiny("a3c", "CartPole-v1", *QUICK, *hogwild(1)), tmp_path, callbacks=[Each()])


def start(tmp_path: Path, *words: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-m", "ludus", "train", "a3c", "CartPole-v1", "steps=10M", "--preset",
         "none", "log.tensorboard=false", "log.every=200", *hogwild(2), "--quiet", "--runs-dir",
         str(tmp_path), "--run", "it", *words],
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    return kept(process)


def family(parent: subprocess.Popen[str], tmp_path: Path, seconds: float = 120.0) -> list[int]:
    """The processes of a run that is under way."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        lines = tmp_path / "it" / "metrics.jsonl"
        if lines.is_file() and lines.read_text().count("\n") >= 2:
            return [p.pid for p in psutil.Process(parent.pid).children(recursive=True)]
        assert parent.poll() is None, parent.stderr.read() if parent.stderr else ""
        time.sleep(0.1)
    raise AssertionError("it did not begin to train")


@pytest.mark.slow  # a whole run in a process
def test_nobody_outlives_a_killed_main_process(tmp_path) -> None:
    memory = set(os.listdir("/dev/shm"))
    parent = start(tmp_path)
    pids = family(parent, tmp_path)
    assert len(pids) >= 3, "a fork server and two workers"
    parent.kill()
    parent.wait(60)
    assert not survivors(pids)
    deadline = time.monotonic() + 60  # others on this machine make and unlink semaphores there
    while (more := set(os.listdir("/dev/shm")) - memory) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not more


@pytest.mark.slow  # two runs in processes
def test_an_interrupt_leaves_a_checkpoint_and_the_run_can_go_on(tmp_path) -> None:
    parent = start(tmp_path)
    pids = family(parent, tmp_path)
    for pid in [parent.pid, *pids]:  # as a terminal does: the whole group hears it
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGINT)
    assert parent.wait(60) == 130
    assert not survivors(pids)
    saved = load(tmp_path / "it")
    assert saved.step > 0 and saved.state["replay"]["numbers"]["steps_inserted"] == saved.step
    done = subprocess.run(
        [sys.executable, "-m", "ludus", "resume", str(tmp_path / "it"), f"steps={saved.step + 400}",
         "--quiet"],
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, timeout=200,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    again = load(tmp_path / "it")
    assert again.step >= saved.step + 400 and again.state["updates"] > saved.state["updates"]


def test_shared_tensors_keep_shape_kind_and_place() -> None:
    given = {
        "a": torch.arange(5, dtype=torch.int64), "b": torch.randn(3, 7), "c": torch.zeros(0, 4),
        "d": torch.tensor(2.5, dtype=torch.float64),
    }  # fmt: skip
    slab = SharedTensors.like(given, process_context("ludus"))
    for name, t in given.items():
        got = slab.tensor(name)
        assert torch.equal(got, t) and got.dtype == t.dtype and got.shape == t.shape
        assert got.numel() == 0 or got.data_ptr() % 64 == 0
    slab.tensor("b").fill_(1.0)
    np.testing.assert_array_equal(slab.tensor("b").numpy(), 1.0)
    assert torch.equal(slab.tensor("a"), given["a"])
