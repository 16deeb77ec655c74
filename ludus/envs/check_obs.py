"""The range of observations as the network sees them, for `ludus check`."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

from ludus.envs.spec import EXACT, Leaf, ObsCodec, explain_rounding

Array: TypeAlias = np.ndarray[Any, Any]
Level: TypeAlias = Literal["error", "warning", "ok"]
TINY = 0.1  # warn below this share of the declared range


class Finding(NamedTuple):
    level: Level
    text: str
    fix: str = ""


class ObsRanges:
    """The smallest and largest input of the network, by leaf."""

    def __init__(self, codec: ObsCodec, *, normalized: bool) -> None:
        self._leaves, self._normalized = codec.leaves, normalized
        self._low = [np.inf] * len(self._leaves)
        self._high = [-np.inf] * len(self._leaves)

    def add(self, buffers: list[Array]) -> None:
        for i, (leaf, buffer) in enumerate(zip(self._leaves, buffers, strict=True)):
            if buffer.size == 0:
                continue
            low, high = (_seen(leaf, float(value)) for value in (buffer.min(), buffer.max()))
            self._low[i], self._high[i] = min(self._low[i], low), max(self._high[i], high)

    def findings(self) -> list[Finding]:
        found: list[Finding] = []
        for leaf, low, high in zip(self._leaves, self._low, self._high, strict=True):
            if low <= high:
                found += self._of(leaf, low, high)
        return found

    def _of(self, leaf: Leaf, low: float, high: float) -> list[Finding]:
        range_, text = _range(leaf), f"{leaf.path}: the network sees {low:.3g} to {high:.3g}"
        text += f" ({range_})" if range_ else ""
        if self._normalized:
            done = f"{text}, then normalised by running statistics"
            return [Finding("ok", done), *_rounded(leaf)]
        largest = max(abs(low), abs(high))
        if range_ and leaf.kind == "box" and leaf.given_dtype.kind in "iu" and high - low < TINY:
            text += ": the values use little of the range that observation_space declares"
            fix = (
                "env.normalize.obs=true, env.integer_scale=none, or declare the true low and high "
                "(in a wrapper if the environment is not yours)"
            )
            return [Finding("warning", text, fix), *_rounded(leaf)]
        if leaf.scaling is None and leaf.given_dtype.kind in "iu" and largest > EXACT:
            text += f": float32 holds integers exactly up to {EXACT} only"
            fix = "env.integer_scale=bounds, or split them in a wrapper"
            return [Finding("warning", text, fix)]
        return [Finding("ok", text), *_rounded(leaf)]


def _seen(leaf: Leaf, value: float) -> float:
    if leaf.spec.dtype != "uint8":
        return value
    low, high = leaf.spec.scale
    return (value - low) / (high - low)


def _range(leaf: Leaf) -> str:
    """Which values the network sees as 0 and 1; empty if unscaled."""
    if leaf.kind != "box":
        return "one-hot"
    if leaf.spec.dtype == "uint8":
        low, high = leaf.spec.scale
    elif leaf.scaling is None or not leaf.scaling.bounded:
        return ""
    else:
        ends = leaf.scaling.low, leaf.scaling.low + leaf.scaling.span
        if any(np.ptp(end) for end in ends):
            return f"low to high of {leaf.given_dtype} as 0 to 1, each by its own bounds"
        low, high = (float(end.flat[0]) for end in ends)
    return f"{low:.15g} to {high:.15g} of {leaf.given_dtype} as 0 to 1"


def _rounded(leaf: Leaf) -> list[Finding]:
    return [Finding("warning", *explain_rounding(leaf.path))] if leaf.spec.rounded else []
