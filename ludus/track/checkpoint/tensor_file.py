"""safetensors files with a digest in the header; sizes are checked before tensors are made.

The header holds the table of tensors, a description of the agent (`ludus`) and the sha256 of the
file, computed with zeros in place of the digest. format.py has the manifest of a checkpoint.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import safetensors
import safetensors.torch
from torch import Tensor

from ludus.process.limits import free_memory
from ludus.track.atomic_files import parse_json
from ludus.track.checkpoint.format import BadFileError
from ludus.units import show_bytes

ABOUT, DIGEST = "ludus", "sha256"  # in the header's metadata
FORMAT = 2  # of `ABOUT`; from 2 on a file without a digest is damaged
_HEADER_LIMIT = 16 << 20  # bytes: about 100k tensors
_SMALL = 64 << 20
_ZEROS = "0" * 64
_HEX = re.compile(r"[0-9a-f]{64}")
_BYTES = {"BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "U16": 2, "I16": 2, "F16": 2,
          "BF16": 2, "U32": 4, "I32": 4, "F32": 4, "U64": 8, "I64": 8, "F64": 8}  # fmt: skip


class Weights(NamedTuple):
    tensors: dict[str, Tensor]
    about: dict[str, Any]  # description of the agent; {} if another program wrote the file
    has_digest: bool


def dump(tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> bytes:
    """Serialize the weights of a network. The same weights give the same bytes."""
    plain = safetensors.torch.save(dict(tensors))
    size = int.from_bytes(plain[:8], "little")
    metadata = {ABOUT: json.dumps({**about, "format": FORMAT}), DIGEST: _ZEROS}
    header = {"__metadata__": metadata, **json.loads(plain[8 : 8 + size])}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # tensors begin at a multiple of 8
    body = memoryview(plain)[8 + size :]
    digest = _sha256(text, body)
    return _length(text) + text.replace(_ZEROS.encode(), digest.encode(), 1) + body


def parse(data: bytes) -> Weights:
    """Parse a file and check its digest. Raise BadFileError if any byte has changed."""
    header, end = _header(data)
    meta = header.get("__metadata__")
    meta = meta if isinstance(meta, dict) else {}
    about = _about(meta)
    digest = meta.get(DIGEST)
    if digest is not None or about.get("format", 1) != 1:
        _check_digest(data, end, digest)
    return Weights(read(data), about, digest is not None)


def read(data: bytes) -> dict[str, Tensor]:
    """Parse the tensors of a file whose bytes were checked against a manifest."""
    _header(data)
    try:
        return safetensors.torch.load(data)
    except (safetensors.SafetensorError, ValueError, KeyError, TypeError) as error:
        raise BadFileError(str(error)) from error


def check_memory(path: Path, size: int) -> None:
    """Raise if the file and a copy of its tensors do not fit the free memory."""
    free = free_memory() if size > _SMALL else 2 * _SMALL  # asking takes milliseconds
    if 2 * size > free:
        raise BadFileError(
            f"{path.name} needs {show_bytes(2 * size)} of memory, {show_bytes(free)} are free"
        )


def _header(data: bytes) -> tuple[dict[str, Any], int]:
    """Return the header of a file, with sizes checked, and the offset of its end."""
    size = int.from_bytes(data[:8], "little")
    if len(data) < 8 or size > min(_HEADER_LIMIT, len(data) - 8):
        raise BadFileError(f"its header claims {size} bytes")
    try:
        header = parse_json(data[8 : 8 + size])
        entries = [entry for name, entry in header.items() if name != "__metadata__"]
        stated = sum(_entry_bytes(entry) for entry in entries)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadFileError(f"its header cannot be read: {error}") from error
    if stated != len(data) - 8 - size:
        raise BadFileError(f"its tensors have {len(data) - 8 - size} bytes, not {stated}")
    return header, 8 + size


def _entry_bytes(entry: dict[str, Any]) -> int:
    begin, end = entry["data_offsets"]
    size = _BYTES[entry["dtype"]]
    for side in entry["shape"]:  # Python integers: no overflow
        if not isinstance(side, int) or side < 0:
            raise ValueError(f"a side of {side}")
        size *= side
    if not isinstance(begin, int) or size != end - begin or begin < 0:
        raise ValueError(f"{size} bytes from {begin} to {end}")
    return size


def _about(meta: dict[str, Any]) -> dict[str, Any]:
    try:
        about = parse_json(meta.get(ABOUT, ""))
    except (ValueError, TypeError):
        return {}
    return about if isinstance(about, dict) else {}


def _check_digest(data: bytes, end: int, digest: Any) -> None:
    header = data[8:end]
    if not isinstance(digest, str) or _HEX.fullmatch(digest) is None:
        raise BadFileError("its digest is missing")
    if header.count(digest.encode()) != 1:
        raise BadFileError("its digest stands in it more than once")
    blank = header.replace(digest.encode(), _ZEROS.encode())
    if _sha256(blank, memoryview(data)[end:]) != digest:
        raise BadFileError("its bytes do not match its digest")


def _sha256(header: bytes, body: memoryview) -> str:
    sha = hashlib.sha256(_length(header) + header)
    sha.update(body)
    return sha.hexdigest()


def _length(header: bytes) -> bytes:
    return len(header).to_bytes(8, "little")
