"""Pictures of last states (RUN/screenshots), for the board: each once, when it is whole.

Actors write them, also from other processes; here they are only read.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import NamedTuple

from ludus.track.atomic_files import read_bytes

_BEGIN, _END = b"\x89PNG\r\n\x1a\n", b"IEND\xaeB`\x82"
_LARGEST = 16 << 20  # bytes; what a camera writes is far smaller


class Picture(NamedTuple):
    data: bytes  # a PNG file
    width: int
    height: int


class Pictures:
    """Those that come into a folder from now on."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._seen = set(self._names())

    def new(self) -> list[Picture]:
        """In the order of their numbers. One that is not whole yet is left for the next time."""
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
        except OSError:  # there is none yet
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
