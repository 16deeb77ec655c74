"""Trackers in a process of their own: they get every point, and a bad one harms nothing.

The packages are stand-ins (fakes/): what is tested is our side, and the calls they get.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import psutil
import pytest

from ludus.errors import LudusError
from ludus.process.supervisor import kill_group
from ludus.track.metrics import trackers
from ludus.track.metrics.sinks import Copies
from ludus.track.metrics.trackers import Tracker, check_trackers, open_trackers
from ludus.track.metrics.writer import read_metrics
from ludus.track.run_dir.rundir import RunDir
from tests.contract.tiny import run, tiny

FAKES = Path(__file__).parent / "fakes"
LOG = {"screenshots": 0, "tag": "", "tensorboard": False, "wandb": None, "trackio": None}
WANDB = {"project": "p", "mode": "offline", "entity": None, "group": None}


@pytest.fixture
def calls(tmp_path, monkeypatch):
    """The stand-ins are installed; what they were called with comes back."""
    file = tmp_path / "calls.jsonl"
    monkeypatch.syspath_prepend(str(FAKES))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(FAKES), os.environ["PYTHONPATH"]])
                       if os.environ.get("PYTHONPATH") else str(FAKES))  # fmt: skip
    monkeypatch.setenv("FAKE_TRACKER_CALLS", str(file))
    monkeypatch.delenv("FAKE_TRACKER", raising=False)

    def read(kind=None):
        found = [json.loads(x) for x in file.read_text().splitlines()] if file.exists() else []
        return [c for c in found if kind in (None, c["call"])]

    return read


@pytest.fixture
def patient(monkeypatch):
    """Whoever is to hear of everything has the time for it: an import takes long where others are
    busy."""
    monkeypatch.setattr(trackers, "END_SECONDS", 100.0)


@pytest.fixture
def tracker(tmp_path, calls):
    """Makes trackers, and leaves none behind."""
    made, said = [], []

    def make():
        start = {"id": "abcd", "name": "x", "tag": "", "folder": str(tmp_path), "config": {}}
        it = Tracker("wandb", {**start, "settings": WANDB}, tmp_path / "log.txt", said.append)
        made.append(it)
        return it

    make.said = said
    yield make
    for it in made:
        kill_group(it._process)


def until(condition, seconds=100.0):
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.02)
    return condition()


def place(tmp_path):
    return RunDir.create(tmp_path / "runs", "e", "a", 1, name="x")


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("kind", trackers.KINDS)
def test_a_run_and_its_continuation_are_one_there(kind, calls, tmp_path):
    words = ("steps=400", "log.every=100", f"log.{kind}.project=mine", "log.tag=night")
    cfg = tiny("dqn", "ludus/Identity-v0", *words)
    first = run(cfg, tmp_path)
    written = read_metrics(first.path / "metrics.jsonl")
    assert len(written) >= 4
    for call, line in zip(calls("log"), written, strict=True):
        result = call["values"]
        assert (call["step"] or result.pop("step")) == line["step"]
        assert result["learner/loss"] == line["learner/loss"]
        assert all(isinstance(v, int | float) for v in result.values())
    (start,) = calls("init")
    assert start["project"] == "mine" and start["resume"] == "allow"
    assert start["config"]["run"]["steps"] == 400
    tag = start["tags"] if kind == "wandb" else [start["group"]]
    assert tag == ["night"] and start["name"].startswith(first.path.name)
    assert len(calls("finish")) == 1
    Copies(RunDir(first.path), cfg.tree(), None, print).close()
    again = calls("init")[1]
    key = "id" if kind == "wandb" else "name"
    assert again[key] == start[key], "a resumed run goes on in the same place"


@pytest.mark.usefixtures("patient")
def test_w_and_b_uses_our_steps_and_hears_how_it_ended(calls, tmp_path):
    for state, code in (("finished", 0), ("failed", 1)):
        log = {**LOG, "wandb": WANDB}
        copies = Copies(RunDir(tmp_path), {"log": log}, None, print)
        copies.write(5, {"a": 1, "b": float("nan"), "c": "text", "d": True, "e": None})
        copies.write(3, {"a": 2})  # a resumed run goes back to its checkpoint
        copies.close(state)
        assert calls("finish")[-1]["exit_code"] == code
    assert [c["values"] for c in calls("log")[:2]] == [{"a": 1, "step": 5}, {"a": 2, "step": 3}]
    assert {"call": "define_metric", "name": "*", "step_metric": "step"} in calls()
    assert calls("init")[0]["mode"] == "offline" and calls("init")[0]["dir"] == str(tmp_path)


@pytest.mark.parametrize("where", ["init", "log"])
def test_one_that_blocks_for_ever_takes_no_more_than_a_queue(where, tracker, calls, monkeypatch):
    monkeypatch.setenv("FAKE_TRACKER", f"block {where}")
    monkeypatch.setattr(trackers, "QUEUE", 50)
    it = tracker()
    point = {f"metric/{i}": float(i) for i in range(200)}
    for step in range(400):
        it.write(step, point)
    assert until(lambda: calls("blocking")), "it hangs, and writing went on"
    assert it.dropped > 200 and it.waiting <= 51
    assert [x for x in tracker.said if "does not keep up" in x] == tracker.said, "said once"
    process = psutil.Process(it._process.pid)
    it.ending("finished")
    it.wait(time.monotonic() + 0.2)
    assert not process.is_running()
    assert "was stopped" in tracker.said[-2]
    assert tracker.said[-1].endswith(f"missed {it.dropped + it.waiting} lines of metrics")


@pytest.mark.parametrize("behaviour", ["block log", "block finish", "crash init", "crash finish"])
def test_the_run_ends_as_it_would_without(behaviour, calls, tmp_path, monkeypatch):
    monkeypatch.setenv("FAKE_TRACKER", behaviour)
    assert trackers.END_SECONDS < 30
    monkeypatch.setattr(trackers, "END_SECONDS", 1.0 if "block" in behaviour else 100.0)
    words = ("steps=300", "log.every=100", "log.wandb=on")
    ended = run(tiny("dqn", "ludus/Identity-v0", *words), tmp_path)
    assert (ended.exit_code, ended.reason) == (0, "finished")
    assert len(read_metrics(ended.path / "metrics.jsonl")) >= 3
    result = (ended.path / "log.txt").read_text()
    assert "warning: wandb" in result
    if "crash" in behaviour:
        assert "no luck in" in result and "tracker-wandb.txt" in result


def test_it_leaves_by_itself_when_the_run_was_killed(tracker, calls):
    it = tracker()
    it.write(1, {"a": 1.0})
    os.write(it._pipe.fileno(), b'{"step": 2, "val')  # torn by the kill
    it._pipe.close()
    assert until(lambda: it._process.poll() is not None)
    assert it._process.returncode == 0, it._log.read_text()
    assert calls("finish")[-1]["exit_code"] == 1


def test_what_is_not_installed_is_refused_first(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(trackers, "KINDS", ("wandb_that_nobody_has",))
    log = {**LOG, "wandb_that_nobody_has": {}}
    (tmp_path / "wandb_that_nobody_has").mkdir()  # a folder of results is no package
    with pytest.raises(LudusError, match="E501") as refused:
        check_trackers(log)
    assert "'.[wandb_that_nobody_has]'" in refused.value.fix
    check_trackers(LOG)
    assert open_trackers(place(tmp_path), {"log": LOG}, print) == []
