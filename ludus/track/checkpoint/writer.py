"""Write checkpoints atomically: a crash of the process or the machine leaves no partial one.

A checkpoint is built in a temporary directory, synced, and renamed into place; only then do
`last` and `best` move. reader.py reads checkpoints; run/saving.py decides when to save.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import safetensors.torch
from torch import Tensor

from ludus.errors import LudusError
from ludus.track.atomic_files import has_folder, make_folder, sync_path, writing
from ludus.track.checkpoint import format as layout
from ludus.track.checkpoint import tensor_file
from ludus.track.checkpoint.arrays import write_array
from ludus.track.checkpoint.format import Manifest, Stored


class Segment(NamedTuple):
    """A named part of the replay. Two segments of the same name have the same content.

    arrays: the arrays to write. None: unchanged since the previous checkpoint (the last one this
    writer saved or resumed from), so hard-link it. `CheckpointWriter.linkable` lists those names.
    """

    name: str
    arrays: Mapping[str, np.ndarray] | None = None


class CheckpointWriter:
    """Saves into `folder` and keeps the newest `keep` resumable checkpoints, last and best.

    Create it while holding the run's lock and before loading: it cleans up after a kill.
    """

    def __init__(self, folder: Path, keep: int = 3) -> None:
        self.folder, self.keep = folder, keep
        self._previous: Path | None = None
        self._segments: Manifest | None = None  # of the previous checkpoint
        self._kinds: dict[int, layout.Kind | None] = {}
        with self._needs_writing():
            folder.parent.mkdir(parents=True, exist_ok=True)
            make_folder(folder)
            recover(folder)

    def _needs_writing(self) -> contextlib.AbstractContextManager[None]:
        fix = "check the directory's permissions and free space, or use another  --runs-dir DIR"
        return writing("checkpoints cannot be written", self.folder, fix, exact=True)

    @property
    def linkable(self) -> frozenset[str]:
        """Segments of the previous checkpoint: pass them again as Segment(name, None)."""
        known = self._segments.segments if self._segments is not None else None
        return frozenset(known or ())

    def resume_from(self, path: Path, abandoned: Path | None = None) -> None:
        """Continue from the checkpoint in `path`: its segments become linkable, and newer resumable
        checkpoints are moved to aside-*. abandoned: the folder for all newer checkpoints, weights
        included, if the user chose an earlier step."""
        manifest = layout.read_manifest(path)
        if path.parent.resolve() != self.folder.resolve():
            raise ValueError(f"{path} is not in {self.folder}")
        with self._needs_writing():
            for step, newer in layout.checkpoint_paths(self.folder).items():
                if step <= manifest.step:
                    continue
                if abandoned is not None:
                    newer.rename(abandoned / layout.step_name(step))
                elif self._kind(step, newer) != "weights":
                    newer.rename(self.folder / f"{layout.ASIDE}{newer.name}-{secrets.token_hex(2)}")
            self._kinds.clear()
            best = layout.read_pointer(self.folder, "best")
            if best is not None and best not in layout.checkpoint_paths(self.folder):
                (self.folder / "best").unlink()
            if not manifest.rescue and layout.read_pointer(self.folder, "last") != manifest.step:
                self._point("last", manifest.step)
            sync_path(self.folder)
        self._previous, self._segments = path, manifest

    def save(
        self,
        step: int,
        tensors: Mapping[str, Mapping[str, Tensor]],
        state: Mapping[str, Any],
        *,
        replay: Sequence[Segment] | None = None,
        tags: Sequence[str] = ("last",),
        resumable: bool = True,
        rescue: bool = False,
    ) -> Path:
        """Write one checkpoint and return its directory.

        tensors: group -> name -> tensor, one safetensors file per group (model, optim, ...).
        state: any JSON value. replay: None = not saved. tags: pointers to move here.
        resumable=False: weights only (such as `best`); resume never picks it, and it is kept while
        a tag points at it. rescue=True: after failed updates; no tag moves, and `keep` does not
        count it. Raises E301 if the disk refuses the write; older checkpoints stay.
        """
        tags = () if rescue else tags
        if set(tags) - set(layout.POINTERS) or ("last" in tags and not resumable):
            raise ValueError(f"bad tags {tuple(tags)} for a checkpoint, resumable={resumable}")
        target = self.folder / layout.step_name(step)
        there = self._kind(step, target) if target.is_dir() else None
        if (there == "full" and not resumable) or (there in ("full", "weights") and rescue):
            self._tag(step, tags)  # this step is saved already
            self._prune()
            return target
        manifest = Manifest(step, resumable, rescue=rescue)
        temporary = self.folder / f"{layout.TEMPORARY}{target.name}-{secrets.token_hex(4)}"
        try:
            temporary.mkdir()
            _write_state(temporary, tensors, state, manifest)
            if replay is not None:
                self._write_replay(temporary, replay, manifest)
            _write_file(temporary / layout.MANIFEST, manifest.to_bytes())
            sync_path(temporary)
            self._commit(temporary, target)
            self._tag(step, tags)
        except BaseException as error:
            shutil.rmtree(temporary, ignore_errors=True)
            if isinstance(error, OSError):
                raise _refused(target, error) from error
            raise
        self._kinds[step] = manifest.kind
        if resumable:
            self._previous, self._segments = target, manifest
        self._prune()
        return target

    def _write_replay(self, folder: Path, replay: Sequence[Segment], manifest: Manifest) -> None:
        (folder / "replay").mkdir()
        manifest.segments = {}
        for segment in replay:
            if layout.SEGMENT.fullmatch(segment.name) is None:
                raise ValueError(f"bad segment name {segment.name!r}")
            if segment.name in manifest.segments:
                raise ValueError(f"segment {segment.name!r} is given twice")
            if segment.arrays is None:
                manifest.segments[segment.name] = self._link(folder, segment.name, manifest)
                continue
            files: dict[str, str] = {}
            for index, (name, array) in enumerate(segment.arrays.items()):
                stem = f"{segment.name}.{index}"
                file, stored = write_array(folder / "replay", stem, np.asarray(array))
                files[name] = f"replay/{file}"
                manifest.files[files[name]] = stored
            manifest.segments[segment.name] = files
        for file in manifest.files:
            if file.startswith("replay/"):
                sync_path(folder / file)
        sync_path(folder / "replay")

    def _link(self, folder: Path, name: str, manifest: Manifest) -> dict[str, str]:
        before = self._segments
        if before is None or self._previous is None or name not in self.linkable:
            raise ValueError(f"segment {name!r} is not in the checkpoint before; give its arrays")
        assert before.segments is not None
        files = before.segments[name]
        for file in files.values():
            try:
                os.link(self._previous / file, folder / file, follow_symlinks=False)
            except OSError as error:
                if error.errno == errno.ENOSPC:
                    raise
                shutil.copyfile(self._previous / file, folder / file)  # no hard links here
            manifest.files[file] = before.files[file]
        return dict(files)

    def _commit(self, temporary: Path, target: Path) -> None:
        """Rename into place. An earlier save of the same step stays readable until then."""
        if not target.is_dir():
            temporary.rename(target)
            return
        replaced = target.with_name(layout.REPLACED + target.name)
        if replaced.exists():
            self._remove(replaced)
        target.rename(replaced)
        temporary.rename(target)
        sync_path(self.folder)
        if self._previous == target:
            self._previous = None
        self._remove(replaced)

    def _tag(self, step: int, tags: Sequence[str]) -> None:
        for tag in tags:
            self._point(tag, step)
        sync_path(self.folder)

    def _point(self, tag: str, step: int) -> None:
        """Write a relative symbolic link, or a small text file if links are not supported."""
        path, name = self.folder / tag, layout.step_name(step)
        temporary = self.folder / f"{layout.TEMPORARY}{tag}-{secrets.token_hex(4)}"
        try:
            temporary.symlink_to(name)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EACCES, errno.EROFS):
                raise
            temporary.write_text(f"{name}\n", encoding="utf-8")
        temporary.replace(path)

    def _kind(self, step: int, path: Path) -> layout.Kind | None:
        """Return the kind of a checkpoint; None if its manifest cannot be read."""
        if step not in self._kinds:
            self._kinds[step] = layout.read_kind(path)
        return self._kinds[step]

    def _prune(self) -> None:
        paths = layout.checkpoint_paths(self.folder)
        kinds = {step: self._kind(step, path) for step, path in paths.items()}
        full = [step for step, kind in kinds.items() if kind == "full"]
        wanted: set[int | None] = set(full[-self.keep :] if self.keep > 0 else ())
        wanted |= {max((step for step, kind in kinds.items() if kind == "rescue"), default=None)}
        wanted |= {layout.read_pointer(self.folder, tag) for tag in layout.POINTERS}
        for step, path in paths.items():
            if step not in wanted and kinds[step] is not None:
                with contextlib.suppress(OSError):  # the save itself has succeeded
                    self._remove(path)
                    self._kinds.pop(step, None)

    def _remove(self, path: Path) -> None:
        """Rename, then delete, so that a kill leaves no partial checkpoint."""
        doomed = self.folder / f"{layout.TEMPORARY}{path.name}-{secrets.token_hex(4)}"
        path.rename(doomed)
        shutil.rmtree(doomed, ignore_errors=True)


def recover(folder: Path) -> list[str]:
    """Clean up after a kill; the caller holds the run's lock. Return the removed names."""
    removed: list[str] = []
    for entry in sorted(folder.iterdir()) if has_folder(folder) else ():
        if entry.name.startswith(layout.TEMPORARY):
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry, ignore_errors=True)
            else:
                entry.unlink(missing_ok=True)
            removed.append(entry.name)
        elif entry.name.startswith(layout.REPLACED) and entry.is_dir():
            target = folder / entry.name.removeprefix(layout.REPLACED)
            if target.is_dir():
                shutil.rmtree(entry, ignore_errors=True)
                removed.append(entry.name)
            else:
                entry.rename(target)
    return removed


