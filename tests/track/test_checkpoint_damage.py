"""Damaged and hostile checkpoints: every flipped byte is named, nothing escapes, no bombs."""

import hashlib
import json
import os
import shutil

import numpy as np
import pytest
import torch
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from ludus.errors import LudusError
from ludus.track.checkpoint import arrays
from ludus.track.checkpoint import format as layout
from ludus.track.checkpoint.arrays import read_array, write_array
from ludus.track.checkpoint.format import BadFileError, Manifest, Stored
from ludus.track.checkpoint.reader import load, load_newest_good
from ludus.track.checkpoint.writer import CheckpointWriter, Segment


def save(writer, step, **more):
    tensors = {
        "model": {"w": torch.full((3, 2), float(step)), "b": torch.arange(5)},
        "optim": {"0/exp_avg": torch.zeros(3)},
    }
    replay = [Segment(f"rows-{step}", {"obs": np.arange(40.0) * step, "last": np.zeros(40, bool)})]
    return writer.save(step, tensors, {"step": step, "x": [0.5] * 9}, replay=replay, **more)


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    """Two checkpoints that share nothing."""
    folder = tmp_path_factory.mktemp("good")
    writer = CheckpointWriter(folder)
    save(writer, 100)
    save(writer, 200)
    return folder


def files_of(checkpoint):
    return sorted(p for p in checkpoint.rglob("*") if p.is_file())


@pytest.fixture
def copy(good, tmp_path):
    shutil.copytree(good, tmp_path / "c", symlinks=True)
    return tmp_path / "c"


def broken(folder, which="last"):
    with pytest.raises(LudusError) as caught:
        load(folder, which)
    assert caught.value.code == "E305"
    return str(caught.value)


@settings(max_examples=150)
@given(data=st.data())
def test_any_flipped_bit_is_named_and_the_previous_checkpoint_used(good, tmp_path_factory, data):
    files = files_of(good / layout.step_name(200))
    victim = data.draw(st.sampled_from(files))
    place = data.draw(st.integers(0, victim.stat().st_size - 1))
    bit = data.draw(st.integers(0, 7))
    original = victim.read_bytes()
    changed = bytearray(original)
    changed[place] ^= 1 << bit
    try:
        victim.write_bytes(changed)
        assert victim.name in broken(good)
        found = load_newest_good(good)
        assert found.step == found.state["step"] == 100
        assert victim.name in found.warnings[0]
        assert "000000000200" in found.warnings[0]
    finally:
        victim.write_bytes(original)


@pytest.mark.parametrize("what", ["truncate", "empty", "remove", "extend", "directory", "swap"])
def test_every_other_damage_to_every_file_is_named(copy, what):
    for victim in files_of(copy / layout.step_name(200)):
        original = victim.read_bytes()
        if what == "truncate":
            victim.write_bytes(original[:-1])
        elif what == "empty":
            victim.write_bytes(b"")
        elif what == "extend":
            victim.write_bytes(original + b"\0")
        elif what == "swap":
            victim.write_bytes((copy / layout.step_name(100) / "state.json").read_bytes())
        else:
            victim.unlink()
            if what == "directory":
                victim.mkdir()
        assert victim.name in broken(copy)
        assert load_newest_good(copy).step == 100
        if what == "directory":
            victim.rmdir()
        victim.write_bytes(original)
    assert load(copy).step == 200


def test_a_manifest_of_another_step_is_noticed(copy):
    shutil.rmtree(copy / layout.step_name(200))
    shutil.copytree(copy / layout.step_name(100), copy / layout.step_name(200))
    assert "step 100" in broken(copy, 200)


def test_when_all_are_damaged_the_error_names_each(copy):
    for step in (100, 200):
        (copy / layout.step_name(step) / "state.json").write_text("{}")
    with pytest.raises(LudusError) as caught:
        load_newest_good(copy, refill=True)
    assert caught.value.code == "E305"
    assert "000000000100" in caught.value.why
    assert "000000000200" in caught.value.why


