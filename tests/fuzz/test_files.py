"""Files of a run, damaged in every way we can think of: each reader answers with a LudusError or
goes on. Nothing is run, nothing written elsewhere, nothing grows without bound."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from ludus.errors import CODES, LudusError
from tests.fuzz.guard import Forbidden, bounded_memory, watched
from tests.fuzz.mutations import GROWN, OF_SMALL_JSON, clear, outside_of
from tests.fuzz.specimen import SHORT, Specimen, make_specimen
from tests.fuzz.targets import NEVER_READ, TARGETS, Target, damage, quiet

FEW, MANY = 10, 2_000


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Specimen:
    """Tests copy it."""
    return make_specimen(tmp_path_factory.mktemp("specimen") / "bench")


@pytest.fixture
def specimen(made, tmp_path) -> Specimen:
    shutil.copytree(made.bench, tmp_path / "bench", symlinks=True)
    shutil.copy(made.run.config, tmp_path / "whole.yaml")
    return Specimen(tmp_path / "bench")


def test_every_file_of_a_run_has_a_target(made):
    known = {target.file for target in TARGETS} | NEVER_READ
    assert made.names() - known == set(), "a new file needs a target in tests/fuzz/targets.py"
    assert known - made.names() == set(), "a target without a file tests nothing"


def fuzz(target: Target, specimen: Specimen, cases: int) -> None:
    path = specimen.find(target.pattern)
    if target.file != "x/config.yaml":
        specimen.run.config.write_text(SHORT)
    is_link = path.is_symlink()
    before = str(path.readlink()).encode() if is_link else path.read_bytes()
    around = [path.parent, *(p for p in path.parents if p.parent.name == "checkpoints")]
    outside = outside_of(path)
    kept = Kept(list(dict.fromkeys(around)), specimen.bench.parent / "kept")
    for reader in target.readers:
        quiet(reader, specimen)  # so that lazy imports are done
        kept.put_back()

    @settings(max_examples=cases, deadline=None, database=None,
              phases=(Phase.generate, Phase.shrink),  # to explain takes a tracer, which is slow
              suppress_health_check=list(HealthCheck))  # fmt: skip
    @given(target.strategy)
    def case(mutation):
        for reader in target.readers:
            kept.put_back()
            damage(target, specimen, mutation, before)
            try:
                with watched(specimen.bench):
                    quiet(reader, specimen)
            except LudusError as error:
                assert error.code in CODES and "\x1b" not in error.render()
            assert not outside.exists() or outside.read_bytes() == before

    with bounded_memory():
        case()


class Kept:
    """The files beside a damaged one, put back where a reader or a seal has changed them."""

    def __init__(self, folders: list[Path], copy: Path) -> None:
        self.copy, self.known = copy, {}
        copy.mkdir()
        for number, folder in enumerate(folders):
            shutil.copytree(folder, copy / str(number), symlinks=True)
            for name in os.listdir(folder):
                if not (folder / name).is_dir() or (folder / name).is_symlink():
                    self.known[folder / name] = (copy / str(number) / name, look(folder / name))

    def put_back(self) -> None:
        for path, (copy, state) in self.known.items():
            if look(path) != state:
                clear(path)
                shutil.copy2(copy, path, follow_symlinks=False)
                self.known[path] = copy, look(path)


def look(path: Path) -> tuple[int, ...]:
    try:
        found = path.lstat()
    except OSError:
        return ()
    return found.st_mode, found.st_ino, found.st_size, found.st_mtime_ns


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
def test_a_damaged_file_is_an_answer(target, specimen):
    fuzz(target, specimen, FEW)


GROWING = [target for target in TARGETS if target.strategy is OF_SMALL_JSON]


@pytest.mark.parametrize("target", GROWING, ids=lambda t: t.name)
def test_a_file_that_has_grown_is_an_answer(target, specimen):
    """Valid as it is, 32 MB of JSON took 25 seconds and 2 GB."""
    fuzz(replace(target, strategy=GROWN), specimen, FEW)


@pytest.mark.slow
@pytest.mark.parametrize("target", GROWING, ids=lambda t: t.name)
def test_a_hundred_files_that_have_grown(target, specimen):
    fuzz(replace(target, strategy=GROWN), specimen, 100)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
def test_two_thousand_damaged_files(target, specimen):
    fuzz(target, specimen, MANY)


def test_the_guard_sees_what_it_should(tmp_path):
    with pytest.raises(Forbidden), watched(tmp_path / "run"):
        (tmp_path / "elsewhere").write_text("x")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(Forbidden), watched(tmp_path / "run"):
        (tmp_path / "run" / "link").write_text("x")
    with pytest.raises(Forbidden), watched(tmp_path):
        import this  # noqa: F401
    with pytest.raises(Forbidden), watched(tmp_path):
        __import__("subprocess").run(["true"])
    with pytest.raises(MemoryError), bounded_memory():
        bytearray(1 << 40)
