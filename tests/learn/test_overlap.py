"""Learning while collecting: what a kill, a signal and a checkpoint find, and what is reported."""

from __future__ import annotations

import pytest

from ludus import registry
from ludus.collect.collector import Collector
from ludus.contract import Values
from ludus.envs.config import EnvConfig
from ludus.envs.make import make_envs
from ludus.learn.learner import Learner
from ludus.run.session import train_run
from ludus.track.callbacks import Callback
from ludus.track.checkpoint.reader import load
from ludus.track.metrics.writer import read_metrics, without_wall_clock
from tests.contract.same import same_checkpoints, same_runs
from tests.contract.tiny import run, tiny
from tests.run.test_stopping import StopAfter

OVERLAP = ("run.overlap=on", "best_window=5")


class Quit(Callback):
    """Dies without a checkpoint, as a killed process does, at the first episode past a step."""

    def __init__(self, step: int) -> None:
        self.at = step

    def on_episode(self, run, episode):
        if run.step >= self.at:
            raise KeyboardInterrupt


def resumed(cfg, path):
    done = train_run(cfg, registry.make(cfg.algo), path=path, resume=True, quiet=True)
    assert done.reason == "finished"
    return path


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("dqn", ()),
        ("prioritized-dqn", ("env.groups=2",)),
        ("prioritized-dqn", ("run.capture=on",)),
        ("apex-dqn", ("algo.chunk=3", "env.groups=2")),
        ("apex-dqn", ("run.capture=on",)),
        ("ppo", ("env.groups=2",)),
        ("ppo", ("run.capture=on",)),
    ],
)
def test_killed_and_resumed_equals_uninterrupted(name, more, tmp_path) -> None:
    settings = (*OVERLAP, "steps=600", "checkpoint_every=200", *more)
    cfg = tiny(name, "CartPole-v1", *settings)
    whole = run(cfg, tmp_path).path
    cut = run(cfg, tmp_path, callbacks=[Quit(300)])
    assert cut.step < 600 and load(cut.path).step < cut.step
    same_runs(whole, resumed(cfg, cut.path))


class Holder(Callback):
    def on_start(self, run):
        self.loop = run.loop


@pytest.mark.accept(141)
@pytest.mark.parametrize(
    ("name", "overlap"),
    [("dqn", "on"), ("prioritized-dqn", "on"), ("ppo", "on"), ("ppo", "off")],
)
def test_a_signal_while_rows_are_under_way_equals_a_checkpoint_there(
    name, overlap, tmp_path, monkeypatch
) -> None:
    """The updates of the iteration that was given up are done already; the checkpoint of the
    uninterrupted run does them too, before it saves."""
    settings = (*OVERLAP, f"run.overlap={overlap}", "steps=600", "rollout=8", "chunk=8")
    fields = {*registry.config_class(name).model_fields, "steps", "best_window"}
    settings = [s for s in settings if s.partition("=")[0] in fields or s.startswith("run.")]
    holder, received, receive = Holder(), [0], Collector._receive

    def counting(self, net, g, t, out, spent):
        received[0] += 1
        if t == 0 and received[0] > 150 and hasattr(holder, "loop"):
            holder.loop.leave("interrupted")
        receive(self, net, g, t, out, spent)

    monkeypatch.setattr(Collector, "_receive", counting)
    long = tiny(name, "CartPole-v1", *settings, "checkpoint_every=10k")
    cut = run(long, tmp_path, callbacks=[holder])
    monkeypatch.undo()
    assert cut.reason == "interrupted" and 200 < cut.step < 500
    result = tiny(name, "CartPole-v1", *settings, f"checkpoint_every={cut.step}")
    whole = run(result, tmp_path, callbacks=[Quit(cut.step + 1)])
    same_checkpoints(cut.path, whole.path)
    lines = [
        [without_wall_clock(r) for r in read_metrics(p / "metrics.jsonl")]
        for p in (cut.path, whole.path)
    ]
    assert lines[0] == lines[1]


@pytest.mark.parametrize("groups", [1, 2])
def test_a_row_that_is_given_up_leaves_no_trace(groups) -> None:
    algorithm = registry.make(tiny("ppo", "ludus/Counter-v0").algo)
    scaled = EnvConfig(id="ludus/Counter-v0", num=4, groups=groups, reward_scale="running_max")
    envs = make_envs(scaled, seed=3)
    it = Collector(algorithm, envs, seed=3, pipelined=True)
    learner = Learner(algorithm, envs.spec, seed=3)
    values = Values(algorithm.plan, 100).at(0)
    it.barrier(0)
    largest = envs.state()["largest_reward"]
    assert it.collect(learner.net, 20, values, StopAfter(3)) is None
    it.barrier(1)
    assert (envs.state()["largest_reward"] == largest).all()
    assert it.collect(learner.net, 2, values) is not None
    largest = envs.state()["largest_reward"]
    it.barrier(2)  # the row under way is given up here, too
    assert (envs.state()["largest_reward"] == largest).all()
    it.close()


def test_episodes_of_rows_given_up_are_not_reported() -> None:
    algorithm = registry.make(tiny("ppo", "CartPole-v1").algo)
    envs = make_envs(EnvConfig(id="CartPole-v1", num=4, max_episode_steps=5), seed=3)
    it = Collector(algorithm, envs, seed=3, pipelined=True)
    learner = Learner(algorithm, envs.spec, seed=3)
    values = Values(algorithm.plan, 100).at(0)
    it.barrier(0)
    assert it.collect(learner.net, 20, values, StopAfter(3)) is None  # the fifth row is under way
    assert [e.end for e in it.barrier(1) if e.end != "checkpoint"] == []
    assert it.collect(learner.net, 4, values) is not None
    assert len(it.barrier(2)) == 4, "after whole rows they are"
    it.close()


@pytest.mark.parametrize("name", ["dqn", "ppo"])
def test_a_run_with_overlap_learns_from_its_last_rows_too(name, tmp_path) -> None:
    runs = [run(tiny(name, "CartPole-v1", "steps=320", f"run.overlap={o}"), tmp_path)
            for o in ("on", "off")]  # fmt: skip
    assert runs[0].updates == runs[1].updates > 0
    numbers = [load(r.path).state["replay"]["numbers"] for r in runs]
    if name == "ppo":
        for n in numbers:
            assert n["samples_drawn"] == n["steps_inserted"], "every rollout once"


class Counter(Callback):
    def __init__(self) -> None:
        self.seen: list[tuple[int, float]] = []

    def on_update(self, run, metrics):
        self.seen.append((run.updates, float(metrics["loss"])))


def test_a_callback_sees_every_update_in_order(tmp_path) -> None:
    counter = Counter()
    done = run(tiny("dqn", "CartPole-v1", "steps=320", "run.overlap=on"), tmp_path,
               callbacks=[counter])  # fmt: skip
    assert [n for n, _ in counter.seen] == list(range(1, done.updates + 1))
    plain = run(tiny("dqn", "CartPole-v1", "steps=320", "run.overlap=on"), tmp_path)
    same_checkpoints(done.path, plain.path)


def test_evaluations_and_best_fall_between_updates(tmp_path) -> None:
    settings = (*OVERLAP, "steps=400", "eval.every=150", "eval.episodes=2")
    a, b = (run(tiny("dqn", "CartPole-v1", *settings), tmp_path).path for _ in range(2))
    same_runs(a, b)
    same_checkpoints(a, b, "best")
