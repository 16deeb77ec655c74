"""A signal leaves soon even where rows and episodes are slow: the unfinished is given up, what was
learned is saved, and the run goes on from there."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from ludus import registry
from ludus.collect.collector import Collector
from ludus.contract import Values
from ludus.envs import test_envs as probes
from ludus.envs.config import EnvConfig
from ludus.envs.make import make_envs
from ludus.evals.evaluate import AbandonedError, evaluate_policy
from ludus.learn.learner import Learner
from ludus.run.session import train_run
from ludus.settings.resolve import load_config
from ludus.settings.resume import extended
from ludus.track.checkpoint.reader import load
from ludus.track.run_dir.rundir import RunDir
from ludus.track.run_dir.status import read_status
from ludus.types import tree_leaves
from tests.contract.tiny import run, tiny

ROOT = Path(__file__).parents[2]


class StopAfter:
    """Says stop at the n-th question."""

    def __init__(self, n: int) -> None:
        self.left = n

    def __call__(self) -> bool:
        self.left -= 1
        return self.left < 0


@pytest.mark.parametrize("groups", [1, 2])
def test_a_collector_asked_to_stop_gives_up_its_chunk(groups) -> None:
    algorithm = registry.make(tiny("ppo", "ludus/Counter-v0").algo)
    scaled = EnvConfig(id="ludus/Counter-v0", num=4, groups=groups, reward_scale="running_max")
    envs = make_envs(scaled, seed=3)
    it, learner = Collector(algorithm, envs, seed=3), Learner(algorithm, envs.spec, seed=3)
    values = Values(algorithm.plan, 100).at(0)
    it.barrier(0)
    largest = envs.state()["largest_reward"]
    assert it.collect(learner.net, 20, values, StopAfter(3)) is None
    assert (envs.state()["largest_reward"] == largest).all(), "of rewards nobody will learn from"
    assert not it.ended, "of episodes nobody will see the rows of"
    cut = it.barrier(1)  # every answer was taken, or this would fail
    assert [e.length for e in cut] == [4] * 4
    whole = it.collect(learner.net, 20, values, StopAfter(19))
    assert whole is not None and whole.chunk.sequence == 0 and whole.chunk.breaks
    it.barrier(1)
    again = it.collect(learner.net, 20, values)
    for x, y in zip(tree_leaves(whole.chunk.rows.obs), tree_leaves(again.chunk.rows.obs),
                    strict=True):  # fmt: skip
        assert torch.equal(x, y)
    it.close()


def test_an_evaluation_asked_to_stop_is_cancelled() -> None:
    cfg = tiny("dqn", "CartPole-v1")
    algorithm = registry.make(cfg.algo)
    envs = make_envs(cfg.env, seed=1)
    net = Learner(algorithm, envs.spec, seed=1).net
    envs.close()
    with pytest.raises(AbandonedError):
        evaluate_policy(algorithm, net, cfg.env, episodes=5, seed=1, stopping=StopAfter(4))


def start(folder: Path, *words: str) -> subprocess.Popen:
    """`ludus train ... ludus/Slow-v0` in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "ludus", "train", words[0], "ludus/Slow-v0", *words[1:],
         "env.num=1", "tensorboard=off", "--runs-dir", str(folder), "--run", "x"],
        cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip


def interrupted(process: subprocess.Popen, file: Path, text: str, number: int) -> str:
    """Wait until `file` says `text`, send the signal, and wait for the end."""
    try:
        until = time.monotonic() + 60
        while not (file.is_file() and text in file.read_text()):
            assert time.monotonic() < until and process.poll() is None, process.communicate()
            time.sleep(0.05)
        time.sleep(0.5)  # into the rows, or the episodes
        process.send_signal(number)
        said, _ = process.communicate(timeout=30)  # the limit; unstopped, it would take longer
    finally:
        if process.poll() is None:
            process.kill()
    assert process.returncode == 128 + number, said
    return said


@pytest.mark.accept(141)
@pytest.mark.parametrize(
    "number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)]
)
def test_a_signal_does_not_wait_for_a_slow_rollout(number, tmp_path, monkeypatch) -> None:
    """200 rows of 0.2 s each would take 40 s."""
    words = ("ppo", "rollout=200", "steps=1000", "env.args={seconds: 0.2}")
    path = tmp_path / "x"
    interrupted(start(tmp_path, *words), path / "status.json", "running", number)
    assert read_status(RunDir(path))["state"] == "stopped"
    saved = load(path)
    assert saved.step == 0 and saved.resumable
    monkeypatch.setattr(probes, "time", SimpleNamespace(sleep=lambda seconds: None))
    cfg = extended(load_config(path / "config.yaml"), ["steps=400"]).config
    done = train_run(cfg, registry.make(cfg.algo), path=path, resume=True, quiet=True)
    assert done.reason == "finished" and load(path).step >= 400


@pytest.mark.parametrize(
    "when", ["eval.every=32", pytest.param("eval.every=10M", marks=pytest.mark.slow)]
)
def test_a_signal_gives_up_a_slow_evaluation(when, tmp_path) -> None:
    """During training, or the one at the end: episodes of 400 steps would take 40 s."""
    words = ("ppo", "rollout=16", f"steps={64 if when.endswith('32') else 16}", when,
             "eval.episodes=1", "env.args={seconds: 0.1, length: 400}")  # fmt: skip
    path = tmp_path / "x"
    # The hooks run in this order: the line of step 32, then the evaluation; or the checkpoint.
    file, text = path / "checkpoints" / f"{16:012d}" / "manifest.json", ""
    if when.endswith("32"):
        words, (file, text) = (*words, "log.every=32"), (path / "metrics.jsonl", '"step"')
    interrupted(start(tmp_path, *words), file, text, signal.SIGINT)
    assert "given up" in (path / "log.txt").read_text()
    assert len((path / "evals.csv").read_text().splitlines()) <= 1, "no more than its head"
    assert load(path).step == (32 if when.endswith("32") else 16)


def test_a_callback_that_ends_a_run_does_not_cut_its_evaluation(tmp_path) -> None:
    from ludus.track.callbacks import Callback

    class Enough(Callback):
        def on_episode(self, run, episode):
            run.stop("enough")

    cfg = tiny("dqn", "ludus/Counter-v0", "steps=200", "eval.every=1", "eval.episodes=2")
    path = run(cfg, tmp_path, callbacks=[Enough()]).path
    last = (path / "evals.csv").read_text().splitlines()[-1]
    assert last.startswith(f"{load(path).step},")