def test_damage_in_shared_replay_can_be_survived_by_refilling(tmp_path):
    writer = CheckpointWriter(tmp_path)
    save(writer, 1)
    writer.save(2, {"model": {}}, {"step": 2}, replay=[Segment("rows-1")])
    victim = files_of(tmp_path / layout.step_name(2) / "replay")[0]
    victim.write_bytes(victim.read_bytes()[::-1])
    with pytest.raises(LudusError) as caught:
        load_newest_good(tmp_path)
    assert caught.value.code == "E305"
    found = load_newest_good(tmp_path, refill=True)
    assert found.step == 2
    assert found.replay is None
    assert any("without its damaged replay" in warning for warning in found.warnings)
    assert load(tmp_path, replay=False).step == 2  # evaluation does not need it


def test_resume_after_damage_goes_on_without_the_damaged_one(copy):
    victim = copy / layout.step_name(200) / "model.safetensors"
    victim.write_bytes(victim.read_bytes()[:-1])
    writer = CheckpointWriter(copy)
    writer.resume_from(load_newest_good(copy).path)
    save(writer, 200, tags=("last",))
    assert load(copy).step == 200
    assert load_newest_good(copy).warnings == ()


def forge(folder, change):
    """Rewrite a manifest with a valid digest, as an attacker would."""
    manifest = layout.read_manifest(folder)
    change(manifest)
    (folder / layout.MANIFEST).write_bytes(manifest.to_bytes())


def test_files_outside_the_checkpoint_are_refused(copy, tmp_path):
    secret = tmp_path / "secret.safetensors"
    secret.write_bytes((copy / layout.step_name(100) / "model.safetensors").read_bytes())
    entry = Stored(hashlib.sha256(secret.read_bytes()).hexdigest(), secret.stat().st_size)
    names = ("../../../secret.safetensors", str(secret), "replay/../../x.npy", "x.pkl")
    for name in names:
        folder = tmp_path / "forged" / layout.step_name(200)
        shutil.copytree(copy / layout.step_name(200), folder)
        forge(folder, lambda m, name=name: m.files.__setitem__(name, entry))
        assert "outside the checkpoint" in broken(folder)
        shutil.rmtree(folder)


@pytest.mark.parametrize("name", ["model.safetensors", "state.json", "manifest.json", "replay"])
def test_symbolic_links_inside_a_checkpoint_are_refused(copy, tmp_path, name):
    inside = copy / layout.step_name(200) / name
    inside.rename(tmp_path / "moved")
    inside.symlink_to(tmp_path / "moved")
    assert str(layout.step_name(200)) in broken(copy)
    assert load_newest_good(copy).step == 100


def test_a_pointer_out_of_the_folder_is_not_followed(copy, tmp_path):
    other = tmp_path / "other" / layout.step_name(300)
    shutil.copytree(copy / layout.step_name(200), other)
    (copy / "last").unlink()
    (copy / "last").symlink_to(os.path.relpath(other, copy))
    assert load(copy).path == copy / layout.step_name(200)


def rehash(folder, name, data):
    (folder / name).write_bytes(data)
    entry = Stored(hashlib.sha256(data).hexdigest(), len(data), 1 << 20)
    forge(folder, lambda m: m.files.__setitem__(name, entry))


def test_lying_safetensors_headers_are_refused(copy):
    folder = copy / layout.step_name(200)
    rehash(folder, "model.safetensors", (2**62).to_bytes(8, "little") + b"{}")
    assert "header claims" in broken(copy)
    head = json.dumps({"w": {"dtype": "F32", "shape": [9, 9], "data_offsets": [0, 8]}}).encode()
    data = len(head).to_bytes(8, "little") + head + b"\0" * 8
    rehash(folder, "model.safetensors", data)
    assert "model.safetensors" in broken(copy)


