"""What goes wrong in a run, injected: numbers that are not finite, disks that refuse, damaged
checkpoints, signals. Each time: said, contained, and nothing that was saved is lost."""

from __future__ import annotations

import errno
import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import gymnasium as gym
import numpy as np
import psutil
import pytest
import torch
from safetensors.torch import load_file

from ludus import registry
from ludus.algos.dqn import DQN
from ludus.cli.main import run as command
from ludus.contract import Values
from ludus.errors import LudusError
from ludus.learn.learner import Learner
from ludus.run import saving
from ludus.run.session import train_run
from ludus.track.callbacks import Callback
from ludus.track.checkpoint import writer as writing
from ludus.track.checkpoint.reader import load
from ludus.track.metrics.writer import read_metrics
from ludus.track.run_dir.lock import RunLock
from ludus.track.run_dir.rundir import RunDir
from ludus.track.run_dir.status import read_status
from ludus.types import Sample
from tests.contract.same import same_checkpoints, same_metrics, same_runs
from tests.contract.tiny import overrides, run, tiny
from tests.learn.toy import SPEC, Toy, transition
from tests.started import kept, survivors

ROOT = Path(__file__).parents[2]


class BadReward(gym.Env):
    """Finite rewards for a while, then one that no float32 holds a square of."""

    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, bad: float = 1e30, after: int = 150) -> None:
        self.bad, self.left = bad, after

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.left -= 1
        reward = self.bad if self.left < 0 else 1.0
        return self.np_random.uniform(-1, 1, 2).astype(np.float32), reward, False, False, {}


def weights(net) -> dict[str, torch.Tensor]:
    return {k: v.clone() for k, v in net.state_dict().items()}


class Poisoned(Toy):
    """One bad batch: its loss is not a number, or only its gradient is."""

    def __init__(self, how: str, good: int = 2, **plan) -> None:
        super().__init__(**plan)
        self.how, self.good = how, good

    def loss(self, net, batch, ctx):
        loss = super().loss(net, batch, ctx)
        if len(self.seen) <= self.good:
            return loss
        if self.how == "loss":
            return loss._replace(value=loss.value * float("nan"))
        # sqrt is 0 at 0 and its slope is infinite there.
        return loss._replace(value=loss.value + torch.sqrt(net["online"].a.sum() * 0))


@pytest.mark.parametrize("how", ["loss", "gradient"])
def test_not_finite_is_caught_in_the_same_update(how, tmp_path) -> None:
    algorithm = Poisoned(how, schedules={"lr": Toy().plan.schedules["lr"]})
    learner = Learner(algorithm, SPEC, seed=1, crash_dir=tmp_path / "crash")
    values = Values(algorithm.plan, 100).at(0)
    obs = torch.arange(12.0).reshape(4, 3)
    sample = Sample(transition(obs), torch.arange(4), torch.ones(4))
    for _ in range(2):
        assert learner.learn(sample, values) is not None
    before = weights(learner.net)
    assert learner.learn(sample, values) is None, "no priorities from a refused update"
    assert (learner.updates, learner.skipped) == (2, 1)
    assert all(torch.equal(before[k], v) for k, v in weights(learner.net).items())
    (dump,) = (tmp_path / "crash").iterdir()
    held = load_file(dump)
    assert torch.equal(held["batch.obs"], obs)
    assert all(torch.equal(before[k], held[f"net.{k}"]) for k in before)


def test_a_good_update_ends_the_count(tmp_path) -> None:
    algorithm = Poisoned("loss", good=0)
    learner = Learner(algorithm, SPEC, seed=1, nan_limit=3)
    values = Values(algorithm.plan, 100).at(0)
    sample = Sample(transition(torch.ones(4, 3)), torch.arange(4), torch.ones(4))
    for bad in (True, True, False, True, True):
        algorithm.good = 0 if bad else 10**9
        learner.learn(sample, values)
    assert (learner.skipped, learner.skipped_in_a_row) == (4, 2)
    algorithm.good = 0
    with pytest.raises(LudusError) as caught:
        learner.learn(sample, values)
    assert caught.value.code == "E401" and caught.value.exit_code == 3


def test_only_the_newest_dumps_are_kept(tmp_path) -> None:
    """A run that limps along must not fill the disk with evidence."""
    algorithm = Poisoned("loss", good=0)
    learner = Learner(algorithm, SPEC, seed=1, nan_limit=99, crash_dir=tmp_path)
    sample = Sample(transition(torch.ones(4, 3)), torch.arange(4), torch.ones(4))
    for _ in range(15):
        learner.learn(sample, Values(algorithm.plan, 100).at(0))
    names = sorted(p.name for p in tmp_path.iterdir())
    assert len(names) == 10 and names[-1] == "nonfinite-000000001-15.safetensors"


