"""Write the lock files: exact versions with hashes, no index.

    python tools/lock.py            needs uv (pip install uv) and a package index

One file serves every supported Python. torch is left out: its build (CPU, CUDA) is chosen by the
machine. ale-py is under the GPL, so what it adds stands in requirements-atari.lock;
deploy/requirements-ray.lock has what a Ray node adds. Versions stay within pyproject.toml and
constraints.txt; those already in the files are kept unless --upgrade is given.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOCK, ATARI = ROOT / "requirements.lock", ROOT / "requirements-atari.lock"
RAY = ROOT / "deploy" / "requirements-ray.lock"
# KubeRay submits jobs through Ray's dashboard, which is what `default` adds.
RAY_NODE = ["ray[default]>=2.55,<3"]
HEADER = "# Written by tools/lock.py. Install with  pip install --require-hashes -r {}\n"
OLDEST = "3.11"
EDITABLE = ["editables"]  # what hatchling needs for `pip install -e` without build isolation
_NAME = re.compile(r"[A-Za-z0-9._-]+")


def name_of(requirement: str) -> str:
    """The normal form of a distribution's name: typing_extensions -> typing-extensions."""
    found = _NAME.match(requirement)
    return re.sub(r"[-_.]+", "-", found[0] if found else "").lower()


def wanted(extras: list[str]) -> list[str]:
    """The requirements of pyproject.toml, its build backend's included, without torch."""
    data = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    project = data["project"]
    found = [*project["dependencies"], *data["build-system"]["requires"], *EDITABLE]
    for extra in extras:
        found += project["optional-dependencies"][extra]
    return [r for r in found if name_of(r) != "torch"]


def compiled(requirements: list[str], *options: str) -> str:
    """The pinned lines with hashes that uv resolves the requirements to."""
    command = ["uv", "pip", "compile", "-", "--universal", "--generate-hashes", "--quiet"]
    command += ["--python-version", OLDEST, "--no-header", "--no-annotate"]
    command += ["--no-emit-index-url", "--no-emit-find-links", "-c", "constraints.txt", *options]
    text = "\n".join(requirements)
    done = subprocess.run(
        command, cwd=ROOT, input=text, stdout=subprocess.PIPE, text=True, check=True
    )
    return done.stdout


def entries(text: str) -> list[str]:
    """One entry per distribution and marker: its pin and its hashes."""
    return re.findall(r"^[^\s#].*(?:\n[ \t]+.*)*", text, re.MULTILINE)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--upgrade", action="store_true", help="take the newest allowed versions")
    upgrade = parser.parse_args().upgrade
    # Without --upgrade, what is locked stays.
    kept = ["-c", LOCK.name] if LOCK.exists() and not upgrade else []
    core = compiled(wanted(["dev", "video", "mujoco", "ray"]), *kept)
    LOCK.write_text(HEADER.format(LOCK.name) + core, encoding="utf-8")
    there = {name_of(entry) for entry in entries(core)}
    for path, requirements in (
        (ATARI, wanted(["dev", "video", "mujoco", "ray", "atari"])),
        (RAY, RAY_NODE),
    ):
        name = str(path.relative_to(ROOT))
        kept = ["-c", name] if path.exists() and not upgrade else []
        both = compiled(requirements, "-c", LOCK.name, *kept)
        more = [entry for entry in entries(both) if name_of(entry) not in there]
        text = HEADER.format(f"{LOCK.name} -r {name}") + "\n".join(more) + "\n"
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
