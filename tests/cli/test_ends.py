"""How a run that was interrupted, killed or too short ends, and what is said of it."""

from __future__ import annotations

import json
import os
import signal

import pytest
import yaml

from ludus.run import session
from ludus.track.callbacks import Callback
from ludus.track.checkpoint.format import newest_resumable
from ludus.track.run_dir.rundir import RunDir
from ludus.track.run_dir.status import read_status
from tests.cli.conftest import call

TRAIN = ["train", "dqn", "ludus/Identity-v0", "steps=240", "warmup=40", "batch=8",
         "tensorboard=off", "report=off", "-q"]  # fmt: skip


class Signalled(Callback):
    """As many Ctrl-C as it is told, at the first episode that ends at or past a step."""

    times, step = 2, 150

    def on_episode(self, run, episode):
        if run.step >= self.step and self.times:
            times, self.times = self.times, 0
            for _ in range(times):
                os.kill(os.getpid(), signal.SIGINT)


class AtTheEnd(Signalled):
    times, step = 1, 240


def interrupted(runs, *words, by="Signalled"):
    words = [*words, "--callback", f"{__name__}:{by}", "--runs-dir", runs, "--run", "x"]
    return call(*TRAIN, *words)


def test_a_second_interrupt_says_that_nothing_was_saved(runs):
    answer = interrupted(runs, "checkpoint_every=1k")
    assert answer.code == 130 and "quit at step 1" in answer.out
    assert "nothing was saved" in answer.out and "next:" not in answer.out
    result = read_status(RunDir(runs / "x"))
    assert result["state"] == "failed" and "nothing was saved" in result["reason"]
    assert "E304" in call("resume", "x", "--runs-dir", runs).err


def test_a_second_interrupt_says_what_was_saved_before(runs):
    answer = interrupted(runs, "checkpoint_every=100")
    assert answer.code == 130 and "nothing was saved since step 100" in answer.out
    assert "next:" in answer.out and "ludus resume" in answer.out
    assert "since step 100" in read_status(RunDir(runs / "x"))["reason"]
    assert call("resume", "x", "--runs-dir", runs, "-q").code == 0


def test_a_run_that_begins_again_says_so_and_keeps_the_old_files(runs):
    interrupted(runs, "checkpoint_every=1k", "best_window=2")
    place = RunDir(runs / "x")
    before = place.episodes.read_text()
    assert newest_resumable(place.checkpoints) is None and (place.checkpoints / "best").exists()
    status = json.loads(place.status.read_text())
    place.status.write_text(json.dumps(status | {"state": "running"}))  # as a kill leaves it
    words = [*TRAIN, "checkpoint_every=1k", "best_window=2", "--runs-dir", runs, "--run", "x"]
    answer = call(*words)
    old = RunDir(place.path / "before-1")
    said = f"warning: the run was killed at step {status['step']} before its first checkpoint: "
    said += f"it begins again at step 0; its old files are in {old.path}"
    assert answer.code == 0 and said in answer.out and said in place.log.read_text()
    assert old.episodes.read_text() == before and (old.checkpoints / "best").exists()
    steps = [int(line.split(",")[0]) for line in place.episodes.read_text().splitlines()[1:]]
    assert steps == sorted(steps) and steps[-1] == 240, "the old rows do not stand before the new"
    assert read_status(place)["state"] == "finished" and call("ls", "--runs-dir", runs).code == 0
    assert "already" in call(*words).out, "and only once"


def test_one_that_never_did_a_step_begins_in_silence(runs, monkeypatch):
    def build(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(session, "build_loop", build)
        assert call(*TRAIN, "--runs-dir", runs, "--run", "x").code == 130
    result = read_status(RunDir(runs / "x"))
    assert (result["state"], result["reason"]) == ("stopped", "interrupted before the first step")
    answer = call(*TRAIN, "--runs-dir", runs, "--run", "x")
    assert answer.code == 0 and "warning" not in answer.out
    with monkeypatch.context() as patch:
        patch.setattr(session, "build_loop", build)
        assert call("resume", "x", "steps=+50", "--runs-dir", runs).code == 130
    assert read_status(RunDir(runs / "x"))["state"] == "finished", "as it was"


def test_an_interrupt_after_the_last_step_leaves_a_finished_run(runs):
    answer = interrupted(runs, "eval.episodes=1", by="AtTheEnd")
    assert answer.code == 130 and "finished at step 240" in answer.out
    assert "given up" in answer.out, "its evaluation"
    assert read_status(RunDir(runs / "x"))["state"] == "finished"
    assert "already at step 240" in call("resume", "x", "--runs-dir", runs).out


@pytest.mark.parametrize("state", ["stopped", "failed", "running"])
def test_a_run_without_steps_to_do_is_not_built_again(runs, monkeypatch, state):
    """Whatever it says of itself; but an evaluation that was asked for is made up for."""
    assert call(*TRAIN, "eval.episodes=1", "--runs-dir", runs, "--run", "x").code == 0
    place = RunDir(runs / "x")
    result = json.loads(place.status.read_text())
    place.status.write_text(json.dumps(result | {"state": state}))
    with monkeypatch.context() as patch:
        patch.setattr(session, "build_loop", None)
        assert "already at step 240" in call("resume", "x", "--runs-dir", runs).out
    assert read_status(place)["state"] == "finished"
    place.status.write_text(json.dumps(result | {"state": state}))
    place.evals.write_text(place.evals.read_text().splitlines()[0] + "\n")
    assert "finished at step 240" in call("resume", "x", "-q", "--runs-dir", runs).out
    assert place.evals.read_text().splitlines()[1].startswith("240,")


def test_status_shows_no_actors_of_a_run_that_is_over(runs):
    assert call(*TRAIN, "--runs-dir", runs, "--run", "x").code == 0
    place = RunDir(runs / "x")
    result = json.loads(place.status.read_text())
    place.status.write_text(json.dumps(result | {"actors": {"alive": 2, "pids": "7 8"}}))
    assert "actors" not in call("status", "x", "--runs-dir", runs, "--json").json


def test_status_prints_a_command_that_resumes_a_run_on_a_cluster(runs):
    assert call(*TRAIN, "--runs-dir", runs, "--run", "x").code == 0
    file = RunDir(runs / "x").config
    local = file.read_text()
    assert "--trust" not in call("status", "x", "--runs-dir", runs, "--json").json["resume"]
    tree = yaml.safe_load(local)
    tree["ray"]["address"] = "10.0.0.1:6379"
    file.write_text(yaml.safe_dump(tree))
    assert "--trust" not in call("status", "x", "--runs-dir", runs, "--json").json["resume"]
    tree["run"]["fleet"] = "ray"
    file.write_text(yaml.safe_dump(tree))
    assert call("status", "x", "--runs-dir", runs, "--json").json["resume"].endswith(" --trust")
    tree["run"]["fleet"] = ["ray"]
    file.write_text(yaml.safe_dump(tree))
    assert call("status", "x", "--runs-dir", runs).code == 0
