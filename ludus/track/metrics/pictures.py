"""Screenshots of final states (RUN/screenshots) for TensorBoard: each one once, when complete.

Actors write them, possibly in other processes. This module only reads them.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import NamedTuple

from ludus.track.atomic_files import read_bytes

_BEGIN, _END = b"\x89PNG\r\n\x1a\n", b"IEND\xaeB`\x82"
_LARGEST = 16 << 20  # bytes; screenshots are far smaller


class Picture(NamedTuple):
    data: bytes  # a PNG file
    width: int
    height: int


class Pictures:
    """Screenshots that appear in a folder from now on."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._seen = set(self._names())

    def new(self) -> list[Picture]:
        """Return new ones in the order of their numbers; skip incomplete ones until next time."""
        found = []
        for name in sorted(set(self._names()) - self._seen):
            picture = _read(self.folder / name)
            if picture is not None:
                found.append(picture)
                self._seen.add(name)
        return found

    def _names(self) -> list[str]:
        try:
            return [path.name for path in self.folder.iterdir() if path.suffix == ".png"]
        except OSError:  # no folder yet
            return []


def _read(path: Path) -> Picture | None:
    try:
        data = read_bytes(path, _LARGEST)
    except OSError:
        return None
    if len(data) < 33 or not data.startswith(_BEGIN) or not data.endswith(_END):
        return None
    width, height = struct.unpack(">II", data[16:24])
    return Picture(data, width, height)
