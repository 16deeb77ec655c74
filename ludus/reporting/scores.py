"""Scores with intervals: of runs, of groups over seeds, and against published references."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ludus.reporting.groups import Group
from ludus.reporting.reading import Evaluation, RunData
from ludus.stats import aggregates
from ludus.stats.references import (
    HUMAN,
    RANDOM,
    RECORD,
    Reference,
    game_of,
    human_normalized,
    kind_of,
    record_normalized,
    references,
)
from ludus.stats.runs import choose
from ludus.stats.warnings import ENOUGH_EPISODES

_TRAINING = "training episodes"


@dataclass(frozen=True)
class RunScore:
    """The score a run stands for: that of its last weights, never of its best moment."""

    run: RunData
    mean: float
    std: float
    episodes: int
    step: int
    source: str  # where the number comes from
    of_best: bool = False  # of weights that were chosen by their score
    protocol: str = ""  # of the rules it was scored by, with a star where one differs
    protocol_hash: str = ""
    changed: bool = False  # by rules that were typed for this evaluation
    sampled: bool = False
    of: Evaluation | None = None  # None: training episodes

    @property
    def evaluated(self) -> bool:
        return self.source != _TRAINING

    @property
    def half(self) -> float | None:
        """Half of a normal 95 % interval of the mean over episodes; None where they are too few for
        it to be one, or all alike."""
        if self.episodes < ENOUGH_EPISODES or not self.std:
            return None
        return 1.96 * self.std / math.sqrt(self.episodes)


@dataclass(frozen=True)
class GroupScore:
    group: Group
    runs: tuple[RunScore, ...]
    mean: float
    low: float | None = None  # 95 % interval of the mean over runs; of one run nobody knows it
    high: float | None = None

    @property
    def half(self) -> float | None:
        """Of the interval over episodes, where there is but one run."""
        return self.runs[0].half if len(self.runs) == 1 else None

    @property
    def over(self) -> str:
        """What the interval is over: seeds, runs where some share a seed, episodes or nothing."""
        if self.low is None:
            return "" if self.half is None else "episodes"
        return "seeds" if len({s.run.seed for s in self.runs}) == len(self.runs) else "runs"

    @property
    def interval_of(self) -> str:
        """The interval by its name: `ludus compare` has one of another statistic."""
        how = "normal" if self.over == "episodes" else "bootstrap"
        return f"95 % interval of the mean, {how} over {self.over}"

    @property
    def sources(self) -> list[str]:
        return sorted({score.source for score in self.runs})

    @property
    def step(self) -> int:
        return max(score.step for score in self.runs)


@dataclass(frozen=True)
class GameRow:
    score: GroupScore
    of_human: float | None  # 0 is random play, 1 the human tester
    of_record: float | None  # 1 is the human world record


@dataclass(frozen=True)
class Game:
    """The scores of an Atari game, and what random, human and record play reach in it."""

    env: str
    rows: tuple[GameRow, ...]
    random: float | None
    human: float | None
    record: float | None
    published: tuple[Reference, ...]  # agents of the same kind of protocol, the best first


def run_score(run: RunData) -> RunScore | None:
    """The number that `ludus compare` takes, with what a report tells of it."""
    return choose(
        [_from(run, e, "evaluation during training") for e in run.during[-1:]],
        [_by_hand(run, e) for e in run.after],
        _training(run),
        run.saved.newest,
        run.protocol_hash,
    )


def _training(run: RunData) -> RunScore | None:
    if not run.windows:
        return None
    w, rules = run.windows[-1], (run.protocol, run.protocol_hash)
    return RunScore(run, w.mean, w.std, w.episodes, w.step, _TRAINING, False, *rules)


def best_score(run: RunData) -> Evaluation | None:
    """An evaluation of the weights that training called best, if there is one."""
    found = [e for e in run.after if run.saved.flatters(e.step, e.checkpoint) and not e.changed]
    return max(found, key=lambda e: e.step, default=None)


def _by_hand(run: RunData, e: Evaluation) -> RunScore:
    if run.saved.flatters(e.step, e.checkpoint):
        return _from(run, e, "ludus eval of the best checkpoint", of_best=True)
    # The label tells what the protocol does not, such as an epsilon.
    return _from(run, e, f"ludus eval ({e.label or e.protocol or 'greedy'})")


def _from(run: RunData, e: Evaluation, source: str, *, of_best: bool = False) -> RunScore:
    rules = (e.protocol, e.protocol_hash) if e.protocol else (run.protocol, run.protocol_hash)
    return RunScore(
        run, e.mean, e.std, e.episodes, e.step, source, of_best, *rules, e.changed, e.sampled, e
    )


def group_scores(groups: Sequence[Group]) -> list[GroupScore]:
    """Those that have any score yet, in order."""
    found = []
    for group in groups:
        scores = tuple(s for s in map(run_score, group.runs) if s is not None)
        if scores:
            found.append(_group_score(group, scores))
    return found


def _group_score(group: Group, scores: tuple[RunScore, ...]) -> GroupScore:
    means = [s.mean for s in scores]
    mean = math.fsum(means) / len(means)
    if len(means) < 2:
        return GroupScore(group, scores, mean)
    return GroupScore(group, scores, mean, *aggregates.stratified_bootstrap(means, aggregates.mean))


def games(scores: Sequence[GroupScore], published: int = 4) -> list[Game]:
    """Every Atari game among the environments. Published agents only of the same protocol."""
    found = []
    for env in sorted({s.group.env for s in scores}):
        game, rows = game_of(env), [s for s in scores if s.group.env == env]
        if game is None:
            continue
        known = {r.agent: r.score for r in references(game)}
        kinds = {kind_of(run.protocol) for s in rows for run in s.runs}
        others = [
            r
            for r in references(game)
            if r.agent not in (RANDOM, HUMAN, RECORD) and kinds == {r.protocol}
        ]
        found.append(
            Game(
                env,
                tuple(
                    GameRow(s, human_normalized(game, s.mean), record_normalized(game, s.mean))
                    for s in sorted(rows, key=lambda s: -s.mean)
                ),
                known.get(RANDOM),
                known.get(HUMAN),
                known.get(RECORD),
                tuple(sorted(others, key=lambda r: -r.score)[:published]),
            )
        )
    return found
