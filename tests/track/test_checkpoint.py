"""Checkpoints: what goes in comes out, what is kept, what is linked, what is refused."""

import json
import os
import resource
import subprocess
import sys

import numpy as np
import pytest
import torch

from ludus.errors import LudusError
from ludus.track.checkpoint.format import checkpoint_paths, find_checkpoint
from ludus.track.checkpoint.reader import load
from ludus.track.checkpoint.reader import load_newest_good as newest
from ludus.track.checkpoint.writer import CheckpointWriter, Segment


def tensors(step):
    return {
        "model": {"w": torch.full((3, 2), float(step))},
        "optim": {"0/step": torch.tensor(step)},
    }


def save(writer, step, **more):
    return writer.save(step, tensors(step), {"step": step}, **more)


def steps(folder):
    return list(checkpoint_paths(folder))


def code(call, *args, **more):
    with pytest.raises(LudusError) as caught:
        call(*args, **more)
    return caught.value.code, str(caught.value)


def test_tensors_and_state_come_back_bit_equal(tmp_path):
    rng = torch.Generator().manual_seed(1)
    shared = torch.randn(4, 4, generator=rng)
    model = {
        "f32": torch.randn(5, 3, generator=rng),
        "f64": torch.randn(2, generator=rng, dtype=torch.float64),
        "bf16": torch.randn(3, generator=rng).bfloat16(),
        "scalar": torch.tensor(7),
        "flags": torch.tensor([True, False]),
        "empty": torch.zeros(0, 3),
        "turned": torch.randn(3, 4, generator=rng).t(),
        "tied": shared,
        "tied.too": shared,
        "row": shared[1],
        "rng": torch.Generator().manual_seed(3).get_state(),
        "special": torch.tensor([float("nan"), float("inf"), -0.0]),
    }
    state = {"a": 0.1 + 0.2, "big": 2**60, "nested": {"list": [1, None, True, "ü"]}}
    CheckpointWriter(tmp_path).save(50_000, {"model": model, "empty": {}}, state)
    found = load(tmp_path)
    assert found.state == state
    assert found.step == 50_000
    assert found.path.name == "000000050000"
    assert found.tensors["empty"] == {}
    assert found.replay is None
    for name, value in model.items():
        got = found.tensors["model"][name]
        assert got.dtype == value.dtype
        assert torch.equal(got.nan_to_num(9.0), value.nan_to_num(9.0)), name


@pytest.mark.accept(138)
def test_last_best_and_keep_k(tmp_path):
    writer = CheckpointWriter(tmp_path, keep=3)
    for step in range(1, 9):
        save(writer, step, tags=("last", "best") if step in (1, 2) else ("last",))
    assert steps(tmp_path) == [2, 6, 7, 8]
    assert load(tmp_path, "last").step == 8
    assert load(tmp_path, "best").step == 2
    assert load(tmp_path, 7).step == 7
    assert load(tmp_path, "6").state == {"step": 6}
    assert os.readlink(tmp_path / "best") == "000000000002"
    save(writer, 9, tags=("last", "best"))
    assert steps(tmp_path) == [7, 8, 9]


@pytest.mark.accept(138)
def test_keep_nothing_still_keeps_last_and_best(tmp_path):
    writer = CheckpointWriter(tmp_path, keep=0)
    for step in range(1, 5):
        save(writer, step, tags=("last", "best") if step == 2 else ("last",))
    assert steps(tmp_path) == [2, 4]


def test_weights_only_best_is_never_resumed_and_goes_with_its_tag(tmp_path):
    writer = CheckpointWriter(tmp_path, keep=2)
    save(writer, 10)
    save(writer, 15, tags=("best",), resumable=False)
    assert load(tmp_path, "best").step == 15
    assert not load(tmp_path, "best").resumable
    assert load(tmp_path, "last").step == newest(tmp_path).step == 10
    save(writer, 17, tags=("best",), resumable=False)
    assert steps(tmp_path) == [10, 17]
    save(writer, 20)
    save(writer, 20, tags=("best",), resumable=False)  # the full one of that step stays
    assert load(tmp_path, "best").resumable
    assert steps(tmp_path) == [10, 20]
    with pytest.raises(ValueError, match="resumable"):
        save(writer, 30, resumable=False)
    with pytest.raises(ValueError, match="tags"):
        save(writer, 30, tags=("../best",))


