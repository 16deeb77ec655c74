"""deploy/install.sh: everything by its hash but torch, whose range is pyproject.toml's."""

from __future__ import annotations

import re
import subprocess
import tomllib

from tests.deploy.files import DEPLOY, ROOT, locked
from tools.lock import RAY_NODE, entries, name_of

STAND_IN = """#!/bin/sh
if [ "$2" = venv ]; then mkdir -p "$3/bin"; cp "$0" "$3/bin/python"; exit 0; fi
printf '%s\\n' "$*" >> "$CALLS"
"""


def pips(tmp_path, **variables):
    """The calls of pip in an installation with a stand-in for Python."""
    (tmp_path / "python3").write_text(STAND_IN)
    (tmp_path / "python3").chmod(0o755)
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin", "CALLS": str(tmp_path / "calls"), **variables}
    command = ["bash", DEPLOY / "install.sh", tmp_path / "there"]
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "there" / "bin" / "ludus-role").stat().st_mode & 0o111
    calls = (tmp_path / "calls").read_text().splitlines()
    return [call.split("--no-cache-dir ")[1] for call in calls]


def test_locked_by_hash_then_torch_then_ludus(tmp_path):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    (torch,) = [r for r in project["dependencies"] if name_of(r) == "torch"]
    locks, wheel, own, check = pips(tmp_path)
    assert locks.startswith("install --quiet --require-hashes ")
    named = re.findall(r"-r (\S+)", locks)
    assert named == [str(ROOT / "requirements.lock"), str(DEPLOY / "requirements-ray.lock")]
    assert wheel == f"install --quiet --index-url https://download.pytorch.org/whl/cpu {torch}"
    assert own == f"install --quiet --no-deps --no-build-isolation {ROOT}"
    assert check == "check"


def test_cuda_and_the_emulator_are_asked_for(tmp_path):
    locks, wheel, *_ = pips(tmp_path, DEPLOY_TORCH="cuda", DEPLOY_ATARI="1")
    assert "requirements-atari.lock" in locks and "index-url" not in wheel


def test_what_ray_adds_is_pinned_by_hash_and_no_pin_differs():
    text = (DEPLOY / "requirements-ray.lock").read_text(encoding="utf-8")
    found = entries(text)
    assert len(found) > 20 and RAY_NODE[0].startswith("ray[default]>=2.55")
    for entry in found:
        assert re.match(r"[a-z0-9-]+==[^\s;]+( ; .+)? \\\n", entry), entry
        assert re.search(r"--hash=sha256:[0-9a-f]{64}", entry), entry
    here, core = locked("deploy/requirements-ray.lock"), locked("requirements.lock")
    assert not here.keys() & core.keys() and int(core["ray"].split(".")[1]) >= 55
