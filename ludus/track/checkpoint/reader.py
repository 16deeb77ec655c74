"""Read checkpoints. Every byte is checked against the manifest before it is used.

The reader uses no pickle, reads no file outside the directory, trusts no stated size, and never
returns a partial checkpoint.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from ludus.errors import LudusError
from ludus.track.atomic_files import has_folder, open_read, parse_json, read_bytes, reason
from ludus.track.checkpoint import format as layout
from ludus.track.checkpoint import tensor_file
from ludus.track.checkpoint.arrays import read_array
from ludus.track.checkpoint.format import BadFileError, Manifest, Stored, damaged, find_checkpoint

_STATE_LIMIT = 256 << 20


class ReplayReader:
    """The saved replay: segments in order, decompressed on demand."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        assert manifest.segments is not None
        self._folder, self._manifest, self._segments = folder, manifest, manifest.segments

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._segments)

    def load(self, name: str, limit: int | None = None) -> dict[str, np.ndarray]:
        """Load the arrays of a segment. Raise E305 if they exceed `limit` bytes in total."""
        stated = sum(self._manifest.files[file].raw_bytes for file in self._segments[name].values())
        if limit is not None and stated > limit:
            raise damaged(self._folder, name, f"it states {stated} bytes, the replay has {limit}")
        arrays = {}
        for array, file in self._segments[name].items():
            with _reading(self._folder, file):
                arrays[array] = read_array(self._folder / file, self._manifest.files[file])
        return arrays

    def __iter__(self) -> Iterator[tuple[str, dict[str, np.ndarray]]]:
        return ((name, self.load(name)) for name in self.names)

    def __len__(self) -> int:
        return len(self._segments)


@dataclass(frozen=True)
class Loaded:
    """One verified checkpoint."""

    path: Path
    step: int
    tensors: dict[str, dict[str, Tensor]]
    state: dict[str, Any]
    replay: ReplayReader | None  # None: not saved (or not asked for)
    resumable: bool
    warnings: tuple[str, ...] = ()
    rescue: bool = False


def load(where: str | Path, which: str | int = "last", *, replay: bool = True) -> Loaded:
    """Load last, best, a step, or the checkpoint directory `where` itself.

    replay=False skips the replay. Raise E304 if it is missing, E305 if it is damaged.
    """
    return _read(find_checkpoint(where, which), replay)


def load_file(path: Path) -> Loaded:
    """Load a model.safetensors. Inside a checkpoint, load and check that whole checkpoint.

    Elsewhere there is no manifest, and the header of the file describes the agent.
    """
    if (path.parent / layout.MANIFEST).is_file() and layout.STEP.fullmatch(path.parent.name):
        return _read(path.parent, with_replay=False)
    with _reading(path.parent, path.name), open(path, "rb") as file:  # the user may name a link
        size = os.fstat(file.fileno()).st_size
        tensor_file.check_memory(path, size)
        found = tensor_file.parse(file.read(size))
    step, unchecked = found.about.get("step"), f"{path.name} has no digest: its bytes are unchecked"
    return Loaded(
        path,
        step if isinstance(step, int) else 0,
        {"model": found.tensors},
        found.about,
        None,
        resumable=False,
        warnings=() if found.has_digest else (unchecked,),
    )


def load_newest_good(
    where: str | Path, *, replay: bool = True, refill: bool = False, at: str | int | None = None
) -> Loaded:
    """Load the newest undamaged resumable checkpoint that is no rescue; `warnings` name those that
    were skipped. at: load exactly this step, even if it is a rescue.

    Checkpoints share unchanged replay files, so damage there can reach all of them. Then
    refill=True takes the newest whose other parts are good, without its replay.
    """
    folder = Path(where)
    folder = folder / "checkpoints" if (folder / "checkpoints").is_dir() else folder
    paths = [_at(folder, at)] if at is not None else _candidates(folder)
    warnings: list[str] = []

    def warn(text: str) -> None:
        if text not in warnings:
            warnings.append(text)

    for with_replay in (True, False) if replay and refill else (replay,):
        for path in paths:
            try:
                if at is None and layout.read_manifest(path).rescue:
                    text = f"checkpoint {path.name} is a rescue, written after non-finite updates:"
                    warn(f"{text} not resumed from, kept as checkpoints/aside-*")
                    continue
                found = _read(path, with_replay)
            except LudusError as error:
                if error.code != "E305":
                    raise
                warn(f"{error.what} ({error.why}); trying an earlier checkpoint")
                continue
            if replay and not with_replay:
                warn(f"checkpoint {path.name} is used without its damaged replay")
            if found.rescue:
                warn(f"checkpoint {path.name} is a rescue: its updates were non-finite")
            return replace(found, warnings=tuple(warnings))
    raise LudusError(
        "E305",
        "no undamaged checkpoint is left",
        where=str(folder),
        why="; ".join(warnings) or "none of the checkpoints can be resumed from",
        fix="start anew with  --fresh , or from weights that are intact with  --init-from",
    )


