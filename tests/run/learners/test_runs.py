"""Runs with several learners: the same curve as one learner, equal weights, exact resume."""

from __future__ import annotations

import csv

import pytest
import torch

from ludus import registry
from ludus.run.learners.loop import GroupLoop, digest
from ludus.run.session import train_run
from ludus.settings.resolve import Request, resolve
from ludus.track.callbacks import Callback
from ludus.track.checkpoint.reader import load
from ludus.track.metrics.writer import read_metrics
from ludus.track.run_dir.rundir import RunDir
from ludus.track.run_dir.status import read_status
from tests.contract.same import same_checkpoints, same_metrics
from tests.contract.tiny import run, tiny

TWO = ("actors=2", "learners=2")
# Updates from all rows of both actors at once: only then is the batch of two learners that of one.
WHOLE = {"ppo": ("epochs=2", "minibatches=1"), "impala": ("batch=4",), "a2c": ()}


@pytest.fixture
def watched(monkeypatch):
    """(updates, own digest, those of the others) after every iteration of the first learner."""
    seen = []
    iterate = GroupLoop.iterate

    def watching(self):
        iterate(self)
        others = self.members.ask("digest")
        seen.append((self.learner.updates, digest(self.learner.net), others))

    monkeypatch.setattr(GroupLoop, "iterate", watching)
    return seen


def losses(path):
    rows = read_metrics(path / "metrics.jsonl")
    return [(r["step"], r["updates"]) for r in rows], [r["learner/loss"] for r in rows]


@pytest.mark.accept(24, 79)
@pytest.mark.parametrize(
    ("name", "compress"), [("ppo", "off"), ("impala", "off"), ("a2c", "off"), ("a2c", "zlib")]
)
def test_two_learners_give_the_curve_of_one(name, compress, tmp_path, watched) -> None:
    """With the same settings, so at equal global batch. The advantages of PPO are normalised over
    both halves, and observations by the rows of both."""
    words = ("actors=2", "steps=800", "log.every=100", "env.normalize.obs=true", *WHOLE[name])
    one = run(tiny(name, "CartPole-v1", *words), tmp_path).path
    assert not watched
    two = run(tiny(name, "CartPole-v1", *words, *TWO, f"compress={compress}"), tmp_path).path
    assert watched[-1][0] >= 10
    assert all(others == [own] for _, own, others in watched), "equal weights after each update"
    steps, curve = losses(one)
    assert losses(two)[0] == steps and len(curve) >= 6
    torch.testing.assert_close(losses(two)[1], curve, rtol=1e-4, atol=1e-5)
    a, b = (load(path).tensors["model"] for path in (one, two))
    for key in a:
        torch.testing.assert_close(b[key], a[key], rtol=1e-5, atol=1e-5, msg=key)
    ends = [[r[:4] for r in csv.reader((p / "episodes.csv").open())] for p in (one, two)]
    assert sorted(ends[0]) == sorted(ends[1]) and len(ends[0]) > 10


class Once(Callback):
    """Stops the run after its first checkpoint."""

    def on_checkpoint(self, run, path):
        run.stop("enough")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "more"),
    [("prioritized-dqn", ("compress=topk", "topk=0.2")), ("ppo", ("env.normalize.obs=true",))],
)
def test_a_resumed_run_equals_an_uninterrupted_one(name, more, tmp_path, watched) -> None:
    """Replay, priorities, generators and what compression has not sent, of every learner."""
    words = (*TWO, *more, "checkpoint_every=300", "steps=900")
    cfg = tiny(name, "CartPole-v1", *words)
    whole = run(cfg, tmp_path).path
    assert all(others == [own] for _, own, others in watched)
    half = run(cfg, tmp_path, callbacks=[Once()]).path
    assert 300 <= load(half).step < 400
    train_run(cfg, registry.make(cfg.algo), path=half, resume=True, quiet=True)
    same_checkpoints(whole, half)
    same_metrics(whole, half)
    if "compress=topk" in more:
        assert load(half).tensors["learners"].keys() == {"0", "1"}


@pytest.mark.slow
def test_two_learners_learn_cartpole(tmp_path) -> None:
    words = (*TWO, "eval.episodes=100", "log.tensorboard=false", "log.report=false")
    path = run(resolve(Request("ppo", "CartPole-v1", words, environ={})).config, tmp_path).path
    (row,) = csv.DictReader((path / "evals.csv").open())
    assert float(row["mean"]) >= 475


@pytest.mark.slow
def test_every_learner_adds_to_the_record(tmp_path) -> None:
    words = (*TWO, "env.normalize.obs=true", "steps=700")
    inline = run(tiny("dqn", "CartPole-v1", *words), tmp_path).path
    words = (*words, "fleet=processes", "actor.lockstep=on")
    path = run(tiny("dqn", "CartPole-v1", *words), tmp_path).path
    model, other = load(path).tensors["model"], load(inline).tensors["model"]
    assert all(torch.equal(model[key], other[key]) for key in model), "where actors run is the same"
    rows = list(csv.DictReader((path / "episodes.csv").open()))
    assert {int(row["slot"]) for row in rows} == {0, 1, 2, 3}
    status, last = read_status(RunDir(path)), read_metrics(path / "metrics.jsonl")[-1]
    assert status["compute"]["learners"] == 2
    assert last["actors/learners"] == 2 and last["actors/alive"] == 2
    assert len(set(status["actors"]["pids"].split())) == 2
    assert last["replay/size"] == pytest.approx(last["step"], abs=16)
    drawn = last["updates"] * 16  # the batch of both together
    assert drawn == pytest.approx(4 * (last["step"] - 64), abs=64)


OTHERS = ("reinforce", "sac", "recurrent-ppo", "td3", "rainbow", "pqn", "a3c")


@pytest.mark.parametrize(
    "name", [OTHERS[0], OTHERS[1], *(pytest.param(n, marks=pytest.mark.slow) for n in OTHERS[2:])]
)
def test_every_family_keeps_equal_weights(name, tmp_path, watched) -> None:
    """Whole episodes, twin critics, several parameter groups, recurrent state, noisy layers."""
    result = run(tiny(name, "CartPole-v1", *TWO, "steps=500", "checkpoint_every=250"), tmp_path)
    assert result.updates >= 10 and watched[-1][0] == result.updates
    assert all(others == [own] for _, own, others in watched)
