"""Published Atari scores, what they were measured with, and scores normalised by them.

Data, not opinions: data/PROVENANCE.txt says where every number comes from.
"""

from __future__ import annotations

import csv
import functools
from collections.abc import Iterable, Sequence
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
    found = []
    for row in _curves().get(game_of(game) or game, []):
        kind = _protocol_of(row["agent"])
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


Rules: TypeAlias = tuple[str, str | None, str | None]  # whose; their label; their hash


def protocol_warnings(rows: Iterable[Rules]) -> list[str]:
    """Warnings about scores that are compared. A row: the name of a run or an agent, the label and
    the hash of its rules (None: it has none). Names may repeat: two benches can use the same."""
    known = list(rows)
    by_label = names_by_label((name, label) for name, label, _ in known)
    found = []
    if len(by_label) > 1:
        mixed = "; ".join(f"{label} ({listed(who)})" for label, who in by_label.items())
        found.append(f"protocols are mixed, and their scores do not compare: {mixed}")
    for label, who in by_label.items():
        rules = names_by_label((name, digest) for name, its, digest in known if its == label)
        if len(rules) > 1:
            kinds = "; ".join(f"{digest} ({listed(them)})" for digest, them in rules.items())
            found.append(f"{label} stands for different rules here: {kinds}")
        if label.endswith("*"):
            found.append(
                f"{label} is {label.rstrip('*')} with rules changed ({listed(who)}): "
                "compares with nothing but the same hash"
            )
    return found


def reference_warnings(protocol: str | None, shown: Iterable[Reference]) -> list[str]:
    """Warnings about references shown with a run of `protocol`, or used to normalize its scores. A
    record has no protocol, and its name says so."""
    if protocol is None:
        return []
    known, found = list(shown), []
    agents = _otherwise(protocol, (r for r in known if r.agent not in (RANDOM, HUMAN, RECORD)))
    if agents:
        found.append(
            f"references that were not measured as {protocol} do not compare with it: {agents}"
        )
    scale = _otherwise(protocol, (r for r in known if r.agent in (RANDOM, HUMAN)))
    if scale:
        found.append(
            f"scores of {protocol} are normalised by play that was measured otherwise: {scale}"
        )
    return found


def _otherwise(protocol: str, shown: Iterable[Reference]) -> str:
    """The kinds that are not this protocol's, each with its agents."""
    kinds = names_by_label((r.agent, r.protocol) for r in shown)
    odd = [f"{kind} ({listed(who)})" for kind, who in kinds.items() if kind != kind_of(protocol)]
    return "; ".join(odd)


def listed(who: Sequence[str], most: int = 3) -> str:
    """The first names of a list, and the number of others."""
    more = f" and {len(who) - most} more" if len(who) > most else ""
    return ", ".join(who[:most]) + more


def names_by_label(rows: Iterable[tuple[str, str | None]]) -> dict[str, list[str]]:
    """Label -> the names that have it, each once."""
    groups: dict[str, dict[str, None]] = {}
    for name, label in rows:
        if label:
            groups.setdefault(label, {})[name] = None
    return {label: list(names) for label, names in groups.items()}


def _normalized(game: str, score: float, top: str) -> float | None:
    row = _scores().get(game_of(game) or game, {})
    if "random" not in row or top not in row:
        return None
    return (score - row["random"]) / (row[top] - row["random"])


def _protocol_of(agent: str) -> str:
    return next(row["protocol"] for row in _agents().values() if row["agent"] == agent)


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