def _candidates(folder: Path) -> list[Path]:
    """Return resumable checkpoints, rescues included, the newest first. Raise E304 if there are
    only rescues."""
    kinds, paths = layout.checkpoint_kinds(folder), layout.checkpoint_paths(folder)
    found = [paths[step] for step in reversed(kinds) if kinds[step] != "weights"]
    if layout.newest_resumable(folder) is not None:
        return found
    why = "what is there holds weights alone" if paths else "it ended before its first one"
    entries = (folder, *(folder.iterdir() if has_folder(folder) else ()))
    links = [p for p in entries if p.is_symlink() and p.name not in layout.POINTERS]
    if links and not paths:
        raise LudusError(
            "E304",
            "the run has no checkpoint of its own",
            where=str(links[0]),
            why="it is a link, and links inside a run are not followed",
            fix="put the folder that it leads to in its place",
        )
    fix = "nothing to resume: start again with  ludus train ... --run NAME --fresh"
    if found:
        why = "the only one is a rescue, written after updates that were not finite"
        resume = f"ludus resume {folder.parent} --at {int(found[0].name)}"
        fix = f"{resume}   goes on from it all the same"
    raise LudusError("E304", "the run has no checkpoint yet", where=str(folder), why=why, fix=fix)


def _at(folder: Path, step: str | int) -> Path:
    path = find_checkpoint(folder, step)
    if layout.read_manifest(path).resumable:
        return path
    raise LudusError(
        "E304",
        f"checkpoint {path.name} cannot be resumed from",
        where=str(path),
        why="it holds weights alone (best)",
        fix=f"ludus train ... --init-from {path}   starts another run with them",
    )


def _read(folder: Path, with_replay: bool) -> Loaded:
    manifest = layout.read_manifest(folder)
    name = folder.name.removeprefix(layout.REPLACED)
    if layout.STEP.fullmatch(name) and int(name) != manifest.step:
        raise damaged(folder, layout.MANIFEST, f"it is the manifest of step {manifest.step}")
    tensors, state = {}, None
    for name, stored in manifest.files.items():
        replay = name.startswith("replay/")
        if replay and not with_replay:
            continue
        with _reading(folder, name):
            path = _check_size(folder, name, stored.bytes)
            if replay:
                with open_read(path) as file:
                    _check_digest(hashlib.file_digest(file, "sha256").hexdigest(), stored)
                continue
            tensor_file.check_memory(path, stored.bytes)
            data = read_bytes(path, stored.bytes)
            _check_digest(hashlib.sha256(data).hexdigest(), stored)
            if name == "state.json":
                state = _state(data)
            else:
                tensors[name.removesuffix(".safetensors")] = tensor_file.read(data)
    if state is None:
        raise damaged(folder, layout.MANIFEST, "it lists no state.json")
    saved = with_replay and manifest.segments is not None
    reader = ReplayReader(folder, manifest) if saved else None
    return Loaded(
        folder, manifest.step, tensors, state, reader, manifest.resumable, rescue=manifest.rescue
    )


@contextmanager
def _reading(folder: Path, name: str) -> Iterator[None]:
    """Turn an error about a file of a checkpoint into E305."""
    try:
        yield
    except LudusError:  # a ValueError too
        raise
    except (OSError, ValueError) as error:
        raise damaged(folder, name, reason(error)) from error


def _check_size(folder: Path, name: str, size: int) -> Path:
    """Return the path of a regular file in the checkpoint after checking its size."""
    path = folder / name
    if path.is_symlink() or (path.parent != folder and path.parent.is_symlink()):
        raise BadFileError("it is a symbolic link")
    if not path.is_file():
        raise BadFileError("it is missing")
    found = path.stat().st_size
    if found != size:
        raise BadFileError(f"it has {found} bytes, not {size}")
    return path


def _check_digest(digest: str, stored: Stored) -> None:
    if digest != stored.sha256:
        raise BadFileError("its sha256 does not match the manifest")


def _state(data: bytes) -> dict[str, Any]:
    if len(data) > _STATE_LIMIT:
        raise BadFileError("too large")
    value = parse_json(data, finite=False)  # the best score begins at -inf
    if not isinstance(value, dict):
        raise BadFileError("it is not an object")
    return value
