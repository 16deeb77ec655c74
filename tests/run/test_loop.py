"""The loop: pace, order, warm-up, what hangs on it, and replay that was not saved."""

from __future__ import annotations

import csv
import itertools

import pytest

from ludus import registry
from ludus.learn.learner import Learner
from ludus.run.loop import Loop
from ludus.run.session import train_run
from ludus.track.callbacks import Callback
from ludus.track.checkpoint.reader import load
from ludus.track.metrics.writer import read_metrics
from tests.contract.same import same_checkpoints, same_runs
from tests.contract.tiny import run, tiny


@pytest.fixture
def watched(monkeypatch):
    """(steps inserted, samples drawn, updates) after every iteration of every loop."""
    seen = []
    iterate = Loop.iterate

    def watching(self):
        iterate(self)
        seen.append((self.store.steps_inserted, self.store.samples_drawn, self.learner.updates))

    monkeypatch.setattr(Loop, "iterate", watching)
    return seen


@pytest.mark.accept(64)
@pytest.mark.parametrize("ratio", [0.5, 4.0, 24.0])
def test_the_replay_ratio_is_held_and_learning_starts_at_the_warm_up(
    ratio, tmp_path, watched
) -> None:
    """Within one batch at every moment, over barriers too: each iteration ends when the next
    sample is not paid for yet."""
    settings = ("steps=800", "checkpoint_every=250", f"replay_ratio={ratio}", "warmup=100")
    path = run(tiny("dqn", "CartPole-v1", *settings), tmp_path).path
    batch = 16
    for inserted, drawn, updates in watched:
        assert drawn == batch * updates
        if inserted < 100:
            assert updates == 0
        else:
            paid = ratio * (inserted - 100)
            assert paid < drawn <= paid + batch
    assert watched[-1][2] > 10
    rows = read_metrics(path / "metrics.jsonl")
    assert rows[-1]["replay/samples_per_step"] == pytest.approx(watched[-1][1] / watched[-1][0])


def test_every_row_of_a_queue_is_learned_from_once(tmp_path, watched) -> None:
    run(tiny("ppo", "CartPole-v1", "steps=500", "checkpoint_every=100"), tmp_path)
    assert all(drawn == inserted for inserted, drawn, _ in watched)
    # 2 epochs of 2 minibatches per rollout
    assert [updates for *_, updates in watched] == [4 * (i + 1) for i in range(len(watched))]


@pytest.mark.accept(64)
def test_actions_are_random_and_nothing_is_learned_during_the_warm_up(tmp_path) -> None:
    """Greedy actions of a constant net would all be the same."""
    settings = ("steps=200", "warmup=200", "algo.epsilon=0", "log.every=10", "checkpoint_every=100")
    cfg = tiny("dqn", "ludus/Identity-v0", *settings)
    path = run(cfg, tmp_path).path
    rows = read_metrics(path / "metrics.jsonl")
    before = [r for r in rows if r["step"] < 200]
    assert before and all(r["updates"] == 0 and r["agent/warming"] == 1 for r in before)
    assert rows[-1]["agent/warming"] == 0
    scores = [float(r["score"]) for r in csv.DictReader((path / "episodes.csv").open())
              if r["end"] != "checkpoint"]  # fmt: skip
    assert len(set(scores)) > 1, "random answers"
    model = load(path).tensors["model"]
    fresh = Learner(registry.make(cfg.algo), _spec(cfg), seed=cfg.run.seed).net.state_dict()
    first = next(
        e["step"] for e in read_metrics(path / "events.jsonl") if e["kind"] == "checkpoint"
    )
    at_first = load(path, first).tensors["model"]
    assert all((at_first[k] == fresh[k]).all() for k in fresh) and model.keys() == fresh.keys()


def _spec(cfg):
    from ludus.envs.make import probe_spec

    return probe_spec(cfg.env)


def test_a_line_and_a_checkpoint_at_the_same_step_give_one_line(tmp_path) -> None:
    cfg = tiny("dqn", "CartPole-v1", "steps=600", "log.every=100", "checkpoint_every=200")
    steps = [r["step"] for r in read_metrics(run(cfg, tmp_path).path / "metrics.jsonl")]
    assert len(steps) == len(set(steps)) == 6


class Watching(Callback):
    """Everything it is told, in order."""

    def __init__(self, stop_after: int | None = None) -> None:
        self.answer, self.stop_after = [], stop_after

    def on_start(self, run):
        self.answer.append(("start", run.step))

    def on_episode(self, run, episode):
        self.answer.append(("episode", episode.end))

    def on_update(self, run, metrics):
        assert metrics["loss"].dim() == 0 and "grad_norm" in metrics
        self.answer.append(("update", run.updates))
        if run.updates == self.stop_after:
            run.stop("seen enough")
        return {"mine/updates_seen": float(run.updates)}

    def on_checkpoint(self, run, path):
        assert path.is_dir() and load(path).step == run.step
        run.log({"mine/saved_at": float(run.step)})
        self.answer.append(("checkpoint", run.step))

    def on_end(self, run):
        self.answer.append(("end", run.step))

    def state(self):
        return {"updates": len([t for t in self.answer if t[0] == "update"])}

    def load(self, state):
        self.answer.append(("loaded", state["updates"]))


