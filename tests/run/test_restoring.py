"""Putting things back: weights of another run, replay piece by piece, threads of `ludus eval`."""

from __future__ import annotations

import pytest
import torch

from ludus.cli.main import run as command
from ludus.errors import LudusError
from ludus.evals.agent import load_agent
from ludus.run.replay_state import ReplayFiles
from ludus.run.state import load_model
from ludus.track.checkpoint.reader import ReplayReader, load
from tests.contract.tiny import run, tiny

NORMALIZED = "env.normalize={obs: true, reward: true}"


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    cfg = tiny("ppo", "Pendulum-v1", "steps=64", "run.threads=2", NORMALIZED)
    return run(cfg, tmp_path_factory.mktemp("runs")).path


@pytest.mark.parametrize("slots", [1, 2, 5])
def test_init_from_a_run_with_another_number_of_environments(slots, trained, tmp_path) -> None:
    cfg = tiny("ppo", "Pendulum-v1", "steps=1", "rollout=1", "minibatches=1", "algo.lr=0",
               f"env.num={slots}", NORMALIZED)  # fmt: skip
    path = run(cfg, tmp_path, init_from=trained).path
    old, new = load(trained).tensors["model"], load(path).tensors["model"]
    assert new["normalizer.running_return"].shape == (slots,)
    assert new["normalizer.count_0"] == old["normalizer.count_0"] + slots
    assert all(torch.equal(old[k], new[k]) for k in old if k.startswith("online."))


def test_other_shapes_must_still_fit(trained) -> None:
    net, saved = load_agent(trained).net, load(trained).tensors["model"]
    saved["normalizer.mean_0"] = torch.zeros(7, dtype=torch.float64)
    with pytest.raises(LudusError):
        load_model(net, saved)


@pytest.mark.parametrize("name", ["var_0", "count_0", "var_return", "scale_0"])
def test_impossible_statistics_are_refused(name, trained) -> None:
    net, saved = load_agent(trained).net, load(trained).tensors["model"]
    saved[f"normalizer.{name}"] = -saved[f"normalizer.{name}"]
    with pytest.raises(LudusError, match="negative") as caught:
        load_model(net, saved)
    assert caught.value.code == "E305" and f"normalizer.{name}" in caught.value.where


def test_numbers_of_other_types_are_converted_before_they_are_checked(trained) -> None:
    net, saved = load_agent(trained).net, load(trained).tensors["model"]
    key = next(k for k in saved if k.endswith("weight"))
    load_model(net, saved | {key: saved[key].to(torch.float8_e4m3fn)})
    assert net.state_dict()[key].isfinite().all()
    with pytest.raises(LudusError, match="not finite"):  # 1e300 is inf in float32
        load_model(net, saved | {key: torch.full_like(saved[key], 1e300, dtype=torch.float64)})


def test_replay_is_restored_one_segment_at_a_time(tmp_path, monkeypatch) -> None:
    """Memory: the store and one segment, not the store and everything."""
    path = run(tiny("dqn", "CartPole-v1", "steps=300", "checkpoint_every=50"), tmp_path).path
    steps: list[str] = []
    read, restore = ReplayReader.load, ReplayFiles.restore

    def reading(self, name, limit):
        steps.append(name.split("-")[0])
        return read(self, name, limit)

    def restoring(self, reader, state):
        write = self.store.restore

        def writing(parts):
            steps.append(f"write {len(parts)}")
            write(parts)

        self.store.restore = writing
        restore(self, reader, state)

    monkeypatch.setattr(ReplayReader, "load", reading)
    monkeypatch.setattr(ReplayFiles, "restore", restoring)
    assert command(["resume", str(path), "steps=+50", "-q"]) == 0
    assert steps[-1] == "index" and len(steps) > 4
    assert steps[:-1] == ["rows", "write 1"] * (len(steps) // 2)


def test_eval_uses_the_threads_of_the_run_and_a_library_user_keeps_their_own(
    trained, capsys
) -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        load_agent(trained).evaluate(1)
        assert torch.get_num_threads() == 1
        assert command(["eval", str(trained), "--episodes", "1"]) == 0
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_a_segment_larger_than_the_replay_is_refused_before_it_is_read(tmp_path) -> None:
    path = run(tiny("dqn", "CartPole-v1", "steps=200"), tmp_path).path
    reader = load(path).replay
    assert reader is not None
    name = next(n for n in reader.names if n.startswith("rows-"))
    for file in reader._segments[name].values():
        reader._manifest.files[file] = reader._manifest.files[file]._replace(raw_bytes=6 << 30)
    with pytest.raises(LudusError, match="E305"):
        reader.load(name, limit=1 << 20)
