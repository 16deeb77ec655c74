"""The distribution: its name, its locked requirements, and what setup installs."""

import importlib.metadata
import json
import os
import re
import subprocess
import tomllib

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

import ludus
from ludus.cli import doctor
from ludus.errors import LudusError
from ludus.track.run_dir.manifest import versions
from tests import skips
from tools.audit import judge
from tools.lock import entries, name_of, wanted

WORDS = ("ludus", "docs", "README.md", "Makefile", ".ci", "benchmarks", "tools")


@pytest.fixture
def project(root):
    return tomllib.loads((root / "pyproject.toml").read_text())


def test_the_distribution_is_not_the_other_project_called_ludus(project):
    assert project["project"]["name"] == "ludus-rl"
    assert project["project"]["scripts"] == {"ludus": "ludus.cli.main:main"}
    assert project["project"]["version"] == ludus.__version__


def test_doctor_looks_for_every_extra_and_no_other(project):
    extras = set(project["project"]["optional-dependencies"]) - {"dev"}
    assert extras == set(doctor._EXTRAS.values())


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
    for text in wanted(["dev", "atari", "mujoco", "video"]):
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


def _recipe(root, *words):
    """What make would run in a new environment."""
    command = ["make", "-n", "-B", "setup", "VENV=.venv-that-nobody-has", *words]
    # Variables of the make that runs the tests do not count.
    clean = {k: v for k, v in os.environ.items() if not k.startswith("MAKE") and k != "EXTRAS"}
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True, env=clean)
    return done.stdout


def test_setup_installs_by_hash_and_the_project_without_its_dependencies(root):
    lines = [line for line in _recipe(root).splitlines() if " -m pip install " in line]
    locked, torch, project = lines
    assert "--require-hashes -r requirements.lock -r requirements-atari.lock" in locked
    assert re.search(r'"torch>=[\d.]+,<[\d.]+"$', torch)
    assert "--no-deps --no-build-isolation -e ." in project


def test_setup_without_extras_leaves_the_gpl_out(root):
    text = _recipe(root, "EXTRAS=")
    assert "requirements-atari.lock" not in text
    assert "pip uninstall --quiet --yes ludus ale-py" in text and "ale-py" not in _recipe(root)


def test_the_choice_of_extras_is_remembered(root, tmp_path):
    (tmp_path / ".extras").write_text("\n")
    assert "requirements-atari.lock" not in _recipe(root, f"VENV={tmp_path}")


def _answer(**packages):
    rows = [{"name": n, "version": "1", **facts} for n, facts in packages.items()]
    return json.dumps({"dependencies": rows})


def test_a_finding_of_pip_audit_fails_and_is_named():
    bad = {"vulns": [{"id": "CVE-1", "fix_versions": ["2"]}]}
    fine, lines = judge(_answer(numpy=bad, rich={"vulns": []}))
    assert not fine and lines[0] == "pip-audit: numpy 1: CVE-1, fixed in 2"


@pytest.mark.parametrize("answer", ["", "{}", _answer(numpy={"skip_reason": "not found"})])
def test_an_audit_without_data_says_so_and_goes_on(answer):
    fine, lines = judge(answer, "ConnectionError: no route")
    assert fine and len(lines) == 1 and "nothing was audited" in lines[0]


def test_an_audit_that_fails_for_another_reason_is_a_failure():
    fine, lines = judge("", "requirements.lock has an invalid line 3")
    assert not fine and "invalid line 3" in lines[0]


def test_an_audit_counts_what_it_could_not_look_up():
    fine, lines = judge(_answer(numpy={"vulns": []}, odd={"skip_reason": "not found"}))
    assert fine and lines == ["pip-audit: 1 packages audited, 1 unknown, 0 findings"]


def test_what_is_code_and_what_setup_installs_is_written_down(root):
    security, readme = ((root / name).read_text() for name in ("SECURITY.md", "README.md"))
    for word in ("module:Class", "run.imports", "--import", "--trust", "pickle", "Reporting"):
        assert word in security, word
    assert "GPL-2.0" in readme and "make setup EXTRAS=" in readme and "ludus-rl" in readme


def test_a_game_without_its_emulator_is_a_skip_and_nothing_else_is(monkeypatch):
    missing = LudusError("E501", "environment ALE/Pong-v5 needs ale-py, which is not installed")
    for installed, error, skipped in (
        (None, missing, True),
        (None, ModuleNotFoundError("No module named 'ale_py'"), True),
        (None, AssertionError("assert 1 == 2"), False),
        ("there", missing, False),
    ):
        monkeypatch.setattr("importlib.util.find_spec", lambda name, found=installed: found)
        assert skips.lacks_emulator(error) == skipped
