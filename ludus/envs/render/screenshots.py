"""Saves pictures of final states during training.

Covers every n-th episode of an actor's first environment. Native Atari uses the frame that the
agent saw, other environments their rendering (render mode rgb_array).
"""

from __future__ import annotations

import contextlib
import os
import re
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from ludus.envs.backends.serial import Backend, Serial
from ludus.types import EpisodeEnd, Tree, tree_leaves

Array: TypeAlias = np.ndarray[Any, Any]
SMALL = 210  # pixels: pictures of less height are enlarged
_NUMBER = re.compile(r"(\d{6,})-.*\.png")


class Camera:
    """Saves `<number>-score<score>.png` for every `every`-th episode of the first environment."""

    def __init__(self, folder: Path, every: int) -> None:
        self.folder, self.every = folder, every
        self._seen: int | None = None  # episodes, including those before a resume

    def look(self, backend: Backend, env: int, obs: Tree, episodes: Sequence[EpisodeEnd]) -> None:
        """Call before the environments of `episodes` reset. `env`: the number of the first
        environment; obs [n, ...] of its group."""
        for ended in episodes:
            if ended.env != env:
                continue
            self._seen = self._earlier() if self._seen is None else self._seen
            self._seen += 1
            if self._seen % self.every == 0:
                picture = backend.picture(0) if isinstance(backend, Serial) else _image(obs)
                with contextlib.suppress(OSError):  # a full disk must not end the run
                    name = f"{self._seen:06d}-score{ended.score:g}.png"
                    self._write(name, png(picture))

    def _write(self, name: str, data: bytes) -> None:
        """Write a new file in the run folder; never write through a link."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if self.folder.is_symlink():
            return
        new = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        fd = os.open(self.folder / name, new, 0o666)
        with os.fdopen(fd, "wb") as file:
            file.write(data)

    def _earlier(self) -> int:
        found = self.folder.iterdir() if self.folder.is_dir() else ()
        hits = (_NUMBER.fullmatch(path.name) for path in found)
        return max((int(hit[1]) for hit in hits if hit), default=0)


def _image(obs: Tree) -> Array:
    """The first observation of the group, of native Atari: [H, W] or [H, W, 3]."""
    frame: Array = tree_leaves(obs)[0][0]
    return frame if frame.ndim == 2 or frame.shape[-1] == 3 else frame.transpose(1, 2, 0)


def png(picture: Array) -> bytes:
    """Encode a picture [H, W] or [H, W, 3] of uint8 as PNG; enlarge small ones."""
    pixels = np.asarray(picture, np.uint8)
    factor = max(1, SMALL // pixels.shape[0])
    pixels = pixels.repeat(factor, 0).repeat(factor, 1)
    height, width = pixels.shape[:2]
    kind = 0 if pixels.ndim == 2 else 2  # gray, or red, green and blue
    # Each line starts with its filter type: 0, none.
    lines = np.concatenate((np.zeros((height, 1), np.uint8), pixels.reshape(height, -1)), 1)

    def chunk(name: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        )

    head = struct.pack(">IIBBBBB", width, height, 8, kind, 0, 0, 0)
    body = chunk(b"IDAT", zlib.compress(lines.tobytes(), 6))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + body + chunk(b"IEND", b"")
