"""The distribution: its name, its locked requirements, and what setup installs."""

import importlib.metadata
import re
import tomllib

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

import ludus
from ludus.track.manifest import versions
from tools.lock import entries, name_of, wanted

WORDS = ("ludus", "docs", "README.md", "Makefile", ".ci", "benchmarks", "tools")


@pytest.fixture
def project(root):
    return tomllib.loads((root / "pyproject.toml").read_text())


def test_the_distribution_is_not_the_other_project_called_ludus(project):
    assert project["project"]["name"] == "ludus-rl"
    assert project["project"]["scripts"] == {"ludus": "ludus.cli.main:main"}
    assert project["project"]["version"] == ludus.__version__


def test_nothing_tells_a_user_to_install_the_other_project(root):
    bad = re.compile(r"\bludus\[[a-zA-Z{]|pip install (-\S+ )*['\"]?ludus\b")
    found = []
    for place in WORDS:
        top = root / place
        for file in [top] if top.is_file() else sorted(top.rglob("*")):
            if file.suffix in (".py", ".md", ".yaml", "") and file.is_file():
                text = file.read_text(encoding="utf-8")
                found += [f"{file}: {hit[0]}" for hit in bad.finditer(text)]
    assert not found


def test_the_version_is_known_whatever_the_distribution_is_called(monkeypatch):
    def missing(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    assert versions() == {"ludus": ludus.__version__}


def _locked(root):
    text = "".join((root / f"requirements{x}.lock").read_text() for x in ("", "-atari"))
    return entries(text)


def test_every_locked_distribution_is_pinned_and_has_hashes(root):
    locked = _locked(root)
    assert len(locked) > 40
    for entry in locked:
        pin, *hashes = entry.replace("\\\n", "\n").splitlines()
        assert re.fullmatch(r"[a-z0-9-]+==[\w.+!]+( ; .+)?", pin.strip()), pin
        assert hashes and all(re.fullmatch(r"\s+--hash=sha256:[0-9a-f]{64}\s*", h) for h in hashes)


@pytest.mark.parametrize("python", ["3.11", "3.12", "3.13"])
def test_the_lock_holds_every_requirement_within_its_range(root, python):
    pins = {}
    for entry in _locked(root):
        pin = Requirement(entry.splitlines()[0].removesuffix("\\").strip())
        where = {"python_full_version": f"{python}.0", "python_version": python}
        if pin.marker is None or pin.marker.evaluate(where):
            assert name_of(pin.name) not in pins
            pins[name_of(pin.name)] = Version(next(iter(pin.specifier)).version)
    for text in wanted(["dev", "atari", "video"]):
        need = Requirement(text)
        assert need.specifier.contains(pins[name_of(need.name)]), text
    bounds = [Requirement(line) for line in _lines(root / "constraints.txt")]
    assert all(b.specifier.contains(pins[name_of(b.name)]) for b in bounds)


def _lines(path):
    return [x for x in path.read_text().splitlines() if x and not x.startswith("#")]


def test_the_lock_leaves_torch_to_the_machine_and_names_no_index(root):
    names = {name_of(entry) for entry in _locked(root)}
    assert not {n for n in names if n in ("torch", "triton") or n.startswith(("nvidia-", "cuda-"))}
    for name in ("requirements.lock", "requirements-atari.lock"):
        text = (root / name).read_text()
        assert "://" not in text and "--index" not in text and "--find-links" not in text


def test_ale_py_stands_in_a_file_of_its_own(root):
    core = {name_of(e) for e in entries((root / "requirements.lock").read_text())}
    atari = {name_of(e) for e in entries((root / "requirements-atari.lock").read_text())}
    assert "ale-py" in atari and not core & atari
    assert "ale-py" not in core
