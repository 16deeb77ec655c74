"""How the C code gets compiled, kept and done without."""

from __future__ import annotations

import shutil
import subprocess
import sys
from importlib import resources

import pytest

from ludus.replay import native

HAS_COMPILER = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler here")


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
        assert resources.files("ludus.replay").joinpath(source.name).is_file()


@HAS_COMPILER
def test_it_is_compiled_once_and_kept(own_cache, monkeypatch):
    built = build()
    assert built.library is not None and built.text == f"compiled: {next(own_cache.iterdir())}"
    (kept,) = own_cache.iterdir()  # nothing half made beside it
    made = kept.stat().st_mtime_ns
    monkeypatch.setattr(native, "_compile", lambda *_: pytest.fail("compiled again"))
    assert build().library is not None and kept.stat().st_mtime_ns == made


@HAS_COMPILER
def test_other_source_is_another_file(own_cache, tmp_path, monkeypatch):
    build()
    changed = tmp_path / "sums.c"
    changed.write_text(native.SOURCES[1].read_text() + "\n/* newer */\n")
    monkeypatch.setattr(native, "SOURCES", (native.SOURCES[0], changed))
    assert build().library is not None and len(list(own_cache.iterdir())) == 2


@HAS_COMPILER
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
def test_without_it_the_reason_is_told(variable, value, reason, monkeypatch):
    monkeypatch.setenv(variable, value)
    built = build()
    assert built.library is None and built.text.startswith(reason) and "\n" not in built.text


def test_source_that_does_not_compile_gives_the_compilers_word(tmp_path, monkeypatch):
    broken = tmp_path / "broken.c"
    broken.write_text("this is no C\n")
    monkeypatch.setattr(native, "SOURCES", (broken,))
    built = build()
    assert built.library is None and built.text.startswith("numpy: ") and len(built.text) > 10


@HAS_COMPILER
def test_what_is_in_the_cache_but_cannot_be_loaded_is_done_without(own_cache, monkeypatch):
    build()
    (kept,) = own_cache.iterdir()
    other = own_cache.parent / "other"  # what is loaded already is known by its path
    (other / "ludus").mkdir(parents=True)
    (other / "ludus" / kept.name).write_bytes(b"not a library")
    monkeypatch.setenv("XDG_CACHE_HOME", str(other))
    assert build().library is None


@HAS_COMPILER
def test_the_compiler_has_nothing_to_remark(tmp_path):
    words = ["cc", "-Wall", "-Wextra", "-Werror", *native.FLAGS, "-o", tmp_path / "x.so"]
    done = subprocess.run([*words, *native.SOURCES], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_process_says_which_it_uses(monkeypatch):
    monkeypatch.setenv("LUDUS_NATIVE", "0")
    words = [sys.executable, "-m", "ludus", "doctor"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert "numpy: LUDUS_NATIVE=0" in done.stdout