def test_a_dump_that_cannot_be_written_does_not_end_the_run(tmp_path) -> None:
    (tmp_path / "file").write_text("")
    learner = Learner(Poisoned("loss", good=0), SPEC, seed=1, crash_dir=tmp_path / "file" / "crash")
    values = Values(learner.plan, 100).at(0)
    learner.learn(Sample(transition(torch.ones(4, 3)), torch.arange(4), torch.ones(4)), values)
    assert learner.skipped == 1


@pytest.mark.parametrize("name", ["dqn", "prioritized-dqn", "ppo"])
def test_three_in_a_row_stop_the_run_with_its_checkpoint(name, tmp_path, capsys) -> None:
    """Through the command line: huge rewards make the loss overflow."""
    code = command(
        ["train", name, f"{__name__}:BadReward", "steps=2k", "checkpoint_every=100",
         "tensorboard=off", "env.num=2", "env.max_episode_steps=20", *overrides(name),
         *([] if name == "ppo" else ["algo.head.loss=mse"]), "--preset", "none", "-q",
         "--runs-dir", str(tmp_path), "--run", "x"]
    )  # fmt: skip
    shown = capsys.readouterr()
    assert code == 3, shown.err
    assert "error[E401]" in shown.err and "3 updates in a row" in shown.err and "fix:" in shown.err
    status = read_status(RunDir(tmp_path / "x"))
    assert status["state"] == "failed" and "E401" in status["reason"]
    saved = load(tmp_path / "x", status["step"])
    assert (
        saved.rescue
        and load(tmp_path / "x").step < saved.step == status["step"] > 150
        and saved.state["skipped"] >= 3
    )
    assert saved.state["updates"] == status["updates"] > 0
    assert all(v.isfinite().all() for v in saved.tensors["model"].values() if v.is_floating_point())
    dumps = sorted((tmp_path / "x" / "crash").iterdir())
    assert len(dumps) == saved.state["skipped"]
    held = load_file(dumps[-1])
    assert all(torch.equal(v, held[f"net.{k}"]) for k, v in saved.tensors["model"].items())
    assert "E401" in (tmp_path / "x" / "log.txt").read_text()


def test_a_reward_that_is_not_a_number_never_reaches_the_learner(tmp_path) -> None:
    cfg = tiny("dqn", f"{__name__}:BadReward", "steps=2k", "env.args={bad: .nan}")
    with pytest.raises(LudusError) as caught:
        run(cfg, tmp_path)
    assert caught.value.code in ("E202", "E205") and "nan" in caught.value.what
    (path,) = tmp_path.iterdir()
    status = read_status(RunDir(path))
    assert status["state"] == "failed" and status["updates"] > 0


def test_a_run_goes_on_past_a_bad_update(tmp_path, monkeypatch) -> None:
    """One poisoned loss in the middle: counted in metrics.jsonl, nothing else happens."""
    true_loss, calls = DQN.loss, []

    def loss(self, net, batch, ctx):
        calls.append(0)
        found = true_loss(self, net, batch, ctx)
        return found._replace(value=found.value * float("nan")) if len(calls) == 30 else found

    monkeypatch.setattr(DQN, "loss", loss)
    result = run(tiny("prioritized-dqn", "CartPole-v1", "steps=500"), tmp_path)
    assert result.exit_code == 0 and result.updates == len(calls) - 1
    assert read_metrics(result.path / "metrics.jsonl")[-1]["learner/skipped_updates"] == 1
    assert len(list((result.path / "crash").iterdir())) == 1


def test_a_second_run_in_the_directory_is_refused(tmp_path) -> None:
    cfg = tiny("dqn", "CartPole-v1", "steps=200")
    path = run(cfg, tmp_path).path
    before = {p: p.read_bytes() for p in path.rglob("*") if p.is_file() and p.name != "LOCK"}
    with RunLock(path), pytest.raises(LudusError) as caught:
        train_run(cfg, registry.make(cfg.algo), path=path, resume=True, quiet=True)
    assert caught.value.code == "E302" and str(os.getpid()) in caught.value.what
    assert before == {p: p.read_bytes() for p in before}