@pytest.mark.parametrize("data", [b"[1]", b"{", b"[" * 100_000, b"\xff"])
def test_a_state_that_is_no_object_is_refused(copy, data):
    rehash(copy / layout.step_name(200), "state.json", data)
    assert "state.json" in broken(copy)


def test_a_newer_format_is_e306(copy):
    path = copy / layout.step_name(200) / layout.MANIFEST
    path.write_text(path.read_text().replace('"format": 1', '"format": 99'))
    with pytest.raises(LudusError) as caught:
        load(copy)
    assert caught.value.code == "E306"


def zst(data):
    return zstandard.ZstdCompressor().compress(data)


def npy(shape, descr="'<f4'", data=b"", fortran=False):
    head = f"{{'descr': {descr}, 'fortran_order': {fortran}, 'shape': {shape}, }}".encode()
    head += b" " * (64 - (len(head) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head + data


@pytest.mark.parametrize(
    ("content", "stated"),
    [
        (zst(npy((4,), data=bytes(16) + b"more")), 16),  # goes on after its end
        (zst(npy((4,), data=bytes(12))), 16),  # ends too early
        (zst(npy((10**12,))), 16),  # claims terabytes
        (zst(npy((2**62, 4), data=bytes(16))), 16),  # would overflow 64 bits
        (zst(npy((-4,), data=bytes(16))), 16),
        (zst(npy((2,), "'|O'", data=bytes(16))), 16),  # Python objects
        (zst(npy((4,), data=bytes(16), fortran=True)), 16),
        (zst(npy((4,), "__import__('os')", data=bytes(16))), 16),
        (zst(b"not an array"), 16),
        (b"not zstandard", 16),
        (zst(npy((4,), data=bytes(16)))[:-4], 16),
        (zst(b"\x93NUMPY\x01\x00\xff\xff" + b" " * 70_000), 16),  # huge header
    ],
)
def test_hostile_arrays_are_refused(tmp_path, content, stated):
    path = tmp_path / "x.npy.zst"
    path.write_bytes(content)
    with pytest.raises(BadFileError):
        read_array(path, Stored("", len(content), stated))


def test_bombs_are_refused_before_they_are_unpacked(tmp_path):
    path = tmp_path / "x.npy.zst"
    path.write_bytes(zst(npy((1 << 28,), "'|u1'")))
    size = path.stat().st_size
    with pytest.raises(BadFileError, match="claim"):
        read_array(path, Stored("", size, (1 << 28) + 1))
    with pytest.raises(BadFileError, match="memory"):
        read_array(path, Stored("", 1 << 45, 1 << 46))


def test_what_the_reader_would_take_for_a_bomb_is_written_plainly(tmp_path, monkeypatch):
    monkeypatch.setattr(arrays, "_FREE_SIZE", 1000)
    zeros = np.zeros(5_000_000, np.uint8)
    name, stored = write_array(tmp_path, "x", zeros)
    assert name == "x.npy"
    assert [p.name for p in tmp_path.iterdir()] == ["x.npy"]
    assert np.array_equal(read_array(tmp_path / name, stored), zeros)


@settings(max_examples=60)
@given(st.binary(max_size=300))
def test_no_manifest_of_random_bytes_is_accepted(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("m") / layout.step_name(1)
    folder.mkdir()
    (folder / layout.MANIFEST).write_bytes(data)
    with pytest.raises(LudusError) as caught:
        layout.read_manifest(folder)
    assert caught.value.code == "E305"


def test_a_manifest_survives_its_own_writing(tmp_path):
    entry = Stored("ab" * 32, 5, 7)
    manifest = Manifest(3, True, {"replay/a.0.npy.zst": entry}, {"a": {"x": "replay/a.0.npy.zst"}})
    (tmp_path / layout.MANIFEST).write_bytes(manifest.to_bytes())
    assert layout.read_manifest(tmp_path) == manifest
