"""Rescue checkpoints never take the place of good ones; `--at` goes back to a checkpoint."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from ludus.algos.dqn import DQN
from ludus.cli.main import run as command
from ludus.errors import LudusError
from ludus.track.callbacks import Callback
from ludus.track.checkpoint import format as layout
from ludus.track.checkpoint.reader import load, load_newest_good
from ludus.track.metrics.writer import read_metrics
from ludus.units import show_count
from tests.contract.same import same_checkpoints, same_runs
from tests.contract.tiny import overrides, run, tiny

BAD = "tests.run.test_faults:BadReward"


def fails(tmp_path: Path, *more: str) -> int:
    return command(
        ["train", "dqn", BAD, "steps=2k", "checkpoint_every=50", "keep=2", "tensorboard=off",
         "env.num=2", "env.max_episode_steps=20", *overrides("dqn"), "algo.head.loss=mse",
         "--preset", "none", "-q", "--runs-dir", str(tmp_path), "--run", "x", *more]
    )  # fmt: skip


def kinds(path: Path) -> dict[int, str]:
    found = layout.checkpoint_paths(path / "checkpoints").items()
    return {step: layout.read_manifest(folder).kind for step, folder in found}


def poisoned(true_loss):
    def loss(self, net, batch, ctx):
        found = true_loss(self, net, batch, ctx)
        return found._replace(value=found.value * float("nan"))

    return loss


def test_rescue_checkpoints_do_not_push_good_ones_out(tmp_path, capsys, monkeypatch) -> None:
    path = tmp_path / "x"
    assert fails(tmp_path) == 3
    first = kinds(path)
    good = [step for step, kind in first.items() if kind == "full"]
    assert len(good) == 2 and list(first.values()) == ["full", "full", "rescue"]
    assert "rescue" in capsys.readouterr().out
    monkeypatch.setattr(DQN, "loss", poisoned(DQN.loss))
    for _ in range(3):
        assert command(["resume", str(path), "--trust", "-q"]) == 3
        now = kinds(path)
        assert [step for step, kind in now.items() if kind == "full"] == good
        assert layout.read_pointer(path / "checkpoints", "last") == good[-1]
        assert load_newest_good(path).step == load(path).step == good[-1]
    shown = capsys.readouterr().out
    rescue = max(kinds(path))
    assert f"--at {rescue}" in shown and "non-finite" in shown
    health = load(path, rescue).state["health"]
    assert health["refused_in_a_row"] == 3 and health["finite"] is True
    assert load(path).state["health"]["refused_in_a_row"] == 0


def test_a_rescue_is_resumed_from_only_by_its_step(tmp_path, capsys) -> None:
    """Also where it is all that there is."""
    path = tmp_path / "x"
    assert fails(tmp_path, "checkpoint_every=1M") == 3
    (rescue,) = kinds(path)
    capsys.readouterr()
    assert command(["resume", str(path), "--trust"]) == 1
    result = capsys.readouterr().err
    assert "E304" in result and f"ludus resume {path} --at {rescue}" in result
    with pytest.raises(LudusError, match="E304"):
        load_newest_good(path)
    assert command(["resume", str(path), "--at", str(rescue), "--trust", "-q"]) == 3
    assert "rescue" in capsys.readouterr().out
    assert read_metrics(path / "events.jsonl")[-1]["kind"] == "failed"


class Explodes(Callback):
    def on_episode(self, run, episode):
        if run.step >= 250:
            *_, bias = run.loop.learner.net["online"].parameters()
            with torch.no_grad():
                bias.fill_(1e20)  # its loss and gradients are still finite


def test_weights_that_exploded_are_a_rescue(tmp_path) -> None:
    cfg = tiny("dqn", "CartPole-v1", "steps=600", "checkpoint_every=100", "best_window=1")
    path = run(cfg, tmp_path, callbacks=[Explodes()]).path
    found = kinds(path)
    rescues = [step for step, kind in found.items() if kind == "rescue"]
    assert rescues == [max(found)], "of several only the newest is kept"
    assert load(path).step == pytest.approx(200, abs=3)
    assert load(path, "best").step < 260
    assert load(path, rescues[0]).state["health"]["largest"] == pytest.approx(1e20, rel=0.1)
    assert "exploded" in (path / "log.txt").read_text()


SHORT = ("steps=600", "checkpoint_every=100", "keep=9", "best_window=5", "log.every=50")


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    cfg = tiny("prioritized-dqn", "CartPole-v1", *SHORT, "eval.every=150", "eval.episodes=1")
    return run(cfg, tmp_path_factory.mktemp("runs")).path


@pytest.fixture
def copy(whole, tmp_path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "copy", symlinks=True))


def test_at_a_step_goes_back_exactly(whole, copy, capsys) -> None:
    before = kinds(copy)
    at = [step for step, kind in before.items() if kind == "full"][1]
    assert command(["resume", str(copy), "--at", str(at), "-q"]) == 0
    same_runs(whole, copy)
    same_checkpoints(whole, copy, "best")
    shown = capsys.readouterr().out
    assert f"back from step {max(before)} to {at}" in shown and "abandoned-1" in shown
    past = copy / "abandoned-1"
    assert list(kinds(past)) == [step for step in before if step > at]
    for name in ("metrics.jsonl", "episodes.csv", "evals.csv", "events.jsonl", "config.yaml"):
        assert (past / name).read_bytes() == (whole / name).read_bytes()
    assert load(past).step == max(before), "still a checkpoint to evaluate"
    resumed = next(e for e in read_metrics(copy / "events.jsonl") if e["kind"] == "resume")
    assert (resumed["step"], resumed["back_from"]) == (at, max(before))


def test_a_step_that_is_not_there_is_refused(copy, capsys) -> None:
    held = {p: p.read_bytes() for p in copy.rglob("*") if p.is_file()}
    best = next(step for step, kind in kinds(copy).items() if kind == "weights")
    for at, word in (("7", "available"), ("never", "available"), (str(best), "--init-from")):
        assert command(["resume", str(copy), "--at", at]) == 1
        result = capsys.readouterr().err
        assert "E304" in result and word in result
        if word == "available":
            assert f"{best} ({show_count(best)}, weights only)" in result
            assert "--checkpoint" not in result and "weights only" in result.split("last =")[0]
    assert held == {p: p.read_bytes() for p in held}


def test_a_checkpoint_named_by_its_path_tells_of_at(copy, capsys) -> None:
    step = min(kinds(copy))
    place = copy / "checkpoints" / layout.step_name(step)
    assert command(["resume", str(place)]) == 1
    assert f"ludus resume {copy} --at {step}" in capsys.readouterr().err
