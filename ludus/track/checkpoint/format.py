"""The layout of a checkpoint directory, shared by writer.py and reader.py.

    checkpoints/
      000000050000/  manifest.json, model.safetensors, optim.safetensors, state.json, replay/
      last -> 000000050000     best -> 000000020000
      .tmp-*       being written or deleted; removed at the next start
      .old-<step>  replaced by a newer save of the same step; found by readers until it is gone
      aside-*      newer than the checkpoint a run was resumed from; kept, never read

A rescue checkpoint was written after updates failed or weights exploded. It is kept for inspection
and for `--at STEP`; `last`, `best`, `run.keep` and a plain resume ignore it.

The manifest lists every file with size and sha256 and has its own digest, so that a single changed
byte is detected. This module reads and writes no tensors.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from ludus.errors import LudusError
from ludus.track.atomic_files import has_folder, parse_json, read_bytes, read_text
from ludus.units import parse_count, show_count

FORMAT = 1
MANIFEST = "manifest.json"
POINTERS = ("last", "best")
TEMPORARY, REPLACED, ASIDE = ".tmp-", ".old-", "aside-"
STEP = re.compile(r"[0-9]{12,18}")
GROUP = re.compile(r"[a-z][a-z0-9_]{0,40}")
SEGMENT = re.compile(r"[A-Za-z0-9_-]{1,80}")
_FILE = re.compile(
    r"state\.json|[a-z][a-z0-9_]{0,40}\.safetensors|replay/[A-Za-z0-9._-]+\.npy(\.zst)?"
)
_MANIFEST_LIMIT = 8 << 20
Kind = Literal["full", "weights", "rescue"]


class BadFileError(ValueError):
    """A file of a checkpoint is not what it should be."""


class Stored(NamedTuple):
    """One file as the manifest records it."""

    sha256: str
    bytes: int
    raw_bytes: int = 0  # size of the decompressed array; 0 for files that are not arrays


@dataclass
class Manifest:
    """The table of contents of one checkpoint."""

    step: int
    resumable: bool
    files: dict[str, Stored] = field(default_factory=dict)
    segments: dict[str, dict[str, str]] | None = None  # name -> array -> file, in order
    rescue: bool = False

    @property
    def kind(self) -> Kind:
        if not self.resumable:
            return "weights"
        return "rescue" if self.rescue else "full"

    def to_bytes(self) -> bytes:
        segments = None if self.segments is None else [[n, f] for n, f in self.segments.items()]
        value: dict[str, Any] = {
            "format": FORMAT,
            "step": self.step,
            "resumable": self.resumable,
            "files": {name: list(stored) for name, stored in self.files.items()},
            "segments": segments,
            **({"rescue": True} if self.rescue else {}),
        }
        digest = hashlib.sha256(_canonical(value)).hexdigest()
        return _canonical({**value, "digest": digest})


def _canonical(value: dict[str, Any]) -> bytes:
    return (json.dumps(value, indent=1) + "\n").encode()


def step_name(step: int) -> str:
    return f"{step:012d}"


def read_manifest(folder: Path) -> Manifest:
    """Read the manifest of a checkpoint. Raise E305 if any byte of it has changed."""
    try:
        data = read_bytes(folder / MANIFEST, _MANIFEST_LIMIT)
    except OSError as error:
        raise damaged(folder, MANIFEST, error.strerror or "cannot be read") from error
    try:
        value = parse_json(data)
        known = int(value["format"])
        manifest = Manifest(
            step=int(value["step"]),
            resumable=bool(value["resumable"]),
            files={str(name): Stored(*entry) for name, entry in value["files"].items()},
            segments=None if value["segments"] is None else dict(value["segments"]),
            rescue=bool(value.get("rescue", False)),
        )
        same = known != FORMAT or manifest.to_bytes() == data
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise damaged(folder, MANIFEST, "not a manifest") from error
    if not same:
        raise damaged(folder, MANIFEST, "its digest does not match")
    if known != FORMAT:
        raise LudusError(
            "E306",
            f"checkpoint format {known} is not the format {FORMAT} of this version",
            where=str(folder),
            fix="use the version of ludus that wrote it (see manifest.json of the run)",
        )
    _check_names(folder, manifest)
    return manifest


def _check_names(folder: Path, manifest: Manifest) -> None:
    for name in manifest.files:
        if _FILE.fullmatch(name) is None or ".." in name:
            raise damaged(folder, MANIFEST, f"names a file outside the checkpoint: {name!r}")
    for segment, arrays in (manifest.segments or {}).items():
        if SEGMENT.fullmatch(segment) is None or not isinstance(arrays, dict):
            raise damaged(folder, MANIFEST, f"has a bad replay segment: {segment!r}")
        for file in arrays.values():
            if file not in manifest.files:
                raise damaged(folder, MANIFEST, f"lacks the replay file {file!r}")


def checkpoint_paths(folder: Path) -> dict[int, Path]:
    """Map step to directory, ascending. A replaced directory counts while no new one is there."""
    found: dict[int, Path] = {}
    if has_folder(folder):
        for entry in folder.iterdir():
            name = entry.name.removeprefix(REPLACED)
            if STEP.fullmatch(name) and entry.is_dir() and not entry.is_symlink():
                if entry.name == name or int(name) not in found:
                    found[int(name)] = entry
    return dict(sorted(found.items()))


def newest_resumable(folder: Path) -> int | None:
    """Return the step of the newest checkpoint that a run can resume from, or None. Checkpoints
    with only weights (`best`) and rescues do not count; damaged ones do, since loading reports
    them."""
    kinds = checkpoint_kinds(folder)
    return next((step for step in reversed(kinds) if kinds[step] in ("full", None)), None)


def checkpoint_kinds(folder: Path) -> dict[int, Kind | None]:
    """Map step to kind, ascending; None for a checkpoint whose manifest cannot be read."""
    return {step: read_kind(path) for step, path in checkpoint_paths(folder).items()}


def read_kind(path: Path) -> Kind | None:
    try:
        return read_manifest(path).kind
    except LudusError:
        return None


def read_pointer(folder: Path, name: str) -> int | None:
    """Return the step that `last` or `best` points to; None if it is absent or invalid."""
    path = folder / name
    try:
        text = os.readlink(path) if path.is_symlink() else read_text(path, 100).strip()
    except OSError:
        return None
    return int(text) if STEP.fullmatch(text) else None


def find_checkpoint(where: str | Path, which: str | int = "last") -> Path:
    """Return the directory of a checkpoint.

    `where`: a run directory, its checkpoints directory, or one checkpoint (then `which` is
    ignored). `which`: last, best, or a step (5000, "5k").
    """
    folder = Path(where)
    if folder.name in POINTERS and read_pointer(folder.parent, folder.name) is not None:
        which, folder = folder.name, folder.parent
    elif STEP.fullmatch(folder.name.removeprefix(REPLACED)) and folder.is_dir():
        return folder
    elif (folder / "state.json").is_file() and (folder / MANIFEST).is_file():
        return folder  # a checkpoint that was copied elsewhere under another name
    if os.path.lexists(folder / "checkpoints"):
        folder = folder / "checkpoints"
    paths = checkpoint_paths(folder)
    step = _step(folder, which, paths)
    if step is None or step not in paths:
        raise _missing(folder, which, paths)
    return paths[step]


def _step(folder: Path, which: str | int, paths: dict[int, Path]) -> int | None:
    if which in POINTERS:
        step = read_pointer(folder, str(which))
        if which == "last" and step not in paths and paths:
            kinds = checkpoint_kinds(folder)  # the pointer is lost, the checkpoints are not
            return max((s for s in paths if kinds[s] != "rescue"), default=max(paths))
        return step
    try:
        return parse_count(which)
    except ValueError:
        return None


def _missing(folder: Path, which: str | int, paths: dict[int, Path]) -> LudusError:
    kinds = checkpoint_kinds(folder)
    marks = {step: ", weights only" if kinds[step] == "weights" else "" for step in paths}
    shown = ", ".join(f"{step} ({show_count(step)}{marks[step]})" for step in list(paths)[-10:])
    steps = {name: read_pointer(folder, name) for name in POINTERS}
    tags = ", ".join(f"{name} = {step}" for name, step in steps.items() if step)
    listed = f"{shown or 'none'}{f'; {tags}' if tags else ''}"
    why = f"available: {listed}"
    if which == "best":
        why = f"best is kept once enough whole episodes were seen (eval.best_window); {why}"
    return LudusError(
        "E304",
        f"no checkpoint {which!r}",
        where=str(folder),
        why=why,
        fix="one of the steps above, or  last" if paths else "train the run first",
    )


def damaged(folder: Path, file: str, why: str) -> LudusError:
    return LudusError(
        "E305",
        f"checkpoint {folder.name} is damaged: {file}" if folder.name else f"{file} is damaged",
        where=str(folder / file),
        why=why,
        fix="resume takes the newest undamaged one by itself; else  --checkpoint STEP",
    )
