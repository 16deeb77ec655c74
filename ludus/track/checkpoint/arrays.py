"""Numpy arrays as .npy.zst files: npy compressed with zstandard, without pickle.

The reader allocates exactly the bytes that the manifest states, whatever the file claims.
"""

from __future__ import annotations

import hashlib
import io
import math
from collections.abc import Iterator
from pathlib import Path
from tokenize import TokenError
from typing import Any, BinaryIO

import numpy as np
import zstandard

from ludus.process.limits import free_memory
from ludus.track.atomic_files import open_read
from ludus.track.checkpoint.format import BadFileError, Stored

_CHUNK = 8 << 20
_THREADED = 4 << 20  # bytes from which a second compression thread is worth it
_FREE_SIZE, _RATIO = 256 << 20, 1000  # above the first, a higher ratio counts as a bomb
_HEADER = 4096


class _Hashing:
    """A file that hashes the bytes written to it."""

    def __init__(self, file: BinaryIO) -> None:
        self.file, self.sha, self.size = file, hashlib.sha256(), 0

    def write(self, data: bytes | memoryview) -> int:
        self.sha.update(data)
        self.size += len(data)
        return self.file.write(data)


def write_array(folder: Path, stem: str, array: np.ndarray) -> tuple[str, Stored]:
    """Write `array` as folder/stem.npy.zst and return the file's name and record."""
    if array.dtype.hasobject:
        raise TypeError(f"{stem}: arrays of Python objects are not saved")
    name = f"{stem}.npy.zst"
    stored = _write(folder / name, array, compress=True)
    if _suspicious(stored):  # the reader would reject it
        (folder / name).unlink()
        name = f"{stem}.npy"
        stored = _write(folder / name, array, compress=False)
    return name, stored


def read_array(path: Path, stored: Stored) -> np.ndarray:
    """Read the array in `path` and check its size. The caller has checked the hash."""
    if _suspicious(stored) and path.suffix == ".zst":
        raise BadFileError(f"{stored.bytes} bytes claim to hold {stored.raw_bytes}")
    if stored.raw_bytes > _FREE_SIZE and stored.raw_bytes > free_memory():
        raise BadFileError(f"{stored.raw_bytes} bytes do not fit the free memory")
    with open_read(path) as file:
        if path.suffix != ".zst":
            return _parse(file, stored.raw_bytes)
        decompressor = zstandard.ZstdDecompressor(max_window_size=1 << 27)
        try:
            with decompressor.stream_reader(file) as stream:
                return _parse(stream, stored.raw_bytes)
        except zstandard.ZstdError as error:
            raise BadFileError(str(error)) from error


def _suspicious(stored: Stored) -> bool:
    return stored.raw_bytes > _FREE_SIZE and stored.raw_bytes > _RATIO * stored.bytes


def _write(path: Path, array: np.ndarray, *, compress: bool) -> Stored:
    with open(path, "wb") as file:
        hashing = _Hashing(file)
        if compress:
            threads = 2 if array.nbytes >= _THREADED else 0
            compressor = zstandard.ZstdCompressor(level=1, threads=threads)
            with compressor.stream_writer(hashing, closefd=False) as stream:  # type: ignore[arg-type]
                for part in _parts(array):
                    stream.write(part)
        else:
            for part in _parts(array):
                hashing.write(part)
    return Stored(hashing.sha.hexdigest(), hashing.size, array.nbytes)


def _parts(array: np.ndarray) -> Iterator[bytes | memoryview]:
    """Yield an npy file in pieces, without a second copy of the whole array."""
    header = io.BytesIO()
    fields = {"descr": np.lib.format.dtype_to_descr(array.dtype), "fortran_order": False}
    np.lib.format.write_array_header_1_0(header, {**fields, "shape": array.shape})
    yield header.getvalue()
    if array.size == 0:
        return
    if array.flags.c_contiguous:
        flat = array.reshape(-1).view(np.uint8).data
        for begin in range(0, len(flat), _CHUNK):
            yield flat[begin : begin + _CHUNK]
        return
    rows = max(1, _CHUNK * len(array) // array.nbytes)
    for begin in range(0, len(array), rows):
        yield np.ascontiguousarray(array[begin : begin + rows]).tobytes()


def _parse(stream: Any, raw_bytes: int) -> np.ndarray:
    """Read one npy version 1 file of exactly `raw_bytes` of data."""
    head = stream.read(10)
    length = int.from_bytes(head[8:10], "little")
    if head[:8] != b"\x93NUMPY\x01\x00" or length > _HEADER:
        raise BadFileError("not an npy file")
    try:
        whole = io.BytesIO(head[8:] + stream.read(length))
        shape, fortran, dtype = np.lib.format.read_array_header_1_0(whole, max_header_size=_HEADER)
    except (ValueError, TypeError, LookupError, SyntaxError, RecursionError, TokenError) as error:
        raise BadFileError(f"not an npy file: {error}") from error
    if dtype.hasobject or fortran or min(shape, default=0) < 0:
        raise BadFileError("holds Python objects or has a foreign layout")
    size = math.prod(shape, start=dtype.itemsize)  # Python integers: no overflow
    if size != raw_bytes:
        raise BadFileError(f"holds {size} bytes where {raw_bytes} were stated")
    array = np.empty(shape, dtype)
    if size:
        view = array.reshape(-1).view(np.uint8).data
        while view:
            count = stream.readinto(view[:_CHUNK])
            if not count:
                raise BadFileError("ends too early")
            view = view[count:]
    if stream.read(1):
        raise BadFileError("goes on after its end")
    return array
