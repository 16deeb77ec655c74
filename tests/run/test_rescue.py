"""What ends a run costs nothing that was learned; what need not end it does not."""

from __future__ import annotations

import errno
import time

import pytest

from ludus import registry
from ludus.cli.main import run as command
from ludus.errors import LudusError
from ludus.run.build import build_loop
from ludus.run.loop import Loop
from ludus.track.checkpoint.reader import load
from ludus.track.run_dir.rundir import RunDir
from tests.contract.tiny import run, tiny
from tests.fleets.test_processes import free, loop_of


@pytest.mark.parametrize("overlap", ["off", "on"])
@pytest.mark.parametrize("workers", [0, 1])
def test_an_environment_that_fails_leaves_a_checkpoint(tmp_path, workers, overlap):
    words = ("env.num=2", f"env.workers={workers}", "steps=10k", "run.checkpoint_every=1M")
    cfg = tiny("dqn", "tests.run.sleepers:Dying", *words, f"run.overlap={overlap}")
    with pytest.raises(LudusError, match="E205"):
        run(cfg, tmp_path)
    (made,) = tmp_path.iterdir()
    saved = load(made)
    assert 250 < saved.step <= 302 and saved.state["updates"] > 10
    assert command(["resume", str(made), "steps=400", "--quiet", "--trust"]) == 0
    assert load(made).step >= 400


def test_a_failed_environment_says_how_to_go_on(tmp_path, capsys):
    words = ["env.num=2", "steps=10k", "warmup=40", "batch=8", "tensorboard=off", "report=off"]
    place = tmp_path / "x"
    train = ["train", "dqn", "tests.run.sleepers:Dying", *words, "-q"]
    assert command([*train, "--runs-dir", str(tmp_path), "--run", "x"]) == 3
    result, step = capsys.readouterr().err, load(place).step
    assert "error[E205]" in result and f"step {step} of the run" in result
    assert f"saved at step {step}" in result and str(place / "log.txt") in result
    again = f"ludus resume {place} --import tests.run.sleepers env.on_error=restart"
    assert again in result and "Traceback" not in result
    assert "Traceback" in (place / "log.txt").read_text()


def test_what_is_left_is_tried_without_a_barrier(tmp_path, monkeypatch):
    """An environment may fail in the barrier that a checkpoint begins with."""
    barrier = Loop.barrier

    def fails(loop, number):
        if number:
            raise LudusError("E205", "a tooth broke")
        barrier(loop, number)

    monkeypatch.setattr(Loop, "barrier", fails)
    monkeypatch.setattr(Loop, "record", lambda *_: refuse("E206"))
    with pytest.raises(LudusError, match="E206"):
        run(tiny("dqn", "CartPole-v1", "steps=10k", "run.exact=on"), tmp_path)
    (made,) = tmp_path.iterdir()
    assert load(made).step > 0
    assert "warning: while saving: a tooth broke" in (made / "log.txt").read_text()


def refuse(code):
    raise LudusError(code, "enough")


def test_a_full_disk_does_not_keep_an_actor_from_being_replaced(tmp_path, monkeypatch):
    loop = free(tmp_path, env="tests.run.sleepers:Dying", **{"actor.restarts": 100})
    refused = []

    def full(path, data):
        refused.append(path)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("ludus.fleets.health.write_atomic", full)
    deadline = time.monotonic() + 120
    while loop.fleet.restarts.count < 2:
        loop.iterate()
        assert time.monotonic() < deadline
    loop.close()
    assert len(refused) >= 2


def test_stacks_that_cannot_be_written_do_not_keep_an_actor_from_working(tmp_path, monkeypatch):
    nowhere = tmp_path / "a file"
    nowhere.touch()
    monkeypatch.setattr("ludus.fleets.actor_fleet.stack_file", lambda *_: nowhere / "x")
    loop = loop_of(tmp_path / "run", "dqn", "processes")
    while not all(member.worked for member in loop.fleet.members):
        loop.iterate()
    assert loop.fleet.restarts.count == 0
    loop.close()


@pytest.mark.parametrize(
    ("capacity", "num", "rows"), [(2_000, 64, 0), (10_000, 16, 500), (2_000, 64, 40)]
)
def test_chunks_of_free_actors_fit_however_few_rows_a_column_has(tmp_path, capacity, num, rows):
    words = ("fleet=processes", "actors=2", f"env.num={num}", f"capacity={capacity}")
    words += (f"actor.rows={rows}",) if rows else ()
    cfg = tiny("dqn", "CartPole-v1", *words, "warmup=500", "steps=1M")
    loop, _ = build_loop(cfg, registry.make(cfg.algo), RunDir(tmp_path))
    loop.barrier(0)
    while loop.learner.updates < 3:
        loop.iterate()
    assert loop.fleet.restarts.count == 0
    loop.close()
