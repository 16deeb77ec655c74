"""Learners that fail, hang or are killed: one clear error, no process left, and a checkpoint."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from ludus import registry
from ludus.errors import LudusError
from ludus.learn.group import LOOPBACK
from ludus.run.session import train_run
from ludus.seeding import env_seed
from ludus.track.callbacks import Callback
from ludus.track.checkpoint.reader import load
from ludus.track.run_dir.rundir import RunDir
from ludus.track.run_dir.status import read_status
from tests.contract.tiny import run, tiny
from tests.started import kept, survivors

pytestmark = pytest.mark.slow  # whole runs in several processes

ROOT = Path(__file__).parents[3]
TWO = ("actors=2", "learners=2", "checkpoint_every=100k")


class Watching(Callback):
    """Notes processes and listening sockets at the 20th update, then kills a learner if asked."""

    def __init__(self, *, kills: bool) -> None:
        self.kills, self.pids, self.addresses = kills, [], []

    def on_update(self, run, metrics):
        if self.pids or run.updates < 20:
            return {}
        (member,) = run.loop.members.members
        own = psutil.Process()
        self.pids = [member.process.pid, *run.loop.fleet.pids()]
        for pid in (own.pid, *self.pids):
            listens = psutil.Process(pid).net_connections("inet")
            self.addresses += [c.laddr.ip for c in listens if c.status == psutil.CONN_LISTEN]
        if self.kills:
            os.kill(member.process.pid, signal.SIGKILL)
        return {}


def test_a_killed_learner_ends_the_run_which_resumes(tmp_path) -> None:
    watching = Watching(kills=True)
    cfg = tiny("dqn", "CartPole-v1", *TWO, "steps=700", "fleet=processes", "actor.lockstep=on")
    with pytest.raises(LudusError, match="signal 9, SIGKILL") as caught:
        run(cfg, tmp_path, callbacks=[watching])
    assert caught.value.code == "E403" and caught.value.exit_code == 3
    assert "learner 1 of 2" in caught.value.where
    assert len(watching.pids) == 3 and survivors(watching.pids) == []
    own = {address.removeprefix("::ffff:") for address in watching.addresses}
    assert len(watching.addresses) >= 2 and own == {LOOPBACK}
    (path,) = tmp_path.iterdir()
    assert read_status(RunDir(path))["state"] == "failed"
    saved = load(path)
    assert saved.state["updates"] >= 20 and saved.replay is None, "a part of it was lost"
    result = train_run(cfg, registry.make(cfg.algo), path=path, resume=True, quiet=True)
    assert result.exit_code == 0 and result.step >= 700 and result.updates > 20


@pytest.mark.parametrize("learner", [0, 1])
def test_an_environment_that_fails_in_a_learner_ends_the_run_with_its_cause(
    learner, tmp_path
) -> None:
    """The other learner waits for gradients meanwhile. The checkpoint has the rows of both."""
    bad = env_seed(1, "env", 2 * learner, 0)
    words = (f"env.args={{bad: {bad}, at: 90}}", "env.on_error=stop", "steps=100k")
    with pytest.raises(LudusError, match="a tooth broke") as caught:
        run(tiny("dqn", "tests.run.sleepers:Flaky", *TWO, *words), tmp_path)
    assert caught.value.code == "E205"
    assert ("learner 1" in caught.value.where) == (learner == 1)
    (path,) = tmp_path.iterdir()
    saved = load(path)
    assert saved.step > 100 and any(n.startswith("learner1-rows") for n in saved.replay.names)


def _train(tmp_path, *words):
    command = [sys.executable, "-m", "ludus", "train", "dqn", *words, *TWO, "steps=10M",
               "warmup=50", "--runs-dir", str(tmp_path), "log.terminal=off"]  # fmt: skip
    return kept(subprocess.Popen(command, cwd=ROOT, start_new_session=True))


def _pids(process):
    return [child.pid for child in psutil.Process(process.pid).children(recursive=True)]


def _until(condition) -> None:
    while not condition():
        time.sleep(0.1)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_signal_to_the_main_process_leaves_no_learner(number, tmp_path) -> None:
    process = _train(tmp_path, "CartPole-v1")
    _until(lambda: list(tmp_path.glob("*/status.json")))
    run = RunDir(next(tmp_path.iterdir()))
    _until(lambda: read_status(run).get("updates", 0) > 0 or process.poll() is not None)
    pids = _pids(process)
    assert len(pids) >= 2
    os.kill(process.pid, number)
    code = process.wait()
    assert survivors(pids) == []
    if number == signal.SIGTERM:
        assert code == 143 and read_status(run)["reason"] == "terminated"
        saved = load(run.path)
        assert any(name.startswith("learner1-rows") for name in saved.replay.names)


def test_a_hung_environment_of_another_learner_does_not_prevent_a_checkpoint(tmp_path) -> None:
    bad, runs = env_seed(1, "env", 2, 0), tmp_path / "runs"
    asleep = tmp_path / "asleep"
    args = f"env.args={{bad: {bad}, at: 200, how: hang, asleep: {asleep}}}"
    process = _train(runs, "tests.run.sleepers:Flaky", args, "run.grace=2", "env.num=2")
    _until(lambda: asleep.exists() or process.poll() is not None)
    run, pids = RunDir(next(runs.iterdir())), _pids(process)
    os.kill(process.pid, signal.SIGTERM)
    assert process.wait() == 143 and survivors(pids) == []
    assert load(run.path).state["updates"] > 0
