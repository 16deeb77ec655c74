"""Published Atari scores, what they were measured with, and scores normalised by them.

Data, not opinions: data/PROVENANCE.txt says where every number comes from.
"""

from __future__ import annotations

import csv
import functools
from importlib import resources
from typing import Literal, NamedTuple, TypeAlias

from ludus.envs.atari import names

# How a game is begun and disturbed, as far as a source says.
Kind: TypeAlias = Literal["no-op", "human starts", "sticky", "human play", "not stated"]
RANDOM, HUMAN, RECORD = "random", "human", "human world record"

# What our own protocols are among those kinds; they differ in more than that (see docs/atari.md).
_KINDS: dict[str, Kind] = {
    "saber": "sticky",
    "machado": "sticky",
    "dopamine": "sticky",
    "dqn-2015": "no-op",
    "r2d2": "no-op",
}


class Reference(NamedTuple):
    """One published score of one game."""

    agent: str
    score: float
    protocol: str  # a Kind
    source: str
    note: str = ""


class Point(NamedTuple):
    frames: int
    mean: float
    std: float  # of the sample, over seeds


class Curve(NamedTuple):
    """A published learning curve of one game: training returns, means over seeds."""

    agent: str
    points: list[Point]
    note: str


def game_of(env_id: str) -> str | None:
    """pong, of `pong`, `Pong`, `PongNoFrameskip-v4`, `ALE/Pong-v5`, `Pong-v4` ...; else None."""
    return names.game_of(env_id) or names.old_game(env_id)


def references(game: str) -> list[Reference]:
    """Every published score of a game (in any spelling): random, human and record come first."""
    row = _scores().get(game_of(game) or game, {})
    return [
        Reference(agent["agent"], row[key], agent["protocol"], agent["source"], agent["note"])
        for key, agent in _agents().items()
        if key in row
    ]


def scale_of(game: str) -> list[Reference]:
    """Random, human and record play, where a score of the game can be a share of them."""
    known = human_normalized(game, 0.0) is not None
    return [r for r in references(game) if known and r.agent in (RANDOM, HUMAN, RECORD)]


def human_normalized(game: str, score: float) -> float | None:
    """0 for random play, 1 for the human tester; None where one of them is not known.

    (score - random) / (human - random). Both were measured with no-op starts, and are used for
    scores of every protocol, as publications do.
    """
    return _normalized(game, score, "human")


def record_normalized(game: str, score: float) -> float | None:
    """0 for random play, 1 for the human world record (Toromanoff et al. 2019); else None."""
    return _normalized(game, score, "human_world_record")


def reference_curves(game: str, protocol: str | None = None) -> list[Curve]:
    """Curves of a game measured with this protocol: a Kind or one of ours; None: all there are.

    A protocol with a star gets none: it is unknown which of its rules were changed.
    """
    wanted = None if protocol is None else kind_of(protocol)
    kinds = {agent["agent"]: agent["protocol"] for agent in _agents().values()}
    found = []
    for row in _curves().get(game_of(game) or game, []):
        kind = kinds[row["agent"]]
        if protocol is not None and kind != wanted:
            continue
        points = [
            Point(int(frames) * 10**6, float(mean), float(std))
            for frames, mean, std in zip(
                *(row[name].split() for name in ("frames_millions", "mean", "std")), strict=True
            )
        ]
        rules = "protocol not stated" if kind == "not stated" else f"{kind} protocol"
        found.append(
            Curve(row["agent"], points, f"{rules}; training returns, {row['seeds']} seeds")
        )
    return found


def kind_of(protocol: str | None) -> str | None:
    """The kind of one of our protocols, or of a reference's; None if it cannot be said."""
    known = {agent["protocol"] for agent in _agents().values()}
    return protocol if protocol in known else _KINDS.get(protocol or "")


def _normalized(game: str, score: float, top: str) -> float | None:
    row = _scores().get(game_of(game) or game, {})
    if "random" not in row or top not in row:
        return None
    return (score - row["random"]) / (row[top] - row["random"])


def _table(name: str) -> list[dict[str, str]]:
    text = (resources.files("ludus.stats") / "data" / name).read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))


@functools.cache
def _agents() -> dict[str, dict[str, str]]:
    return {row["key"]: row for row in _table("atari_agents.csv")}


@functools.cache
def _scores() -> dict[str, dict[str, float]]:
    """Game -> agent's key -> score; cells without a value are not there."""
    return {
        row["game"]: {key: float(x) for key, x in row.items() if key != "game" and x}
        for row in _table("atari_scores.csv")
    }


@functools.cache
def _curves() -> dict[str, list[dict[str, str]]]:
    found: dict[str, list[dict[str, str]]] = {}
    for row in _table("atari_curves.csv"):
        found.setdefault(row["game"], []).append(row)
    return found
