"""Users' hooks: order, stopping, added metrics, errors, state over a resume."""

import json
from pathlib import Path

import pytest

from ludus.errors import LudusError
from ludus.track.callbacks import Callback, Callbacks, StopAt
from ludus.types import EpisodeEnd


class FakeRun:
    step, updates, path = 7, 3, Path("run")

    def __init__(self):
        self.reasons, self.logged = [], []

    def stop(self, reason):
        self.reasons.append(reason)

    def log(self, values):
        self.logged.append(values)


class Recorder(Callback):
    def __init__(self, name, result):
        self.name, self.result = name, result

    def on_start(self, run):
        self.result.append((self.name, "start", run.step))

    def on_episode(self, run, episode):
        self.result.append((self.name, "episode", episode.score))

    def on_update(self, run, metrics):
        self.result.append((self.name, "update", dict(metrics)))
        return {self.name: len(metrics)}

    def on_checkpoint(self, run, path):
        self.result.append((self.name, "checkpoint", path.name))

    def on_end(self, run):
        run.log({"end": 1.0})


def episode(score, end="terminated"):
    return EpisodeEnd(0, score, 10, end)


def test_all_hooks_of_all_callbacks_in_order():
    result, run = [], FakeRun()
    calls = Callbacks([Recorder("a", result), Callback(), Recorder("b", result)])
    calls.on_start(run)
    calls.on_episode(run, episode(2.0))
    assert calls.on_update(run, {"loss": 0.5}) == {"a": 1, "b": 2}
    calls.on_checkpoint(run, Path("checkpoints/000000000007"))
    calls.on_end(run)
    assert result == [
        ("a", "start", 7),
        ("b", "start", 7),
        ("a", "episode", 2.0),
        ("b", "episode", 2.0),
        ("a", "update", {"loss": 0.5}),
        ("b", "update", {"loss": 0.5, "a": 1}),
        ("a", "checkpoint", "000000000007"),
        ("b", "checkpoint", "000000000007"),
    ]
    assert run.logged == [{"end": 1.0}] * 2


def test_stop_at_needs_a_full_window_of_whole_episodes():
    run, stop = FakeRun(), StopAt(return_=10, window=3)
    for score, end in [(50, "checkpoint"), (50, "terminated"), (0, "truncated"), (9, "terminated")]:
        if end != "checkpoint" or not run.reasons:
            stop.on_episode(run, episode(score, end))
    assert len(run.reasons) == 1  # (50 + 0 + 9) / 3, the cut one left out
    run.reasons.clear()
    stop.on_episode(run, episode(0))
    assert run.reasons == []
    stop.on_episode(run, episode(21))
    assert run.reasons == ["mean score 10 of 3 episodes reached 10"]
    with pytest.raises(LudusError):
        StopAt(1.0, window=0)


def test_the_window_survives_a_resume():
    run, before = FakeRun(), Callbacks([Callback(), StopAt(return_=10, window=3)])
    before.on_episode(run, episode(10))
    before.on_episode(run, episode(10))
    saved = json.loads(json.dumps(before.state()))
    after = Callbacks([Callback(), StopAt(return_=10, window=3)])
    after.load(saved)
    after.on_episode(run, episode(10))
    assert len(run.reasons) == 1
    moved = Callbacks([StopAt(return_=10, window=3)])
    moved.load(saved)
    moved.on_episode(run, episode(10))
    assert len(run.reasons) == 1


@pytest.mark.parametrize("hook", ["on_start", "on_episode", "on_update", "on_checkpoint", "on_end"])
def test_an_exception_in_a_callback_is_e402_with_its_name(hook):
    class Broken(Callback):
        pass

    def fail(self, *args):
        raise RuntimeError("oops")

    setattr(Broken, hook, fail)
    args = {"on_episode": [episode(1)], "on_update": [{}], "on_checkpoint": [Path("x")]}
    with pytest.raises(LudusError) as caught:
        getattr(Callbacks([Broken()]), hook)(FakeRun(), *args.get(hook, []))
    assert caught.value.code == "E402"
    assert f"Broken.{hook}" in caught.value.what
    assert "oops" in caught.value.what
    assert isinstance(caught.value.__cause__, RuntimeError)


def test_a_ludus_error_passes_as_it_is():
    class Refusing(Callback):
        def on_start(self, run):
            raise LudusError("E103", "no")

    with pytest.raises(LudusError) as caught:
        Callbacks([Refusing()]).on_start(FakeRun())
    assert caught.value.code == "E103"
