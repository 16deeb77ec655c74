"""Runs that differ by their seed alone, as one line of a table and one colour of a chart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ludus.reporting.reading import RunData
from ludus.stats.variants import deciding, variants

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

    @property
    def seeds(self) -> list[int]:
        return [run.seed for run in self.runs]

    @property
    def repeats(self) -> str:
        """What its runs are: seeds, unless some share one."""
        return "seeds" if len(set(self.seeds)) == len(self.runs) else "runs"


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
    return [
        Group(env, label, algo, tuple(runs[place] for place in places))
        for label, places in variants(algo, [deciding(run.config) for run in runs])
    ]


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
