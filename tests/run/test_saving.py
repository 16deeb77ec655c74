"""When checkpoints are written: by steps, by time, and what is said of it before and after."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest

from ludus.cli.main import run as command
from ludus.errors import LudusError
from ludus.run import saving
from ludus.run.loop import Loop
from ludus.run.recording import statistics as clock
from ludus.run.recording.messages import checkpoint_schedule
from ludus.run.saving import MISSES, Attempts, Saver
from ludus.settings.resume import is_free
from ludus.track.metrics.writer import read_metrics
from tests.contract.same import same_runs
from tests.contract.tiny import run, tiny

CARTPOLE = ["train", "dqn", "CartPole-v1", "env.num=8", "--preset", "none"]


def line(text: str, word: str) -> str:
    [found] = [part for part in text.splitlines() if word in part]
    return " ".join(found[found.index(word) :].split())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["steps=50k"], "every 20k steps and every 1h00m, 3 kept"),
        (["steps=50k", "run.exact=off"], "every 5k steps and every 1h00m, 3 kept"),
        (["steps=50k", "checkpoint_time=off", "keep=1"], "every 20k steps, 1 kept"),
        (["steps=10k"], "only at the end (after 10k steps) and every 1h00m"),
        (["steps=10k", "checkpoint_every=10k", "checkpoint_time=off"],
         "only at the end (after 10k steps)"),
    ],
)  # fmt: skip
def test_a_dry_run_tells_the_true_interval(words, said, capsys) -> None:
    assert command([*CARTPOLE, *words, "--dry-run"]) == 0
    assert line(capsys.readouterr().out, "checkpoints ") == f"checkpoints {said}"


def test_a_run_tells_the_same_on_screen_and_in_its_log(tmp_path, capsys) -> None:
    words = ["train", "dqn", "ludus/Identity-v0", "steps=60", "warmup=20", "batch=4", "-q"]
    assert command([*words, "--runs-dir", str(tmp_path), "--run", "x"]) == 0
    for text in (capsys.readouterr().out, (tmp_path / "x" / "log.txt").read_text()):
        assert line(text, "checkpoints ").startswith("checkpoints only at the end (after 60 steps)")


def test_one_that_goes_on_counts_from_where_it_is() -> None:
    cfg = tiny("dqn", "CartPole-v1", "steps=50k", "checkpoint_time=off")
    assert checkpoint_schedule(cfg, 20_000, 30_000) == "every 20k steps, 3 kept"
    assert checkpoint_schedule(cfg, 20_000, 40_000) == "only at the end (after 50k steps)"


@pytest.fixture
def seconds(monkeypatch):
    """A clock for checkpoints on which every step takes a second."""
    now, run_periodic = [0.0], Loop.run_periodic

    def timed(self):
        now[0] += self.step - vars(self).get("counted", 0)
        self.counted = self.step
        run_periodic(self)

    fake = SimpleNamespace(monotonic=lambda: now[0], perf_counter=time.perf_counter)
    monkeypatch.setattr(clock, "time", fake)
    monkeypatch.setattr(saving, "time", fake)
    monkeypatch.setattr(Loop, "run_periodic", timed)


def saved_at(path) -> list[int]:
    events = read_metrics(path / "events.jsonl")
    return [e["step"] for e in events if e["kind"] == "checkpoint"]


@pytest.mark.parametrize("fleet", [(), ("fleet=processes", "exact=on"), ("overlap=on",)])
def test_a_checkpoint_by_time_is_one_like_any_other(fleet, tmp_path, seconds) -> None:
    words = ("steps=190", "log.every=70", *fleet)
    timed = tiny("dqn", "CartPole-v1", *words, "checkpoint_every=1M", "checkpoint_time=100s")
    result = tiny("dqn", "CartPole-v1", *words, "checkpoint_every=100", "checkpoint_time=off")
    one, two = run(timed, tmp_path).path, run(result, tmp_path).path
    assert saved_at(one) == saved_at(two) and len(saved_at(one)) == 2
    same_runs(one, two)


def test_it_is_counted_from_the_last_checkpoint_and_can_be_switched_off(tmp_path, seconds) -> None:
    words = ("steps=400", "checkpoint_every=150")
    cfg = tiny("dqn", "CartPole-v1", *words, "checkpoint_time=100s")
    assert saved_at(run(cfg, tmp_path).path) == pytest.approx([100, 150, 250, 300, 400], abs=4)
    off = tiny("dqn", "CartPole-v1", *words, "checkpoint_time=off")
    assert saved_at(run(off, tmp_path).path) == pytest.approx([150, 300, 400], abs=4)


def refuse_before(step, monkeypatch) -> list[int]:
    """The steps at which the disk is asked."""
    save, asked = Saver._save, []

    def full(self, rescue):
        asked.append(self.loop.step)
        if self.loop.step < step:
            raise LudusError("E301", "No space left")
        return save(self, rescue)

    monkeypatch.setattr(Saver, "_save", full)
    return asked


def test_attempts_are_spaced_and_misses_counted() -> None:
    now = [0.0]
    attempts = Attempts(lambda: now[0])
    tried = []
    for second in range(500):
        now[0] = float(second)
        if attempts.due():
            tried.append(second)
            attempts.missed()
    assert tried == [0, 60, 180, 420] and attempts.misses == 4
    attempts.succeeded()
    assert attempts.due() and attempts.misses == 0


def test_many_checkpoints_in_a_short_outage_end_no_run(tmp_path, seconds, monkeypatch) -> None:
    asked = refuse_before(150, monkeypatch)
    words = ("steps=300", "checkpoint_every=10", "checkpoint_time=off")
    path = run(tiny("dqn", "CartPole-v1", *words), tmp_path).path
    assert asked[:2] == pytest.approx([10, 70], abs=4) and asked[2] >= 150, "12 were due meanwhile"
    log = (path / "log.txt").read_text()
    assert log.count("misses that end the run") == 2
    assert "checkpoints are written again: 2 misses" in log
    assert saved_at(path)[-1] >= 300


def test_an_outage_that_lasts_ends_the_run(tmp_path, seconds, monkeypatch) -> None:
    asked = refuse_before(10**9, monkeypatch)
    words = ("steps=900", "checkpoint_every=10", "checkpoint_time=off")
    with pytest.raises(LudusError, match=f"{MISSES} checkpoints in a row"):
        run(tiny("dqn", "CartPole-v1", *words), tmp_path)
    assert asked == pytest.approx([10, 70, 190], abs=6)


def test_a_disk_that_refuses_is_not_asked_again_at_once(tmp_path, seconds, monkeypatch) -> None:
    refuse_before(250, monkeypatch)
    cfg = tiny("dqn", "CartPole-v1", "steps=300", "checkpoint_every=1M", "checkpoint_time=100s")
    path = run(cfg, tmp_path).path
    assert len(saved_at(path)) == 1
    assert (path / "log.txt").read_text().count("misses that end the run") == 2


def test_hogwild_comes_to_rest_for_it(tmp_path, seconds) -> None:
    cfg = tiny(
        "async-q", "CartPole-v1", "env.num=1", "t_max=5", "steps=2k", "checkpoint_every=1M",
        "checkpoint_time=500s", "run.fleet=hogwild", "run.actors=2",
    )  # fmt: skip
    done = run(cfg, tmp_path)
    assert saved_at(done.path)[-1] == done.step >= 2000 and 500 <= saved_at(done.path)[0] < 2000


def test_a_resumed_run_may_change_it_and_nonsense_is_refused(capsys) -> None:
    assert is_free("run.checkpoint_time") and not is_free("run.checkpoint_every")
    for word in ("0", "-1s", "on", "soon"):
        assert command([*CARTPOLE, f"checkpoint_time={word}", "--dry-run"]) == 2
        assert "run.checkpoint_time" in capsys.readouterr().err