class Refusing(Callback):
    """From the given checkpoint on (or for `times` saves), the disk is full."""

    def __init__(self, monkeypatch, after: int, times: int = 10**9) -> None:
        self.left, self.saved = times, 0
        real = writing._write_file

        def write(path, data):
            if self.saved >= after and path.name == "state.json" and self.left > 0:
                self.left -= 1
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return real(path, data)

        monkeypatch.setattr(writing, "_write_file", write)

    def on_checkpoint(self, run, path):
        self.saved += 1


DISK = ("steps=1000", "checkpoint_every=100", "best_window=1000")


def test_two_missed_checkpoints_are_said_and_made_up_for(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(saving, "APART", 0.0)
    cfg = tiny("prioritized-dqn", "CartPole-v1", *DISK)
    full = Refusing(monkeypatch, after=3, times=2)
    path = run(cfg, tmp_path, callbacks=[full]).path
    log = (path / "log.txt").read_text()
    assert log.count("No space left") == 2 and "1 of 3 misses" in log and "2 of 3" in log
    assert full.saved == 8 and full.left == 0
    events = read_metrics(path / "events.jsonl")
    missed = [e["step"] for e in events if e["kind"] == "checkpoint missed"]
    assert len(missed) == 2 and missed[0] == pytest.approx(400, abs=3)
    # Nothing but the pieces of replay differs from a run whose disk was fine.
    monkeypatch.undo()
    whole = run(cfg, tmp_path).path
    same_checkpoints(whole, path, replay=False)
    same_metrics(whole, path)
    assert load(path).state["replay"]["size"] == load(whole).state["replay"]["size"]


def test_three_missed_checkpoints_end_the_run_with_what_is_saved(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(saving, "APART", 0.0)
    cfg = tiny("prioritized-dqn", "CartPole-v1", *DISK)
    with pytest.raises(LudusError) as caught:
        run(cfg, tmp_path, callbacks=[Refusing(monkeypatch, after=3)])
    error = caught.value
    assert error.code == "E301" and error.exit_code == 3 and "3 checkpoints in a row" in error.what
    assert "No space left" in error.what and "ludus resume" in error.fix
    (path,) = tmp_path.iterdir()
    status = read_status(RunDir(path))
    assert status["state"] == "failed" and status["step"] == pytest.approx(600, abs=3)
    assert load(path).step == pytest.approx(300, abs=3) and f"step {load(path).step}" in error.where
    assert not [p for p in (path / "checkpoints").iterdir() if p.name.startswith(".")]
    # With space again, it goes on to where it would have been.
    monkeypatch.undo()
    train_run(cfg, registry.make(cfg.algo), path=path, resume=True, quiet=True)
    same_runs(run(cfg, tmp_path).path, path)


def test_an_end_that_cannot_be_saved_is_an_error(tmp_path, monkeypatch) -> None:
    cfg = tiny("ppo", "CartPole-v1", "steps=300", "checkpoint_every=200")
    with pytest.raises(LudusError) as caught:
        run(cfg, tmp_path, callbacks=[Refusing(monkeypatch, after=1)])
    assert caught.value.code == "E301" and "last steps are not saved" in caught.value.what
    (path,) = tmp_path.iterdir()
    assert read_status(RunDir(path))["state"] == "failed"


def test_a_best_that_cannot_be_saved_is_tried_again(tmp_path, monkeypatch) -> None:
    full = Refusing(monkeypatch, after=0, times=1)
    cfg = tiny("dqn", "CartPole-v1", "steps=600", "checkpoint_every=600", "best_window=3")
    path = run(cfg, tmp_path, callbacks=[full]).path
    assert full.left == 0 and "warning: best" in (path / "log.txt").read_text()
    assert load(path, "best").state["score"] == load(path).state["scores"]["best"] is not None


class Filled(Callback):
    """After the first checkpoint no file may grow beyond a few kilobytes, as on a full disk."""

    def on_checkpoint(self, run, path):
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))


@pytest.mark.slow  # a whole run in a process
def test_a_full_disk_through_the_command_line(tmp_path) -> None:
    """Metrics, TensorBoard, status and checkpoints are refused by the system itself."""
    done = ludus(
        "train", "dqn", "CartPole-v1", "steps=500", "warmup=64", "batch=8", "checkpoint_every=100",
        "log.every=2", "env.num=2", "--runs-dir", tmp_path, "--run", "x",
        "--callback", f"{__name__}:Filled",
    )  # fmt: skip
    out, err = done.communicate(timeout=200)
    assert done.returncode == 3, err + out
    assert "error[E301] the last steps are not saved" in err and "fix:" in err
    assert out.count("misses that end the run") == 2, "those in between were not tried"
    assert out.count("lines wait in memory") == 1 and out.count("lines are lost") == 1
    assert load(tmp_path / "x").step == pytest.approx(100, abs=3)


