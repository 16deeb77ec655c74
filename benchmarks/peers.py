"""The environments of peers, under .peers/: one list of requirements for each, whoever asks first.

A peer's own environment has no ludus, so this file imports nothing but the standard library.
"""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PEERS = ROOT / ".peers"
TORCH = ["torch"]  # the version that we have; by itself, so that a CPU build is not passed over
EMULATOR = ["ale-py>=0.12,<0.13", "opencv-python-headless"]
SIMULATOR = ["gymnasium[mujoco]", "mujoco<4"]
NEEDS = {  # each list is one call of pip
    "cpprb": [["cpprb>=11,<12"]],
    "rllib": [TORCH, ["ray[rllib]==2.60.0", *EMULATOR]],
    "sb3": [TORCH, ["stable-baselines3>=2.9,<2.10", *EMULATOR, *SIMULATOR]],
    "tianshou": [TORCH, ["tianshou>=2.0,<2.1", "numpy==2.2.6", *EMULATOR]],
}


def python_of(name: str) -> Path:
    return PEERS / name / "bin" / "python"


def set_up(*names: str) -> None:
    """Build or complete the environments of these peers; nothing where the list is as it was."""
    PEERS.mkdir(exist_ok=True)
    (PEERS / ".gitignore").write_text("*\n")
    for name in names:
        wanted, stamp = requirements(name), PEERS / name / ".ready"
        if stamp.exists() and stamp.read_text() == json.dumps(wanted):
            continue
        print(f"setting up {name} in {PEERS / name}", flush=True)
        if not python_of(name).exists():
            subprocess.run([sys.executable, "-m", "venv", str(PEERS / name)], check=True)
        stamp.unlink(missing_ok=True)
        for packages in wanted:
            subprocess.run([python_of(name), "-m", "pip", "install", "-q", *packages], check=True)
        stamp.write_text(json.dumps(wanted))


def requirements(name: str) -> list[list[str]]:
    ours = [f"torch=={metadata.version('torch').partition('+')[0]}"]
    return [ours if packages is TORCH else packages for packages in NEEDS[name]]


def versions(peers: dict[str, str], *ours: str) -> dict[str, str]:
    """Of ludus, of packages in this environment, and of a package in each peer's."""
    import ludus

    found = {"ludus": ludus.__version__} | {name: metadata.version(name) for name in ours}
    for peer, package in peers.items():
        ask = f"from importlib.metadata import version; print(version('{package}'))"
        done = subprocess.run([python_of(peer), "-c", ask], capture_output=True, text=True)
        found[package.replace("_", "-")] = done.stdout.strip()
    return found
