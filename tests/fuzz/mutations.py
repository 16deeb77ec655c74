"""What may have happened to a file: damage, wrong types, depth, size, links and pipes."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

Mutation = Callable[[Path, bytes], None]  # (the file, what it held): write another

TOKENS = (
    "", "x" * 5000, "\x1b[2J\x1b]0;owned\x07", "\u202eevil", "\x00", "\ud800",
    "../../../etc/passwd", "/dev/zero", "this", "subprocess:Popen", "antigravity:fly",
    "!!python/object/apply:os.system",
    "-1", "1e999", "nan", "NaN", "Infinity", "9" * 400, "9" * 5000, "0x" + "f" * 400, "²", "1_0",
    "2001-99-99", "[" * 3000, "{" * 3000, "&a [*a]", "null", "true", "~", "=1+1", '"', "'", ",",
    "\n",
)  # fmt: skip
_DEEP: Any = 0
for _ in range(100):
    _DEEP = [_DEEP]
VALUES = (
    None, True, False, -1, 0, 1, 2**31, 2**63, 10**39, 10**399, -(10**30), 1e-320, 1e308, 0.5,
    float("nan"), float("inf"), [], {}, [[]], [None], {"": {}}, {"a": {"b": [1, "x"]}}, _DEEP,
    [0] * 1000, *TOKENS[:20],
)  # fmt: skip
_LINKS = {"dangling": "nowhere", "itself": "", "device": "/dev/zero"}
_KINDS = ("gone", "link", "dangling", "device", "pipe", "folder", "itself")


def _write(path: Path, data: bytes) -> None:
    clear(path)
    path.write_bytes(data)


def outside_of(path: Path) -> Path:
    """Where a link leads that a stranger has put in place of the file: beside the bench."""
    (bench,) = (p for p in path.parents if p.name == "bench")
    return bench.parent / "outside"


def clear(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _damage(ops: list[tuple[int, float, bytes]]) -> Mutation:
    def apply(path: Path, before: bytes) -> None:
        data = bytearray(before)
        for kind, place, new in ops:
            at = int(place * max(0, len(data) - 1))
            if kind == 0 and data:  # flip
                data[at] ^= 1 << (len(new) % 8)
            elif kind == 1:
                del data[at:]
            elif kind == 2:
                data[at:at] = new
            elif kind == 3:
                data[at : at + len(new)] = new
            elif kind == 4:
                del data[at : at + len(new)]
            else:
                data += data[at:] * 2
        _write(path, bytes(data))

    return apply


def _replaced(kind: str) -> Mutation:
    def apply(path: Path, before: bytes) -> None:
        clear(path)
        if kind == "link":
            outside_of(path).write_bytes(before)
            path.symlink_to(outside_of(path))
        elif kind in _LINKS:
            path.symlink_to(
                {"dangling": "nowhere", "itself": path.name, "device": "/dev/zero"}[kind]
            )
        elif kind == "pipe":
            os.mkfifo(path)
        elif kind == "folder":
            path.mkdir()

    return apply


def _sized(size: int) -> Mutation:
    """As long as that, and almost nothing on the disk."""

    def apply(path: Path, before: bytes) -> None:
        _write(path, before)
        os.truncate(path, size)

    return apply


def _grown(size: int) -> Mutation:
    """As valid as before, with a list as long as that which takes much more memory."""

    def apply(path: Path, before: bytes) -> None:
        more = b'"more": [' + b"[]," * (size // 3) + b"0]"
        head = before.rstrip().removesuffix(b"}").rstrip()
        _write(path, head + (b", " if head.rstrip(b"{") else b"{") + more + b"}")

    return apply


def _text(place: float, token: str) -> Mutation:
    """One word of a text becomes another."""

    def apply(path: Path, before: bytes) -> None:
        words = [m.span() for m in re.finditer(rb"[^\s,:\"{}\[\]]+", before)]
        begin, end = words[int(place * (len(words) - 1))] if words else (0, 0)
        new = token.encode("utf-8", "surrogatepass")
        _write(path, before[:begin] + new + before[end:])

    return apply


def _json(place: float, value: Any, drop: bool) -> Mutation:
    """One value of a JSON file, or of one line of it, becomes another or goes."""

    def apply(path: Path, before: bytes) -> None:
        lines = before.split(b"\n") if path.suffix == ".jsonl" else [before]
        at = int(place * 7919) % len(lines)
        lines[at] = changed(lines[at], place, value, drop)
        _write(path, b"\n".join(lines))

    return apply


def changed(text: bytes, place: float, value: Any, drop: bool = False) -> bytes:
    try:
        tree = json.loads(text)
    except ValueError:
        return json.dumps(value).encode()
    spots = list(_spots(tree))
    if not spots:
        return json.dumps(value).encode()
    holder, key = spots[int(place * (len(spots) - 1))]
    if drop:
        del holder[key]
    else:
        holder[key] = value
    return json.dumps(tree).encode()


def _spots(tree: Any) -> Any:
    items = tree.items() if isinstance(tree, dict) else enumerate(tree)
    for key, value in list(items):
        yield tree, key
        if isinstance(value, dict | list) and value:
            yield from _spots(value)


def _header(place: float, value: Any, drop: bool) -> Mutation:
    """One value of the table at the head of a safetensors file becomes another."""

    def apply(path: Path, before: bytes) -> None:
        size = int.from_bytes(before[:8], "little")
        text = changed(before[8 : 8 + size], place, value, drop)
        _write(path, len(text).to_bytes(8, "little") + text + before[8 + size :])

    return apply


PLACES = st.floats(0, 1, allow_nan=False)
DAMAGE = st.lists(
    st.tuples(st.integers(0, 5), PLACES, st.binary(max_size=20)), min_size=1, max_size=4
).map(_damage)
REPLACED = st.sampled_from(_KINDS).map(_replaced)
SIZED = st.sampled_from([0, 1, 7, 5 << 30]).map(_sized)
GROWN = st.sampled_from([500_000, 32 << 20]).map(_grown)
TEXT = st.builds(_text, PLACES, st.sampled_from(TOKENS))
WHOLE = st.sampled_from(TOKENS).map(
    lambda token: lambda path, _: _write(path, token.encode("utf-8", "surrogatepass"))
)
JSON = st.builds(_json, PLACES, st.sampled_from(VALUES), st.booleans())
HEADER = st.builds(_header, PLACES, st.sampled_from(VALUES), st.booleans())

ANY = DAMAGE | REPLACED | SIZED | WHOLE
OF_TEXT = TEXT | ANY
OF_JSON = JSON | JSON | TEXT | ANY
# Rarely: large files take their time.
OF_SMALL_JSON = st.integers(0, 49).flatmap(lambda n: OF_JSON if n else GROWN)
OF_TENSORS = HEADER | HEADER | ANY
