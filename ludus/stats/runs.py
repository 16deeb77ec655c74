"""A run as comparisons and reports see it, read from its files, and the score it stands for.

The score is that of the last weights, never of a run's best moment, and it names its source.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from ludus.envs.atari.names import canonical
from ludus.errors import LudusError
from ludus.secret_masking import masked
from ludus.stats.references import game_of
from ludus.stats.run_files import (
    Video,
    evaluation_files,
    integer,
    number,
    read_lines,
    read_settings,
    sampled_lines,
    table,
    video_files,
)
from ludus.stats.windows import WINDOW, Window, last_window, read_windows
from ludus.track.atomic_files import csv_rows, read_json
from ludus.track.checkpoint.format import checkpoint_paths, read_pointer
from ludus.track.run_dir.rundir import RunDir
from ludus.track.run_dir.status import read_status

METRIC_LINES = 1_500  # maximum lines of metrics.jsonl that are parsed
EVENTS = 4_000  # maximum number of events, the newest


@dataclass(frozen=True)
class Evaluation:
    """Complete episodes without learning: a line of evals.csv, or a file of eval/."""

    step: int
    mean: float
    std: float
    episodes: int
    label: str = ""  # how it was played: greedy, saber, ...
    scores: tuple[float, ...] = ()
    checkpoint: str = ""
    protocol: str = ""
    protocol_hash: str = ""
    by_length: dict[str, float] = field(default_factory=dict)  # means at 5, 30 minutes, the end
    changed: bool = False  # its rules were typed for this evaluation
    sampled: bool = False  # actions were sampled from the policy


@dataclass(frozen=True)
class Score:
    """The score of a run, and its source."""

    mean: float
    std: float
    episodes: int
    step: int
    source: str  # "training", "eval greedy", "eval saber", "eval while training" ...
    protocol: str = ""  # the label, with a star if a rule differs
    protocol_hash: str = ""
    of_best: bool = False  # of a checkpoint that was chosen because it scored well
    evaluation: Evaluation | None = None  # None: training episodes

    @property
    def evaluated(self) -> bool:
        return self.evaluation is not None


@dataclass(frozen=True)
class Saved:
    """The steps of the checkpoints that are left of a run."""

    newest: int  # if there is none, the step that the run is at
    best: int | None = None  # the one that training called best

    def chosen_by_score(self, step: int, name: str = "") -> bool:
        """Whether weights were chosen by their score: called best, and not the newest as well."""
        return step < self.newest and (name == "best" or step == self.best)


@dataclass(frozen=True)
class Run:
    path: Path
    name: str
    algo: str
    env: str
    seed: int | None
    steps: int  # planned; 0: unknown
    step: int  # done
    state: str
    config: dict[str, Any]  # without secrets
    manifest: dict[str, Any]
    status: dict[str, Any]
    windows: list[Window]  # of the training episodes; without history only the last one
    during: list[Evaluation]  # while training, by step
    after: list[Evaluation]  # by `ludus eval`, by step, older files first
    saved: Saved
    metrics: list[dict[str, Any]] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)
    videos: list[Video] = field(default_factory=list)

    @property
    def game(self) -> str | None:
        return game_of(self.env)

    @property
    def frame_skip(self) -> int:
        """Frames per agent step."""
        return integer(table(table(self.config, "env"), "atari").get("skip")) or 1

    @property
    def protocol(self) -> str:
        return _text(self.manifest.get("protocol")) or _text(self.status.get("protocol"))

    @property
    def protocol_hash(self) -> str:
        return _text(self.manifest.get("protocol_hash")) or _text(self.status.get("protocol_hash"))

    @property
    def preset(self) -> str:
        return str(table(self.manifest, "lineage").get("preset") or "")

    @property
    def seconds(self) -> float:
        """Age of the run at its last line of metrics."""
        return number(self.metrics[-1].get("seconds")) or 0.0 if self.metrics else 0.0

    @property
    def commit(self) -> str:
        return str(table(self.manifest, "git").get("commit") or "")

    def versions(self, package: str) -> set[str]:
        """Versions of a package: at the start, and after a resume that changed it."""
        sessions = self.manifest.get("sessions")
        later = [table(s, "changed") for s in sessions] if isinstance(sessions, list) else []
        tables = [table(part, "versions") for part in (self.manifest, *later)]
        return {str(versions[package]) for versions in tables if package in versions}

    @cached_property
    def score(self) -> Score | None:
        """The score a run stands for; None before its first episode has ended.

        An evaluation of the newest weights, or the last one while training: the later of them. Of
        several at one step, greedy ones win over sampled ones, then those with more episodes, so
        that a quick look changes nothing, then those with the run's own rules, then the newest
        file. Without these: the training episodes, else an evaluation of older weights. An
        evaluation whose rules were changed is never the score.
        """
        files = [e for e in self.after if not e.changed]
        found = [*self.during[-1:], *(e for e in files if e.step >= self.saved.newest)]
        if not found and (training := self._training_score()) is not None:
            return training

        def rank(e: Evaluation) -> tuple[int, bool, int, bool]:
            own = self._rules(e)[1] == self.protocol_hash
            return e.step, not e.sampled, e.episodes, own

        best = max(reversed(found or files), key=rank, default=None)
        return None if best is None else self._score_of(best)

    @property
    def best_evaluation(self) -> Evaluation | None:
        """The last evaluation of weights that were chosen by their score."""
        chosen = (e for e in self.after if self.saved.chosen_by_score(e.step, e.checkpoint))
        return max((e for e in chosen if not e.changed), key=lambda e: e.step, default=None)

    def _training_score(self) -> Score | None:
        """The last episodes; the score of status.json if they were written elsewhere."""
        rules = self.protocol, self.protocol_hash
        if self.windows:
            last = self.windows[-1]
            return Score(last.mean, last.std, last.episodes, self.step, "training", *rules)
        mean = number(self.status.get("score"))
        return None if mean is None else Score(mean, 0.0, WINDOW, self.step, "training", *rules)

    def _rules(self, e: Evaluation) -> tuple[str, str]:
        return (e.protocol, e.protocol_hash) if e.protocol else (self.protocol, self.protocol_hash)

    def _score_of(self, e: Evaluation) -> Score:
        training = any(e is other for other in self.during)
        source = "eval while training" if training else f"eval {e.label or 'greedy'}"
        best = not training and self.saved.chosen_by_score(e.step, e.checkpoint)
        return Score(e.mean, e.std, e.episodes, e.step, source, *self._rules(e), best, e)


def read_run(run: RunDir, *, history: bool = False) -> Run:
    """Read what a comparison needs, or with `history` everything a report needs.

    A run without settings is refused with E303; with `history` it is not: it may just have begun.
    """
    tree, unread = read_settings(run)
    if not history and (unread or not run.config.is_file()):
        raise LudusError(
            "E303",
            f"{run.name} has no readable config.yaml",
            where=str(run.config),
            why=unread or "the run was cut off before it began",
            fix="leave it out, or start it again",
        )
    config, status = masked(tree), read_status(run)
    algo, env, settings = (table(config, name) for name in ("algo", "env", "run"))
    metrics = read_lines(run.metrics, METRIC_LINES) if history else []
    last = metrics[-1].get("step") if metrics else None
    step = integer(status.get("step")) or integer(last) or 0
    there = checkpoint_paths(run.checkpoints)
    return Run(
        path=run.path,
        name=run.name,
        algo=str(algo.get("name") or status.get("algo") or "?"),
        env=canonical(str(env.get("id") or status.get("env") or "?")),
        seed=integer(settings.get("seed")),
        steps=integer(settings.get("steps")) or 0,
        step=step,
        state=str(status["state"]),
        config=config,
        manifest=read_json(run.manifest),
        status=status,
        windows=(read_windows if history else last_window)(run.episodes),
        during=_read_during(run.evals),
        after=_read_after(run.eval),
        saved=Saved(max(there, default=step), read_pointer(run.checkpoints, "best")),
        metrics=metrics,
        events=read_lines(run.events, None, newest=EVENTS) if history else [],
        videos=video_files(run.videos) if history else [],
    )


def describe_sources(scores: Iterable[tuple[str, int | None]]) -> str:
    """Sources and episodes of several scores in words: `eval greedy, 100 episodes`."""
    known = list(scores)
    sources = " or ".join(sorted({source for source, _ in known}))
    counts = sorted({episodes for _, episodes in known if episodes})
    if not counts:
        return sources
    many = str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    return f"{sources}, {many} episodes"


def _read_during(path: Path) -> list[Evaluation]:
    lines = [line.decode("utf-8", "replace") for line in sampled_lines(path)]
    rows = [row for row in csv_rows(lines) if number(row.get("step")) is not None]  # not torn
    return [found for row in rows if (found := _evaluation(row)) is not None]


def _read_after(folder: Path) -> list[Evaluation]:
    found = []
    for path, row in evaluation_files(folder):
        # The file name may also hold a seed, so the label inside the file comes first.
        label = _text(row.get("label")) or path.stem.rpartition("-")[0] or path.stem
        found += [e] if (e := _evaluation(row, label)) is not None else []
    return sorted(found, key=lambda e: e.step)


def _evaluation(row: dict[str, Any], label: str = "") -> Evaluation | None:
    """None for a line or a file that has no score."""
    mean = number(row.get("mean"))
    if mean is None:
        return None
    given = row.get("scores")
    scores = [number(s) for s in given] if isinstance(given, list) else []
    lengths = table(row, "by_length")
    means = {str(k): number(table(lengths, k).get("mean")) for k in lengths}
    return Evaluation(
        step=integer(row.get("step")) or 0,
        mean=mean,
        std=number(row.get("std")) or 0.0,
        episodes=integer(row.get("episodes")) or len(scores),
        label=label,
        scores=tuple(s for s in scores if s is not None),
        checkpoint=Path(str(row.get("checkpoint") or "")).name,  # the path is private
        protocol=_text(row.get("protocol")),
        protocol_hash=_text(row.get("protocol_hash")),
        by_length={name: mean for name, mean in means.items() if mean is not None},
        changed=row.get("changed") is True,
        sampled=row.get("sample") is True,
    )


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
