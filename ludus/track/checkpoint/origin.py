"""Record the run and the package versions that made a checkpoint, and compare them on resume.
settings/resume.py compares the settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ludus.errors import LudusError
from ludus.track.atomic_files import read_json
from ludus.track.checkpoint.reader import Loaded
from ludus.track.run_dir.manifest import versions
from ludus.track.run_dir.rundir import RunDir


def origin(run: RunDir) -> dict[str, Any]:
    """Return the run id and versions for the state of a checkpoint. manifest.json must exist."""
    return {"run": read_json(run.manifest).get("id"), "versions": versions()}


def check_origin(run: RunDir, loaded: Loaded) -> list[str]:
    """Return warnings about changed versions. Raise E306 if another run made the checkpoint."""
    name, manifest = loaded.path.name, read_json(run.manifest)
    made = loaded.state.get("origin")
    if not isinstance(made, Mapping):
        older = f"checkpoint {name} was written by an older version of ludus: which run made it is "
        return [f"{older}not checked", *_changed(_named(manifest)[-1:], "manifest.json")]
    ids = made.get("run"), manifest.get("id")
    if None not in ids and ids[0] != ids[1]:
        raise LudusError(
            "E306",
            f"checkpoint {name} was made by another run",
            where=str(loaded.path),
            why="checkpoints of another run were copied into this one",
            fix="put the run's own checkpoints back; for these weights in a new run:  "
            f"ludus train ... --init-from {loaded.path}",
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
