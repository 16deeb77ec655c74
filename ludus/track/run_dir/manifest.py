"""manifest.json of a run: the code, machine, command and configuration that made it.

A checkpoint records which run and versions made it (`origin`), compared on resume (`check_origin`).
checkpoint/format.py has the manifest of a checkpoint, settings/resume.py compares the settings.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import platform
import re
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from ludus import __version__
from ludus.errors import LudusError
from ludus.secret_masking import masked_command
from ludus.track.atomic_files import read_json, write_json
from ludus.track.run_dir.rundir import RunDir

_PACKAGES = ("torch", "numpy", "gymnasium", "ale-py", "safetensors", "pydantic")


def config_hash(config: Mapping[str, Any]) -> str:
    """Return the sha256 of the resolved configuration, independent of the order of its keys."""
    text = json.dumps(config, sort_keys=True, default=str, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def write_manifest(
    run: RunDir,
    *,
    config: Mapping[str, Any],
    seed: int,
    command: Sequence[str],
    lineage: Mapping[str, Any] | None = None,
    facts: Mapping[str, Any] | None = None,
) -> None:
    """Describe a new run. lineage: the run, checkpoint and step it started from. facts: other
    facts that affect its scores, such as the Atari protocol or sampled hyperparameters."""
    manifest = {
        "run": run.name,
        "id": secrets.token_hex(8),
        "seed": seed,
        "config_sha256": config_hash(config),
        "lineage": dict(lineage or {}),
        **(facts or {}),
        **_circumstances(command),
        "sessions": [_session(command, 0)],
    }
    write_json(run.manifest, manifest, sync=True)


def add_session(
    run: RunDir, *, step: int, command: Sequence[str], run_id: str | None = None
) -> None:
    """Record that the run resumed at `step`, and the differences from its start. run_id: the id
    for a manifest without one (lost, or written by an older version)."""
    manifest = read_json(run.manifest)
    manifest.setdefault("id", run_id or secrets.token_hex(8))
    now = _circumstances(command)
    changed = {k: v for k, v in now.items() if k != "command" and manifest.get(k) != v}
    session = {**_session(command, step), "changed": changed}
    earlier = manifest.get("sessions")
    manifest["sessions"] = [*(earlier if isinstance(earlier, list) else ()), session]
    write_json(run.manifest, manifest, sync=True)


def _session(command: Sequence[str], step: int) -> dict[str, Any]:
    return {
        "step": step,
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "command": masked_command(command),
    }


def _circumstances(command: Sequence[str]) -> dict[str, Any]:
    return {
        "command": masked_command(command),
        "git": git_state(Path.cwd()),
        "python": platform.python_version(),
        "versions": versions(),
        "machine": _machine(),
    }


def versions() -> dict[str, str]:
    """Return the versions of the packages that affect results."""
    found = {"ludus": __version__}
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def git_state(folder: Path) -> dict[str, Any] | None:
    """Return the commit and whether tracked files differ from it; None outside a repository."""
    commit = _git(folder, "rev-parse", "HEAD")
    if commit is None:
        return None
    return {"commit": commit, "dirty": bool(_git(folder, "status", "--porcelain", "-uno"))}


def _git(folder: Path, *words: str) -> str | None:
    try:
        done = subprocess.run(
            ("git", "-C", str(folder), *words),
            capture_output=True,
            text=True,
            timeout=5,
            env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _machine() -> dict[str, Any]:
    return {
        "system": f"{platform.system()} {platform.release()}",
        "cpu": _cpu_name(),
        "cores": os.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
        "gpus": _gpus(),
    }


def _cpu_name() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
        hit = re.search(r"model name\s*:\s*(.+)", text)
    except OSError:
        hit = None
    return hit[1].strip() if hit else platform.processor() or platform.machine()


def _gpus() -> list[str]:
    """Return the names of the GPUs; empty unless torch is loaded already."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return []
    return [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]


def origin(run: RunDir) -> dict[str, Any]:
    """Return the run id and versions for the state of a checkpoint. manifest.json must exist."""
    return {"run": read_json(run.manifest).get("id"), "versions": versions()}


def check_origin(run: RunDir, path: Path, state: Mapping[str, Any]) -> list[str]:
    """Return warnings about changed versions. Raise E306 if another run made the checkpoint."""
    name, manifest = path.name, read_json(run.manifest)
    made = state.get("origin")
    if not isinstance(made, Mapping):
        older = f"checkpoint {name} was written by an older version of ludus: which run made it is "
        return [f"{older}not checked", *_changed(_named(manifest)[-1:], "manifest.json")]
    ids = made.get("run"), manifest.get("id")
    if None not in ids and ids[0] != ids[1]:
        raise LudusError(
            "E306",
            f"checkpoint {name} was made by another run",
            where=str(path),
            why="checkpoints of another run were copied into this one",
            fix="put the run's own checkpoints back; for these weights in a new run:  "
            f"ludus train ... --init-from {path}",
        )
    saved = made.get("versions")
    found = _changed([saved] if isinstance(saved, Mapping) else [], f"checkpoint {name}")
    if isinstance(saved, Mapping) and saved not in _named(manifest):
        found += [f"manifest.json does not name the versions of checkpoint {name}"]
        found[-1] += "".join(f": {_compared(named, saved)}" for named in _named(manifest)[:1])
    return found


def _named(manifest: Mapping[str, Any]) -> list[Mapping[str, str]]:
    """Return the versions of each session in manifest.json."""
    sessions = manifest.get("sessions")
    found = [manifest.get("versions")]
    for session in sessions if isinstance(sessions, list) else ():
        changed = session.get("changed") if isinstance(session, Mapping) else None
        found += [changed.get("versions")] if isinstance(changed, Mapping) else []
    return [named for named in found if isinstance(named, Mapping)]


def _changed(before: list[Mapping[str, str]], where: str) -> list[str]:
    text = ", ".join(_compared(named, versions()) for named in before)
    return [f"other versions than in {where}: {text}; numbers may differ"] if text else []


def _compared(old: Mapping[str, str], new: Mapping[str, str]) -> str:
    keys = [key for key in sorted({*old, *new}) if old.get(key) != new.get(key)]
    return ", ".join(f"{key} {old.get(key, 'none')} -> {new.get(key, 'none')}" for key in keys)