def test_callbacks_are_called_may_add_metrics_and_stop(tmp_path) -> None:
    watching = Watching(stop_after=40)
    cfg = tiny("dqn", "CartPole-v1", "steps=900", "checkpoint_every=100", "log.every=50")
    result = run(cfg, tmp_path, callbacks=[watching])
    kinds = [kind for kind, _ in watching.answer]
    assert kinds[0] == "start" and kinds[-1] == "end" and kinds[-2] == "checkpoint"
    updates = [n for kind, n in watching.answer if kind == "update"]
    assert updates == list(range(1, result.updates + 1)) and 40 <= result.updates < 50
    assert result.reason == "seen enough" and result.exit_code == 0 and result.step < 900
    episodes = [end for kind, end in watching.answer if kind == "episode"]
    rows = list(csv.DictReader((result.path / "episodes.csv").open()))
    assert episodes == [r["end"] for r in rows] and "checkpoint" in episodes
    lines = read_metrics(result.path / "metrics.jsonl")
    assert lines[-1]["mine/updates_seen"] == result.updates
    saved = [n for kind, n in watching.answer if kind == "checkpoint"]
    assert [r["mine/saved_at"] for r in lines if "mine/saved_at" in r] == saved[:-1]
    again = Watching()
    train_run(cfg, registry.make(cfg.algo), path=result.path, resume=True, quiet=True,
              callbacks=[again])  # fmt: skip
    assert again.answer[0] == ("loaded", result.updates) and again.answer[1] == (
        "start",
        result.step,
    )


def test_callbacks_that_only_look_change_nothing(tmp_path) -> None:
    cfg = tiny("ppo", "CartPole-v1", "steps=300")
    same_checkpoints(
        run(cfg, tmp_path).path, run(cfg, tmp_path, callbacks=[Watching(stop_after=-1)]).path
    )


@pytest.mark.accept(66)
@pytest.mark.parametrize("save", ["on", "off"])
def test_replay_is_saved_or_refilled_before_learning(save, tmp_path, watched) -> None:
    settings = ("checkpoint_every=200", f"save_replay={save}", "env.num=2")
    cfg = tiny("prioritized-dqn", "CartPole-v1", "steps=400", "horizon=600", *settings)
    path = run(cfg, tmp_path).path
    saved = load(path)
    size = saved.state["replay"]["size"]
    assert (saved.replay is not None) == (save == "on") and 380 <= size <= saved.step
    before, _, done = watched[-1]
    watched.clear()
    longer = tiny("prioritized-dqn", "CartPole-v1", "steps=600", "horizon=600", *settings)
    add = Rows()
    train_run(longer, registry.make(longer.algo), path=path, resume=True, quiet=True,
              callbacks=[add])  # fmt: skip
    log = (path / "log.txt").read_text()
    if save == "on":
        assert watched[0][0] > before and "refilling" not in log
        same_runs(run(longer, tmp_path).path, path)
        return
    assert "refilling it before learning" in log
    refill = [w for w in watched if w[0] == before]
    # 4 rows an iteration, less the dummy ones: the step stands still and nothing is learned.
    assert len(refill) >= size // 4 - 1 and all(updates == done for *_, updates in refill)
    assert all(later[0] - sooner[0] <= 4 for sooner, later in itertools.pairwise(watched))
    assert add.size_at_first_update >= size
    assert 600 <= watched[-1][0] < 604 and watched[-1][2] > done
    # From then on the pace is what it would have been.
    inserted, drawn, _ = watched[-1]
    assert 4 * (inserted - 64) < drawn <= 4 * (inserted - 64) + 16


class Rows(Callback):
    """How much replay there was when learning went on."""

    def __init__(self) -> None:
        self.size_at_first_update = None

    def on_update(self, run, metrics):
        if self.size_at_first_update is None:
            self.size_at_first_update = run.loop.store.size


@pytest.mark.accept(66)
def test_replay_that_is_damaged_in_every_checkpoint_is_refilled(tmp_path) -> None:
    """Checkpoints share unchanged rows, so one bad block can reach all of them."""
    cfg = tiny("dqn", "CartPole-v1", "steps=400", "checkpoint_every=200")
    path = run(cfg, tmp_path).path
    first = next((load(path).path / "replay").glob("rows-*"))
    data = bytearray(first.read_bytes())
    data[len(data) // 2] ^= 1
    with open(first, "r+b") as file:  # in place: all hard links see it
        file.write(data)
    longer = tiny("dqn", "CartPole-v1", "steps=500", "horizon=400", "checkpoint_every=200")
    result = train_run(longer, registry.make(longer.algo), path=path, resume=True, quiet=True)
    log = (path / "log.txt").read_text()
    assert result.step >= 500 and "without its damaged replay" in log and "refilling" in log
