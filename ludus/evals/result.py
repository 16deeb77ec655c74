"""The result of an evaluation, episode by episode, and its files.

Only the same play of the same weights replaces a file of an evaluation or a video (`output_path`).
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ludus.stats import aggregates
from ludus.stats.aggregates import stratified_bootstrap
from ludus.track.atomic_files import read_json, write_atomic, write_json, writing
from ludus.track.metrics.writer import csv_line
from ludus.track.run_dir.rundir import folder_for, run_of, slug


@dataclass(frozen=True)
class EvalResult:
    """Episodes in a fixed order: the first of every environment, then the second of each ..."""

    scores: list[float]
    lengths: list[int]
    seeds: list[int]  # of the episodes; each repeats its episode in the same kind of environment
    step: int = 0
    checkpoint: str = ""
    settings: dict[str, Any] = field(default_factory=dict)
    ends: list[str] = field(default_factory=list)  # terminated | truncated
    # Atari games: the score after that time, or at the end of a shorter episode.
    marks: dict[str, list[float]] = field(default_factory=dict)  # 5min, 30min

    @property
    def mean(self) -> float:
        return statistics.fmean(self.scores)

    @property
    def std(self) -> float:
        return _std(self.scores)

    @property
    def median(self) -> float:
        return statistics.median(self.scores)

    @property
    def label(self) -> str:
        """The rules and how actions were chosen; file names begin with it."""
        return str(self.settings.get("label", "greedy"))

    @property
    def interval(self) -> tuple[float, float] | None:
        """95 % bootstrap interval of the mean over episodes; None for a single episode."""
        return _interval(self.scores)

    def mean_ci(self) -> tuple[float, float | None, float | None]:
        """The mean and both ends of its interval."""
        return (self.mean, *(self.interval or (None, None)))

    def as_dict(self) -> dict[str, Any]:
        timed: dict[str, Any] = {}
        if self.marks:
            by_length = {**self.marks, "full": self.scores}
            timed = {f"scores_{name}": scores for name, scores in self.marks.items()}
            timed["by_length"] = {name: summary(scores) for name, scores in by_length.items()}
        return {
            **summary(self.scores),
            "episodes": len(self.scores),
            "step": self.step,
            "checkpoint": self.checkpoint,
            "scores": self.scores,
            "lengths": self.lengths,
            "seeds": self.seeds,
            "ends": self.ends,
            **timed,
            **self.settings,
        }

    def rows(self) -> list[list[Any]]:
        """A header, and one line per episode."""
        names = ["episode", "seed", "score", "length", "end"]
        columns: list[Sequence[Any]] = [
            range(1, len(self.scores) + 1), self.seeds, self.scores, self.lengths,
            self.ends or [""] * len(self.scores),
        ]  # fmt: skip
        if self.marks:
            names += [*(f"score_{name}" for name in self.marks), "score_full"]
            columns += [*self.marks.values(), self.scores]
        return [names, *(list(row) for row in zip(*columns, strict=True))]


def summary(scores: Sequence[float]) -> dict[str, Any]:
    ends = _interval(scores)
    return {
        "mean": statistics.fmean(scores),
        "bootstrap_interval": None if ends is None else list(ends),
        "std": _std(scores),
        "median": statistics.median(scores),
        "min": min(scores),
        "max": max(scores),
    }


def _interval(scores: Sequence[float]) -> tuple[float, float] | None:
    return stratified_bootstrap(scores, aggregates.mean) if len(scores) > 1 else None


def _std(scores: Sequence[float]) -> float:
    return statistics.stdev(scores) if len(scores) > 1 else 0.0


def write_result(result: EvalResult, folder: Path) -> Path:
    """Write `<label>-<step>.json` and `.csv` to `folder`. The same evaluation replaces them; one of
    other weights, another seed or number of episodes gets another name."""
    text = "".join(csv_line(row) for row in result.rows())
    seed, count = result.settings.get("seed"), len(result.scores)
    output = Output(
        result.label,
        Path(result.checkpoint),
        result.settings.get("weights"),
        {"seed": seed, "episodes": count},
        f"seed{seed}-{count}episodes",
    )
    path = output_path(output, folder, f"{result.step}.json")
    elsewhere = "choose another place with  --out DIR"
    with writing("the evaluation cannot be written", folder, elsewhere):
        folder_for(folder)
        write_json(path, result.as_dict())
        write_atomic(path.with_suffix(".csv"), text.encode())
    return path


@dataclass(frozen=True)
class Output:
    """The properties of an evaluation or a video that decide its file name."""

    label: str  # of the rules
    checkpoint: Path  # of the agent
    weights: str | None  # their hash; None if no agent played
    facts: Mapping[str, Any]  # seed, episodes: as in the JSON file
    suffix: str  # the facts in a file name, for a second file of the same weights


def output_path(played: Output, folder: Path, ending: str) -> Path:
    """`<label>-<ending>` in `folder`, if it is free or holds the same output. If it holds other
    weights, the agent's name is added, then their hash; if only the facts differ, the suffix.

    Inside the agent's own run its name is redundant, and a step has one set of weights.
    """
    home, name = run_of(played.checkpoint), agent_name(played.checkpoint)
    own = home is not None and folder.resolve().parent == home.path
    path = folder
    for who in ("",) if own else ("", f"-{name}", f"-{name}-{played.weights}"):
        for how in ("", f"-{played.suffix}"):
            path = folder / f"{played.label}{who}{how}-{ending}"
            facts = path.with_suffix(".json")
            if not path.exists() and not facts.exists():
                return path
            known = read_json(facts)
            if not own and known.get("weights") != played.weights:
                break
            if all(known.get(key) == value for key, value in played.facts.items()):
                return path
    return path


def agent_name(checkpoint: Path) -> str:
    """The name of its run, else of the file, or of its folder if the file has the usual name."""
    home, path = run_of(checkpoint), checkpoint.resolve()
    if home is not None:
        return slug(home.name)
    name = path.name.removesuffix(".safetensors")
    return slug(path.parent.name if name == "model" else name)
