"""Resizes emulator screens without an image library.

`area` averages the pixels that each new pixel covers, as the native emulator does; `linear` and
`nearest` follow the conventions of OpenCV (pixel centres at one half).
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import numpy as np

Array: TypeAlias = np.ndarray[Any, Any]
Mode: TypeAlias = Literal["area", "linear", "nearest"]


def _weights(old: int, new: int, mode: Mode) -> Array:
    """Row i holds the share of each old pixel in new pixel i: [new, old], rows sum to 1."""
    scale = 1 / (new / old)  # rounded as OpenCV rounds it, which decides some nearest pixels
    weights = np.zeros((new, old))
    for i in range(new):
        if mode == "nearest":
            weights[i, min(int(i * scale), old - 1)] = 1.0
        elif mode == "linear":
            at = min(max((i + 0.5) * scale - 0.5, 0.0), old - 1.0)
            below = min(int(at), old - 2)
            weights[i, below], weights[i, below + 1] = 1 - (at - below), at - below
        else:
            start, end = i * scale, (i + 1) * scale
            pixels = np.arange(old)
            weights[i] = np.clip(np.minimum(pixels + 1, end) - np.maximum(pixels, start), 0, None)
            weights[i] /= scale
    return weights


class _Axis:
    """One pass along one axis: each new pixel is a weighted sum of a few neighbours."""

    def __init__(self, old: int, new: int, mode: Mode) -> None:
        weights = _weights(old, new, mode)
        parts = [np.flatnonzero(row > 1e-6) for row in weights]
        most = max(len(part) for part in parts)
        self._taps: list[tuple[Array, Array]] = []
        for k in range(most):
            pixels = np.array([part[min(k, len(part) - 1)] for part in parts])
            has = np.array([k < len(part) for part in parts])
            shares = np.where(has, weights[np.arange(new), pixels], 0.0).astype(np.float32)
            self._taps.append((pixels, shares))

    def __call__(self, lines: Array) -> Array:
        """[old, M] -> [new, M] in float32. Adds one neighbour after the other, as OpenCV
        does: a matrix product would round one pixel in ten thousand differently."""
        total: Array = np.zeros((len(self._taps[0][0]), lines.shape[1]), np.float32)
        for pixels, shares in self._taps:
            total += lines[pixels] * shares[:, None]
        return total


class Resizer:
    """From one screen size to a square, [H, W] or [H, W, C], uint8 to uint8."""

    def __init__(self, height: int, width: int, size: int, mode: Mode) -> None:
        self._rows, self._columns = _Axis(height, size, mode), _Axis(width, size, mode)

    def __call__(self, screen: Array) -> Array:
        if screen.ndim == 2:
            return self._one(screen)
        return np.stack([self._one(screen[..., c]) for c in range(screen.shape[2])], -1)

    def _one(self, plane: Array) -> Array:
        narrow = self._columns(np.ascontiguousarray(plane.T, np.float32))
        small = self._rows(np.ascontiguousarray(narrow.T))
        rounded: Array = np.rint(small).astype(np.uint8)  # halves round to even, as in OpenCV
        return rounded
