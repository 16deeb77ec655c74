"""Runs that differ by their seed alone, as one line of a table and one colour of a chart."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ludus.report.reading import RunData

# How an environment is driven, not what is played: it sets no two runs apart.
_DRIVING = ("env.workers", "env.groups", "env.threads", "env.timeout", "env.render", "env.native")
COLOURS = 8  # of the style sheet; more algorithms begin again, with another dash
# Names people meet most keep their colour from one report to the next.
_USUAL = {"ppo": 0, "dqn": 1, "rainbow-iqn": 2, "rainbow": 3, "c51": 4, "impala": 5, "a3c": 7}


@dataclass(frozen=True)
class Group:
    """Runs of one environment and one algorithm with equal settings."""

    env: str
    label: str  # the algorithm, with what sets it apart where it is there twice
    algo: str
    runs: tuple[RunData, ...]  # by seed
    differing: tuple[str, ...] = ()  # settings that are not equal in all of them

    @property
    def seeds(self) -> list[int]:
        return [run.seed for run in self.runs]


def flat(tree: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted keys of a tree of tables."""
    for key, value in tree.items():
        if isinstance(value, dict) and value:
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def group_runs(runs: Sequence[RunData]) -> list[Group]:
    """By environment, then by algorithm, then by settings, in this order."""
    places: dict[tuple[str, str], list[RunData]] = {}
    for run in runs:
        places.setdefault((run.env, run.algo), []).append(run)
    found = []
    for (env, algo), members in sorted(places.items()):
        found += _split(env, algo, sorted(members, key=lambda r: (r.seed, r.name)))
    return found


def _split(env: str, algo: str, runs: list[RunData]) -> list[Group]:
    settings = [_deciding(run) for run in runs]
    keys = sorted({key for table in settings for key in table})
    varying = [k for k in keys if len({repr(table.get(k)) for table in settings}) > 1]
    variants: dict[str, list[int]] = {}
    for i, table in enumerate(settings):
        variants.setdefault(repr([table.get(k) for k in varying]), []).append(i)
    # Each seed with settings of its own: they were drawn by it, or one experiment was changed.
    alone = all(len(v) == 1 for v in variants.values())
    if len(variants) == 1 or (alone and len({run.seed for run in runs}) == len(runs)):
        lengths = ["run.steps"] if len({run.steps for run in runs}) > 1 else []
        return [Group(env, algo, algo, tuple(runs), (*varying, *lengths))]
    return [
        Group(env, _label(algo, settings[at[0]], varying), algo, tuple(runs[i] for i in at))
        for at in variants.values()
    ]


def _deciding(run: RunData) -> dict[str, Any]:
    """What an algorithm and its environment are; the rest says how long and where."""
    known = {part: run.config.get(part) for part in ("algo", "env")}
    return {k: v for k, v in flat(known) if k not in _DRIVING}


def _label(algo: str, table: dict[str, Any], varying: list[str]) -> str:
    words = [f"{key.rpartition('.')[2]}={table.get(key)}" for key in varying[:3]]
    more = f" (+{len(varying) - 3})" if len(varying) > 3 else ""
    return f"{algo} {' '.join(words)}{more}"


def colours(groups: Sequence[Group]) -> dict[str, int]:
    """Label -> number of its colour: the usual one of its algorithm, or the next free."""
    found: dict[str, int] = {}
    labels = sorted({(g.label != g.algo, g.algo not in _USUAL, g.label, g.algo) for g in groups})
    for _, _, label, algo in labels:
        taken = set(found.values())
        usual = _USUAL.get(algo)
        free = [i for i in range(10_000) if i not in taken]
        found[label] = usual if usual is not None and usual not in taken else free[0]
    return found