def test_the_same_step_can_be_saved_again(tmp_path):
    writer = CheckpointWriter(tmp_path)
    save(writer, 5, replay=[Segment("a", {"x": np.arange(3)})], tags=("last", "best"))
    writer.save(5, tensors(6), {"second": True}, replay=[Segment("a")])
    found = load(tmp_path, "best")
    assert found.state == {"second": True}
    assert found.tensors["model"]["w"][0, 0] == 6
    assert found.replay.load("a")["x"].tolist() == [0, 1, 2]
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".")] == []


@pytest.mark.accept(66)
def test_replay_segments_come_back_in_order_and_unchanged_ones_are_linked(tmp_path):
    rng = np.random.default_rng(0)
    arrays = {
        "obs.camera": rng.integers(0, 255, (50, 2, 4, 4), dtype=np.uint8),
        "extras/params": rng.standard_normal((50, 2, 3)).astype(np.float32),
        "last": rng.random((50, 2)) < 0.1,
        "turned": rng.standard_normal((6, 50)).T,
        "none": np.zeros((0, 4), np.float32),
        "head": np.array(2**40),
    }
    writer = CheckpointWriter(tmp_path, keep=1)
    assert writer.linkable == frozenset()
    save(writer, 1, replay=[Segment("rows-0", arrays), Segment("leaves-1", {"p": np.ones(5)})])
    assert writer.linkable == {"rows-0", "leaves-1"}
    later = {"obs.camera": arrays["obs.camera"][:3]}
    save(writer, 2, replay=[Segment("rows-0"), Segment("rows-1", later)])
    assert steps(tmp_path) == [2]
    found = load(tmp_path)
    assert found.replay.names == ("rows-0", "rows-1")
    assert len(found.replay) == 2
    back = dict(found.replay)
    for name, value in arrays.items():
        assert back["rows-0"][name].dtype == value.dtype
        assert np.array_equal(back["rows-0"][name], value), name
    assert list(back["rows-0"]) == list(arrays)
    assert np.array_equal(back["rows-1"]["obs.camera"], later["obs.camera"])
    save(writer, 3, replay=[Segment("rows-0"), Segment("rows-1")])
    again = load(tmp_path)
    assert {k: list(v) for k, v in again.replay} == {k: list(v) for k, v in back.items()}


def test_linked_segments_take_no_second_place_on_disk(tmp_path):
    writer = CheckpointWriter(tmp_path, keep=2)
    first = save(writer, 1, replay=[Segment("a", {"x": np.arange(1000)})])
    second = save(writer, 2, replay=[Segment("a")])
    (one,), (two,) = (list((p / "replay").iterdir()) for p in (first, second))
    assert one.stat().st_ino == two.stat().st_ino


def test_a_new_process_links_to_what_it_resumed_from(tmp_path):
    save(CheckpointWriter(tmp_path), 1, replay=[Segment("a", {"x": np.arange(4)})])
    writer = CheckpointWriter(tmp_path)
    with pytest.raises(ValueError, match="'a'"):
        save(writer, 2, replay=[Segment("a")])
    assert steps(tmp_path) == [1]
    writer.resume_from(newest(tmp_path).path)
    save(writer, 2, replay=[Segment("a")])
    assert load(tmp_path).replay.load("a")["x"].tolist() == [0, 1, 2, 3]


def test_without_hard_links_segments_are_copied(tmp_path, monkeypatch):
    def no_links(*args, **more):
        raise PermissionError(1, "no links here")

    writer = CheckpointWriter(tmp_path)
    save(writer, 1, replay=[Segment("a", {"x": np.arange(4)})])
    monkeypatch.setattr(os, "link", no_links)
    save(writer, 2, replay=[Segment("a")])
    assert load(tmp_path).replay.load("a")["x"].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("name", ["../a", "a/b", "", "a.b", "x" * 99])
def test_segment_and_group_names_stay_inside(tmp_path, name):
    writer = CheckpointWriter(tmp_path)
    with pytest.raises(ValueError, match="segment name"):
        save(writer, 1, replay=[Segment(name, {"x": np.arange(2)})])
    with pytest.raises(ValueError, match="group name"):
        writer.save(1, {name: {}}, {})
    with pytest.raises(TypeError, match="objects"):
        save(writer, 1, replay=[Segment("a", {"x": np.array([{}])})])
    assert list(tmp_path.iterdir()) == []


def test_missing_checkpoints_are_e304_with_what_there_is(tmp_path):
    got, text = code(newest, tmp_path)
    assert got == "E304"
    writer = CheckpointWriter(tmp_path / "checkpoints")
    save(writer, 5000)
    for which in (77, "5M", "nonsense", "best", "-1"):
        got, text = code(load, tmp_path, which)
        assert got == "E304"
        assert "5000 (5k)" in text
    assert load(tmp_path, "5k").step == 5000


