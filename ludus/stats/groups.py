"""Runs that share every setting that influences results are seeds of one experiment: a group.

Comparisons and reports show one row per group.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ludus.envs import EXECUTION_SETTINGS
from ludus.stats import aggregates
from ludus.stats.runs import Run, describe_sources

ENOUGH_EPISODES = 10  # for an interval over episodes
# Settings that may differ between seeds of one experiment: names, places, what is written or
# evaluated, and how the machine is used. A new setting separates groups until it is named here.
IGNORED = frozenset(
    (
        "algo.name", "env.id",  # runs are split by them first
        *(f"env.{name}" for name in EXECUTION_SETTINGS),
        "run.seed", "run.imports", "run.device", "run.threads", "run.capture", "run.compile",
        "run.replay_on", "run.checkpoint_every", "run.checkpoint_time", "run.keep",
        "run.exact", "run.save_replay", "run.time", "run.nan_limit",
        "actor.device", "actor.hang_seconds", "actor.restarts", "actor.restart_minutes",
        "eval.every", "eval.episodes", "eval.live", "eval.device", "eval.best_window",
        "log",
    )
)  # fmt: skip
_LABEL_SETTINGS = 3  # settings in a label
_VALUE_LENGTH = 32  # characters of a value


@dataclass(frozen=True)
class Group:
    """Runs of one environment and one algorithm with equal settings."""

    env: str
    label: str  # the algorithm, with the settings that distinguish it from other groups
    algo: str
    runs: tuple[Run, ...]  # by seed

    @property
    def seeds(self) -> list[int | None]:
        return [run.seed for run in self.runs]

    @property
    def repeats(self) -> str:
        """The word for its runs: seeds, unless some share a seed."""
        return "seeds" if len(set(self.seeds)) == len(self.runs) else "runs"

    @cached_property
    def scored(self) -> tuple[Run, ...]:
        return tuple(run for run in self.runs if run.score is not None)

    @property
    def scores(self) -> list[float]:
        return [run.score.mean for run in self.runs if run.score is not None]

    @cached_property
    def mean(self) -> float:
        return math.fsum(self.scores) / len(self.scores)

    @cached_property
    def interval(self) -> tuple[float, float] | None:
        """The 95 % interval of the mean over runs; None below two runs."""
        if len(self.scores) < 2:
            return None
        return aggregates.stratified_bootstrap(self.scores, aggregates.mean)

    @property
    def half_width(self) -> float | None:
        """Half of the normal 95 % interval over the episodes of a single run; None if there are
        too few episodes for it, or all are alike."""
        score = self.scored[0].score if len(self.scored) == 1 else None
        if score is None or score.episodes < ENOUGH_EPISODES or not score.std:
            return None
        return 1.96 * score.std / math.sqrt(score.episodes)

    @property
    def interval_over(self) -> str:
        """What the interval is over: seeds, runs if some share a seed, episodes or nothing."""
        if self.interval is None:
            return "" if self.half_width is None else "episodes"
        return "seeds" if len({run.seed for run in self.scored}) == len(self.scored) else "runs"

    @property
    def interval_name(self) -> str:
        """`ludus compare` has an interval of another statistic."""
        how = "normal" if self.interval_over == "episodes" else "bootstrap"
        return f"95 % interval of the mean, {how} over {self.interval_over}"

    @property
    def sources(self) -> list[str]:
        return sorted({run.score.source for run in self.runs if run.score})

    @property
    def described_sources(self) -> str:
        """The scores are means of: `eval greedy, 100 episodes`."""
        return describe_sources((r.score.source, r.score.episodes) for r in self.runs if r.score)

    @property
    def step(self) -> int:
        return max(run.score.step for run in self.runs if run.score)


def group_runs(runs: Sequence[Run]) -> list[Group]:
    """By environment, then by algorithm, then by settings."""
    by_algo: dict[tuple[str, str], list[Run]] = {}
    for run in sorted(runs, key=lambda run: (run.seed if run.seed is not None else -1, run.name)):
        by_algo.setdefault((run.env, run.algo), []).append(run)
    return [
        Group(env, label, algo, tuple(members[i] for i in indices))
        for (env, algo), members in sorted(by_algo.items())
        for label, indices in variants(algo, [result_settings(run.config) for run in members])
    ]


def flat(tree: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted keys and values of a tree of tables; nothing if it is no table."""
    for name, value in tree.items() if isinstance(tree, dict) else ():
        if isinstance(value, dict) and value:
            yield from flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def result_settings(tree: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a run, by dotted key, that influence its results."""
    parts = {name: part for name, part in tree.items() if name not in IGNORED}
    return {key: value for key, value in flat(parts) if key not in IGNORED}


def variants(algo: str, tables: Sequence[Mapping[str, Any]]) -> list[tuple[str, list[int]]]:
    """The indices of equal tables, and a unique label that says how they differ from others."""
    keys = dict.fromkeys(key for table in tables for key in table)  # in the order of the files
    differing = [key for key in keys if len({_value(table, key) for table in tables} - {None}) > 1]
    indices: dict[tuple[str | None, ...], list[int]] = {}
    for index, table in enumerate(tables):
        indices.setdefault(tuple(_value(table, key) for key in differing), []).append(index)
    labels = [_label(algo, differing, tables[found[0]]) for found in indices.values()]
    return [
        (label if labels.count(label) == 1 else f"{label} #{number}", found)
        for number, (label, found) in enumerate(zip(labels, indices.values(), strict=True), 1)
    ]


def _value(table: Mapping[str, Any], key: str) -> str | None:
    """None if the file does not know the setting: it did not exist when the run began, so it does
    not separate runs. Where `env.normalize` is null, `env.normalize.obs` is known to be off."""
    if key in table:
        return repr(table[key])
    parts = key.split(".")
    above = any(".".join(parts[:length]) in table for length in range(1, len(parts)))
    below = any(other.startswith(f"{key}.") for other in table)
    return "another kind" if above or below else None


def _label(algo: str, differing: Sequence[str], table: Mapping[str, Any]) -> str:
    shown = [f"{_name(key)}={_word(table.get(key))}" for key in differing[:_LABEL_SETTINGS]]
    rest = len(differing) - _LABEL_SETTINGS
    return " ".join([algo, *shown, *([f"(+{rest})"] if rest > 0 else [])])


def _name(key: str) -> str:
    """Without the section if it is a common one."""
    section, _, rest = key.partition(".")
    return rest if section in ("algo", "env", "run") and rest else key


def _word(value: Any) -> str:
    text = "null" if value is None else str(value).replace(" ", "")
    text = text.replace("e-0", "e-") if isinstance(value, float) else text  # as people type it
    return text if len(text) <= _VALUE_LENGTH else f"{text[: _VALUE_LENGTH - 1]}…"
