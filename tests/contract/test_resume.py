"""A run killed between two checkpoints and resumed by another process equals the one that was
never interrupted, bit for bit. Driven by the registry: a new algorithm is tested by being there."""

from __future__ import annotations

import random
import signal
from pathlib import Path

import pytest

from ludus.cli.main import run as command
from ludus.track.checkpoint.format import checkpoint_paths
from ludus.track.checkpoint.reader import load
from ludus.track.metrics.writer import read_metrics
from ludus.track.run_dir.rundir import RunDir
from ludus.track.run_dir.status import read_status
from tests import forked
from tests.contract.same import same_checkpoints, same_runs
from tests.contract.tiny import ONE_OF_EACH_HEAD, fitting, overrides, run, tiny

# Two checkpoints before the end; the best of five episodes also has to come out the same.
SHORT = ("steps=600", "checkpoint_every=200", "best_window=5")


def ludus(*words: str, kill_at: int | None = None, hash_seed: int = 1) -> int:
    """`ludus WORDS...` as a process of its own, to its exit code."""
    done = forked.run(*words, hash_seed=hash_seed, environ={"KILL_AT_UPDATE": str(kill_at)})
    assert done.returncode in (0, -signal.SIGKILL), done.stderr + done.stdout
    return done.returncode


def killed_and_resumed(
    name: str, env: str, whole: Path, folder: Path, settings: tuple[str, ...]
) -> Path:
    """The same run from the command line, killed at a random update past its first checkpoint."""
    first = min(checkpoint_steps(whole))
    before = next(r["updates"] for r in read_metrics(whole / "metrics.jsonl") if r["step"] == first)
    last = load(whole).state["updates"]
    rng = random.Random(f"{name} {env}")  # of a string: the same in every process
    kill_at = rng.randint(before + 1, last - 1)
    quiet = ("log.tensorboard=false", "log.every=200", "env.num=2")
    code = ludus(
        "train", name, env, *quiet, *overrides(name), *settings, "--preset", "none", "--quiet",
        "--runs-dir", str(folder), "--run", "cut", "--callback", "tests.contract.kill:AtUpdate",
        kill_at=kill_at, hash_seed=1,
    )  # fmt: skip
    cut = folder / "cut"
    assert code == -signal.SIGKILL, "the process was to be killed"
    assert read_status(RunDir(cut))["state"] == "dead"
    left = load(cut)
    assert 0 < left.state["updates"] < kill_at <= last and left.step < load(whole).step
    assert ludus("resume", str(cut), "--quiet", hash_seed=2) == 0
    return cut


def checkpoint_steps(path: Path) -> list[int]:
    """Where the run saved, also what was deleted since."""
    return [r["step"] for r in read_metrics(path / "events.jsonl") if r["kind"] == "checkpoint"]


@pytest.mark.accept(140)
@pytest.mark.accept(85)
@pytest.mark.parametrize("name", ONE_OF_EACH_HEAD)  # two processes each: the others are slow
def test_killed_and_resumed_equals_uninterrupted(name, tmp_path) -> None:
    env, needed = fitting(name, "CartPole-v1")
    whole = run(tiny(name, env, *needed, *SHORT), tmp_path).path
    cut = killed_and_resumed(name, env, whole, tmp_path, (*needed, *SHORT))
    same_runs(whole, cut)
    same_checkpoints(whole, cut, "best")
    assert (
        checkpoint_paths(whole / "checkpoints").keys()
        == checkpoint_paths(cut / "checkpoints").keys()
    )


VARIED = {
    "normalisers": ("ppo", "Pendulum-v1", ("env.normalize={obs: true, reward: true}",)),
    "frame stacks, processes, groups": (
        "rainbow",
        "ludus/IdentityPixels-v0",
        ("env.stack=3", "env.workers=1", "env.groups=2"),
    ),
    "memories": (
        "impala",
        "ludus/CartPoleNoVelocity-v0",
        ("env.groups=2", "algo.recurrent.hidden=8"),
    ),
    "memories, learning in parallel": (
        "impala",
        "ludus/CartPoleNoVelocity-v0",
        ("env.num=3", "run.overlap=on", "algo.recurrent.hidden=8"),
    ),
    "actor states, groups": ("dqn", "CartPole-v1", ("env.groups=2", "algo.persist=2")),
    "a learned temperature": ("sac", "Pendulum-v1", ()),
    "scales of rewards": (
        "double-dqn",
        "Acrobot-v1",
        ("env.reward_scale=running_max", "env.max_episode_steps=40"),
    ),
}


@pytest.mark.accept(140)
@pytest.mark.parametrize("what", VARIED)
def test_whatever_else_has_state_comes_back(what, tmp_path) -> None:
    name, env, settings = VARIED[what]
    settings += (*SHORT, "eval.every=250", "eval.episodes=2")
    whole = run(tiny(name, env, *settings), tmp_path).path
    cut = killed_and_resumed(name, env, whole, tmp_path, settings)
    same_runs(whole, cut)
    if what == "scales of rewards":
        assert load(cut).tensors["envs"], "the running maxima travel in the checkpoint"
    if what == "normalisers":
        model = load(cut).tensors["model"]
        assert model["normalizer.count_0"] > 500 and model["normalizer.var_return"] != 1


@pytest.mark.accept(140)
@pytest.mark.parametrize("name", ["rainbow-iqn", "ppo"])
def test_a_run_made_longer_equals_one_that_was_long_from_the_start(name, tmp_path) -> None:
    """Schedules keep the horizon they were planned for."""
    settings = ("steps=400", "checkpoint_every=200")
    long = tiny(name, "CartPole-v1", "steps=600", "horizon=400", "checkpoint_every=200")
    whole = run(long, tmp_path).path
    cut = run(tiny(name, "CartPole-v1", *settings), tmp_path).path
    assert load(cut).step < load(whole).step
    assert command(["resume", str(cut), "steps=+200", "--quiet"]) == 0
    same_runs(whole, cut)