def test_found_by_run_folder_pointer_or_itself(tmp_path):
    folder = tmp_path / "checkpoints"
    path = save(CheckpointWriter(folder), 5)
    for where in (tmp_path, folder, folder / "last", path):
        assert find_checkpoint(where).resolve() == path
    path.rename(tmp_path / "lone")
    assert load(tmp_path / "lone", "best").step == 5


def test_a_lost_pointer_does_not_lose_the_run(tmp_path):
    writer = CheckpointWriter(tmp_path)
    save(writer, 5)
    save(writer, 6)
    (tmp_path / "last").unlink()
    assert load(tmp_path).step == 6
    (tmp_path / "last").write_text("000000000005\n")  # as on disks without symbolic links
    assert load(tmp_path).step == 5
    (tmp_path / "last").write_text("../../etc\n")
    assert load(tmp_path).step == 6


def test_resume_sets_the_abandoned_future_aside(tmp_path):
    writer = CheckpointWriter(tmp_path, keep=5)
    for step in (1, 2, 3):
        save(writer, step, replay=[Segment(f"s{step}", {"x": np.arange(step)})])
    writer = CheckpointWriter(tmp_path, keep=2)
    writer.resume_from(load(tmp_path, 1).path)
    assert steps(tmp_path) == [1]
    assert writer.linkable == {"s1"}
    assert load(tmp_path).step == newest(tmp_path).step == 1
    assert len([p for p in tmp_path.iterdir() if p.name.startswith("aside-")]) == 2
    save(writer, 2, replay=[Segment("s1")])
    assert load(tmp_path).replay.names == ("s1",)


def test_leftovers_of_a_kill_are_removed_at_the_next_start(tmp_path):
    writer = CheckpointWriter(tmp_path)
    save(writer, 5)
    (tmp_path / ".tmp-000000000006-aa").mkdir()
    (tmp_path / ".tmp-000000000006-aa" / "state.json").write_text("{}")
    (tmp_path / ".tmp-last-bb").symlink_to("000000000006")
    (tmp_path / "000000000005").rename(tmp_path / ".old-000000000005")
    assert load(tmp_path).step == 5  # a reader finds it, too
    CheckpointWriter(tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["000000000005", "last"]
    assert load(tmp_path).step == 5


def test_a_full_disk_is_e301_and_leaves_the_old_checkpoint(tmp_path):
    writer = CheckpointWriter(tmp_path)
    save(writer, 1, replay=[Segment("a", {"x": np.arange(4)})])
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    noise = np.random.default_rng(0).random(500_000)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, hard))
    try:
        big = {"model": {"w": torch.zeros(500_000)}}
        assert code(writer.save, 2, big, {})[0] == "E301"
        assert code(save, writer, 2, replay=[Segment("b", {"x": noise})])[0] == "E301"
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [p.name for p in sorted(tmp_path.iterdir())] == ["000000000001", "last"]
    save(writer, 2, replay=[Segment("a")])
    assert load(tmp_path).step == 2


def test_a_million_rows_of_replay_are_saved_and_read(tmp_path):
    rng = np.random.default_rng(0)
    rows = {
        "obs": rng.standard_normal((125_000, 8, 4), dtype=np.float32),
        "action": rng.integers(0, 2, (125_000, 8)),
        "reward": np.ones((125_000, 8), np.float32),
    }
    save(CheckpointWriter(tmp_path), 1_000_000, replay=[Segment("all", rows)])
    back = load(tmp_path, "1M").replay.load("all")
    assert all(np.array_equal(back[k], v) for k, v in rows.items())


def test_no_pickle_is_imported_by_reading(tmp_path):
    """A load in a process where unpickling is made impossible."""
    save(CheckpointWriter(tmp_path), 1, replay=[Segment("a", {"x": np.arange(4)})])
    script = (
        "import pickle, sys, torch\n"
        "from ludus.track.checkpoint.reader import load\n"
        "def no(*a, **k): raise SystemExit('unpickled')\n"
        "pickle.load = pickle.loads = pickle.Unpickler = torch.load = no\n"
        "found = load(sys.argv[1])\n"
        "print(found.step, found.replay.load('a')['x'].sum())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, timeout=120
    )
    assert done.stdout.split() == ["1", "6"], done.stderr


def test_the_manifest_can_be_read_by_people(tmp_path):
    path = save(CheckpointWriter(tmp_path), 7)
    manifest = json.loads((path / "manifest.json").read_text())
    assert manifest["step"] == 7
    assert set(manifest["files"]) == {"model.safetensors", "optim.safetensors", "state.json"}
