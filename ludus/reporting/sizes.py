"""How much of everything a page holds, so that it stays under 1.5 MB without videos.

Bytes were counted on pages of numbers with all their digits; a test makes the largest ones.
"""

from __future__ import annotations

from dataclasses import dataclass

DETAILS = 24  # runs up to which each has its own charts; beyond, its own report has them
_ROOM = 1_080_000  # bytes for curves, and for what runs and groups add besides:
_RUN, _GROUP = 550, 500  # in tables, in legends and frames
_OWN, _OWN_POINT = 550_000, 2 * 16 * 30  # for details; half of it for sixteen charts a run
# Bytes of one point, in the drawing and in the data: of a seed, of one without facts, of a mean.
_SEED, _BARE, _MEAN = 65, 25, 95
_FULL = 40  # points that a seed must have before it tells more than its mean
_LEAST = 8


@dataclass(frozen=True)
class Sizes:
    """Points of a curve, and lines of a list."""

    seed: int = 240
    mean: int = 240  # of a group, or of a run that is alone in its own
    facts: bool = True  # whether seeds tell more than their mean, and have lines of evaluations
    small: int = 120  # of the charts of one run
    marks: int = 150  # of its timeline
    events: int = 40  # below the timeline


def sizes(runs: int, groups: int, views: int) -> Sizes:
    """`views`: charts of one environment, of training and of evaluations."""
    besides = _RUN * runs + _GROUP * groups * views + (_OWN if runs <= DETAILS else 0)
    room = max(0, _ROOM - besides)
    seed = _share(room // 2, _SEED, runs * views, 240)
    facts = seed >= _FULL
    return Sizes(
        seed if facts else _share(room // 2, _BARE, runs, 240),
        _share(room // 2, _MEAN, groups * views, 240),
        facts,
        _share(_OWN, _OWN_POINT, runs, 120),
        _share(_OWN // 8, 100, runs, 150),
        _share(_OWN // 8, 200, runs, 40),
    )


def _share(total: int, each: int, parts: int, most: int) -> int:
    return max(_LEAST, min(most, total // each // max(1, parts)))