def ludus(*words) -> subprocess.Popen:
    """`python -m ludus WORDS...`, in a process group of its own."""
    process = subprocess.Popen(
        [sys.executable, "-m", "ludus", *map(str, words)],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    return kept(process)


def wait_for_updates(process, path: Path) -> None:
    until = time.monotonic() + 200
    while time.monotonic() < until and process.poll() is None:
        if (path / "metrics.jsonl").is_file() and '"learner/loss"' in (
            path / "metrics.jsonl"
        ).read_text():
            return
        time.sleep(0.05)
    if process.poll() is None:
        process.kill()  # else there is no end of what it says
    raise AssertionError(process.communicate(timeout=10))


@pytest.mark.accept(141)
@pytest.mark.parametrize(
    "number",
    [
        signal.SIGTERM,
        *(
            pytest.param(s, marks=pytest.mark.slow)
            for s in (signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)
        ),
    ],
)  # a whole run in a process, and its resume; all signals take the same way
def test_a_signal_to_the_whole_group_saves_and_the_run_goes_on_from_there(number, tmp_path) -> None:
    """As Ctrl-C in a terminal does it: workers get the signal too, and must not die of it."""
    path = tmp_path / "x"
    process = ludus(
        "train", "dqn", "ludus/Identity-v0", "steps=100M", "warmup=40", "batch=8",
        "tensorboard=off", "log.every=50", "checkpoint_every=1M", "env.num=2", "env.workers=2",
        "--runs-dir", tmp_path, "--run", "x",
    )  # fmt: skip
    try:
        wait_for_updates(process, path)
        family = psutil.Process(process.pid).children(recursive=True)
        assert len(family) >= 2
        os.killpg(process.pid, number)
        out, err = process.communicate(timeout=120)
    finally:
        if process.poll() is None:
            process.kill()
    assert process.returncode == 128 + number, out + err
    assert not survivors(p.pid for p in family)
    status = read_status(RunDir(path))
    saved = load(path)
    assert status["state"] == "stopped" and saved.step == status["step"] > 0
    assert command(["resume", str(path), f"steps={saved.step + 100}", "-q"]) == 0
    after = load(path)
    assert after.step >= saved.step + 100 and after.state["updates"] > saved.state["updates"]


def test_a_flipped_byte_in_the_newest_checkpoint_is_named(tmp_path, capsys) -> None:
    cfg = tiny("dqn", "CartPole-v1", "steps=400", "checkpoint_every=100")
    path = run(cfg, tmp_path).path
    newest, before = sorted(p for p in (path / "checkpoints").glob("0*"))[-1:-3:-1]
    for file in ("optim.safetensors", "state.json", "manifest.json"):
        whole = (newest / file).read_bytes()
        data = bytearray(whole)
        data[len(data) // 3] ^= 0x10
        (newest / file).write_bytes(data)
        with pytest.raises(LudusError) as caught:
            load(path)
        assert caught.value.code == "E305" and newest.name in caught.value.render()
        assert file in caught.value.render()
        (newest / file).write_bytes(whole if file != "manifest.json" else data)
    assert command(["resume", str(path)]) == 0
    shown = capsys.readouterr().out
    assert newest.name in shown and "manifest.json" in shown and "earlier checkpoint" in shown
    first = next(e for e in read_metrics(path / "events.jsonl") if e["kind"] == "resume")
    assert first["step"] == int(before.name)
    same_runs(run(cfg, tmp_path).path, path)


@pytest.mark.parametrize("hook", ["on_start", "on_end"])
def test_a_callback_that_raises_leaves_a_trace(hook, tmp_path) -> None:
    def raises(*_):
        raise RuntimeError("no")

    bad = type("Bad", (Callback,), {hook: raises})()
    with pytest.raises(LudusError) as caught:
        run(tiny("dqn", "CartPole-v1", "steps=100"), tmp_path, callbacks=[bad])
    assert caught.value.code == "E402"
    (path,) = tmp_path.iterdir()
    assert read_status(RunDir(path))["state"] == "failed"
    assert "RuntimeError: no" in (path / "log.txt").read_text()
    assert json.loads((path / "manifest.json").read_text())
