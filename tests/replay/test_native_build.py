"""How the C code gets compiled, kept and done without."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import resources
from pathlib import Path

import pytest

from ludus.replay.native import bindings as native
from ludus.replay.native import build as compiled
from tests.skips import needs_compiler
from tests.started import survivors


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in ("LUDUS_NATIVE", "CC"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "cache" / "ludus"


def build():
    """As in a new process."""
    return native.build.__wrapped__()


def test_the_source_comes_with_the_package():
    for source in native.SOURCES:
        assert resources.files("ludus.replay.native").joinpath(source.name).is_file()


@needs_compiler
def test_it_is_compiled_once_and_kept(own_cache, monkeypatch):
    built = build()
    assert built.library is not None and built.text == f"compiled: {next(own_cache.iterdir())}"
    (kept,) = own_cache.iterdir()  # nothing half made beside it
    made = kept.stat().st_mtime_ns
    monkeypatch.setattr(compiled, "_run", lambda *_: pytest.fail("compiled again"))
    assert build().library is not None and kept.stat().st_mtime_ns == made


@needs_compiler
def test_other_source_is_another_file(own_cache, tmp_path, monkeypatch):
    build()
    changed = tmp_path / "sums.c"
    changed.write_text(native.SOURCES[1].read_text() + "\n/* newer */\n")
    monkeypatch.setattr(native, "SOURCES", (native.SOURCES[0], changed))
    assert build().library is not None and len(list(own_cache.iterdir())) == 2


@needs_compiler
def test_a_cache_that_cannot_be_written_is_done_without(own_cache):
    own_cache.parent.write_text("a file where the folder should be")
    assert build().library is not None


@pytest.mark.parametrize(
    ("variable", "value", "reason"),
    [
        ("LUDUS_NATIVE", "0", "numpy: LUDUS_NATIVE=0"),
        ("CC", "no-such-compiler", "numpy: no C compiler (no-such-compiler)"),
        ("CC", "false", "numpy: "),
    ],
)
def test_without_it_the_reason_is_reported(variable, value, reason, monkeypatch):
    monkeypatch.setenv(variable, value)
    built = build()
    assert built.library is None and built.text.startswith(reason) and "\n" not in built.text


def test_source_that_does_not_compile_gives_the_compilers_word(tmp_path, monkeypatch):
    broken = tmp_path / "broken.c"
    broken.write_text("this is no C\n")
    monkeypatch.setattr(native, "SOURCES", (broken,))
    built = build()
    assert built.library is None and built.text.startswith("numpy: ") and len(built.text) > 10


DAMAGE = {
    "cut off": lambda data: data[:5000],
    "empty": lambda data: b"",
    "no library": lambda data: b"not a library",
    "one bit": lambda data: data[:9000] + bytes([data[9000] ^ 1]) + data[9001:],
    "zeros": lambda data: data[:4096] + bytes(len(data) - 4096),  # blocks a crash never wrote
}


@needs_compiler
@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_library_in_the_cache_is_built_again(own_cache, monkeypatch, damage):
    """Loading it would end the process by SIGBUS, whatever the verb."""
    build()
    (kept,) = own_cache.iterdir()
    good = kept.read_bytes()
    other = own_cache.parent / "other"  # what is loaded already is known by its path
    (other / "ludus").mkdir(parents=True, mode=0o700)
    bad = other / "ludus" / kept.name
    bad.write_bytes(DAMAGE[damage](good))
    bad.chmod(0o600)
    monkeypatch.setenv("XDG_CACHE_HOME", str(other))
    loads, load = [], compiled.ctypes.CDLL
    monkeypatch.setattr(
        compiled.ctypes, "CDLL", lambda path: loads.append(Path(path).read_bytes()) or load(path)
    )
    assert build().text == f"compiled: {bad}"
    assert loads == [good], "nothing damaged was ever loaded"
    assert [p.read_bytes() for p in bad.parent.iterdir()] == [good]


def cut_off(kept):
    """Another file of that name: this process has loaded the first."""
    data = kept.read_bytes()[:5000]
    kept.unlink()
    kept.write_bytes(data)
    kept.chmod(0o600)


@needs_compiler
def test_doctor_survives_a_library_that_is_cut_off(own_cache):
    build()
    (kept,) = own_cache.iterdir()
    cut_off(kept)
    words = [sys.executable, "-m", "ludus", "doctor"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert f"compiled: {kept}" in done.stdout, (done.returncode, done.stderr)


@needs_compiler
def test_a_library_is_on_disk_before_it_gets_its_name(own_cache, monkeypatch):
    done = []
    for name in ("fsync", "replace"):
        old = getattr(os, name)
        monkeypatch.setattr(
            compiled.os, name, lambda *a, name=name, old=old: done.append(name) or old(*a)
        )
    assert build().library is not None and done == ["fsync", "replace", "fsync"]


@needs_compiler
def test_a_damaged_library_without_a_compiler_leaves_numpy(own_cache, monkeypatch):
    build()
    (kept,) = own_cache.iterdir()
    cut_off(kept)
    monkeypatch.setattr(compiled.shutil, "which", lambda _: None)
    built = build()
    assert built.library is None and built.text == "numpy: no C compiler (cc)"


def test_verbs_without_replay_do_not_load_it():
    code = (
        "import sys\n"
        "from ludus.cli.main import run\n"
        "for words in (['ls'], ['list', 'algos'], ['help', 'E310']):\n"
        "    run(words)\n"
        "native = sys.modules.get('ludus.replay.native.bindings')\n"
        "assert native is None or not native.build.cache_info().currsize\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@needs_compiler
@pytest.mark.parametrize("what", ["folder", "file"])
def test_what_others_can_have_written_is_not_loaded(own_cache, monkeypatch, what):
    build()
    (kept,) = own_cache.iterdir()
    (own_cache if what == "folder" else kept).chmod(0o777)
    made = []
    run = compiled._run
    monkeypatch.setattr(compiled, "_run", lambda words: made.append(1) or run(words))
    built = build()
    assert built.library is not None and made, "compiled again, not loaded"
    if what == "file":  # made anew
        assert built.text == f"compiled: {kept}" and not kept.stat().st_mode & 0o022
    else:  # nothing can be kept there
        assert "for this process" in built.text


@needs_compiler
def test_without_a_home_it_is_for_this_process_and_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(compiled.Path, "home", lambda: (_ for _ in ()).throw(RuntimeError("none")))
    monkeypatch.setattr(compiled.tempfile, "tempdir", str(tmp_path))
    built = build()
    assert built.library is not None and "for this process" in built.text
    assert not list(tmp_path.glob("ludus-*"))


@pytest.mark.parametrize("word", [" ", "'gcc", "/"])
def test_a_compiler_that_fails_does_not_stop_the_run(monkeypatch, word):
    monkeypatch.setenv("CC", word)
    built = build()
    assert built.library is not None or built.text.startswith("numpy: ")
    assert "\n" not in built.text


def test_a_compiler_that_hangs_is_ended_with_its_children(tmp_path, monkeypatch):
    slow = tmp_path / "slow"
    slow.write_text(f"#!/bin/sh\nsleep 987 & echo $! > {tmp_path}/child\nwait\n")
    slow.chmod(0o755)
    monkeypatch.setenv("CC", str(slow))
    monkeypatch.setattr(compiled, "SECONDS", 1)
    built = build()
    assert built.library is None and "did not end within 1 s" in built.text
    assert not survivors([int((tmp_path / "child").read_text())])


def test_a_compiler_that_writes_no_text_is_understood(tmp_path, monkeypatch):
    rude = tmp_path / "rude"
    rude.write_text("#!/bin/sh\nprintf '\\377\\376' >&2\nexit 3\n")
    rude.chmod(0o755)
    monkeypatch.setenv("CC", str(rude))
    assert build().text.startswith("numpy: ")


@needs_compiler
def test_the_compiler_has_nothing_to_remark(tmp_path):
    words = ["cc", "-Wall", "-Wextra", "-Werror", *native.FLAGS, "-o", tmp_path / "x.so"]
    done = subprocess.run([*words, *native.SOURCES], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_process_says_which_it_uses(monkeypatch):
    monkeypatch.setenv("LUDUS_NATIVE", "0")
    words = [sys.executable, "-m", "ludus", "doctor"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert "numpy: LUDUS_NATIVE=0" in done.stdout