def _write_state(
    folder: Path,
    tensors: Mapping[str, Mapping[str, Tensor]],
    state: Mapping[str, Any],
    manifest: Manifest,
) -> None:
    # The description makes a weights file usable outside its checkpoint.
    about = {name: state[name] for name in ("step", "config", "spec") if name in state}
    for group, values in tensors.items():
        if layout.GROUP.fullmatch(group) is None:
            raise ValueError(f"bad group name {group!r}")
        plain = _separate(values)
        data = tensor_file.dump(plain, about) if group == "model" else safetensors.torch.save(plain)
        manifest.files[f"{group}.safetensors"] = _write_file(folder / f"{group}.safetensors", data)
    data = (json.dumps(dict(state), indent=1) + "\n").encode()
    manifest.files["state.json"] = _write_file(folder / "state.json", data)


def _separate(values: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return CPU tensors that own their memory; copy tied weights and views."""
    seen: set[int] = set()
    result = {}
    for name, value in values.items():
        tensor = value.detach().cpu().contiguous()
        storage = tensor.untyped_storage()
        if storage.data_ptr() in seen or storage.nbytes() != tensor.nbytes:
            tensor = tensor.clone()
        seen.add(tensor.untyped_storage().data_ptr())
        result[name] = tensor
    return result


def _write_file(path: Path, data: bytes) -> Stored:
    with open(path, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    return Stored(hashlib.sha256(data).hexdigest(), len(data))


def _refused(target: Path, error: OSError) -> LudusError:
    return LudusError(
        "E301",
        f"checkpoint {target.name} could not be written: {error.strerror or error}",
        where=str(target),
        why="the disk is full, over quota or read-only" if error.errno else "",
        fix="free some space; earlier checkpoints are intact",
    )
