"""What a finished or running run scored, read from its files. Nothing is computed over runs here.

`choose` says which number stands for a run; reports follow it too. It is of the last weights, never
of a run's best moment, and where it came from is always told.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

from ludus.envs.atari.names import canonical
from ludus.errors import LudusError
from ludus.masking import masked
from ludus.settings.yaml import read_file
from ludus.stats.references import game_of
from ludus.stats.variants import deciding, flat
from ludus.track.atomic_files import has_folder, open_read, read_json
from ludus.track.checkpoint.format import checkpoint_paths, read_pointer
from ludus.track.lines import csv_rows, whole_lines
from ludus.track.run_dir.rundir import RunDir
from ludus.track.run_dir.status import read_status

_LARGEST = 1e100  # no number of a run is larger
CUT = ("checkpoint", "error")  # ends of episodes that have no score
WINDOW = 100  # training episodes
_MOST_BYTES = 64 << 20  # of episodes.csv that are read
_TAIL = 1 << 18  # bytes that surely hold as many lines of episodes.csv


@dataclass(frozen=True)
class Score:
    """One number, and what it is the mean of."""

    value: float
    source: str  # "training", "eval greedy", "eval saber", "eval while training" ...
    episodes: int
    step: int
    protocol: str | None = None  # the label, with a star where a rule differs
    protocol_hash: str | None = None
    best: bool = False  # of a checkpoint that was chosen because it scored well
    changed: bool = False  # by rules that were typed for this evaluation
    sampled: bool = False  # actions drawn from the policy

    @property
    def evaluated(self) -> bool:
        return self.source != "training"


@dataclass(frozen=True)
class Saved:
    """The weights that are left of a run, by step."""

    newest: int  # checkpoint; where there is none, the step that the run is at
    best: int | None = None  # checkpoint that training called best

    def flatters(self, step: int, name: str = "") -> bool:
        """Whether weights were chosen by their score: called best, and not the newest anyway."""
        return step < self.newest and (name == "best" or step == self.best)


class _Scored(Protocol):
    @property
    def step(self) -> int: ...
    @property
    def episodes(self) -> int: ...
    @property
    def changed(self) -> bool: ...
    @property
    def sampled(self) -> bool: ...
    @property
    def protocol_hash(self) -> str | None: ...


_Any = TypeVar("_Any", bound=_Scored)


@dataclass(frozen=True)
class RunScore:
    """A run as far as comparisons need it."""

    name: str
    path: str
    algo: str
    env: str
    game: str | None
    seed: int | None
    steps: int | None  # planned
    step: int  # done
    state: str
    score: Score | None  # None: no episode has ended
    versions: dict[str, frozenset[str]] = field(default_factory=dict)  # package -> all it ran with
    settings: dict[str, Any] = field(default_factory=dict)  # those that decide, by dotted key


def read_run(run: RunDir) -> RunScore:
    """A run's score and circumstances; E303 if its directory has no configuration."""
    try:
        tree = masked(read_file(run.config).tree)
    except LudusError as error:
        raise LudusError(
            "E303",
            f"{run.name} has no readable config.yaml",
            where=str(run.config),
            why=error.what.replace(str(run.config), run.config.name)
            if os.path.lexists(run.config)
            else "the run was cut off before it began",
            fix="leave it out, or start it again",
        ) from error
    told = read_status(run)
    parts = {name: dict(flat(tree.get(name))) for name in ("algo", "env", "run")}
    env = str(parts["env"].get("id"))
    return RunScore(
        name=run.name,
        path=str(run.path),
        algo=str(parts["algo"].get("name")),
        env=canonical(env),
        game=game_of(env),
        seed=_whole(parts["run"].get("seed")),
        steps=_whole(parts["run"].get("steps")),
        step=_whole(told.get("step")) or 0,
        state=str(told["state"]),
        score=_score(run, told),
        versions=_versions(run),
        settings=deciding(tree),
    )


def choose(
    during: Sequence[_Any],
    after: Sequence[_Any],
    training: _Any | None,
    newest: int,
    rules: str | None = None,
) -> _Any | None:
    """The score a run stands for. `during`: lines of evals.csv; `after`: files of eval/, the newer
    last; `newest`: the step of the weights that an evaluation should be of; `rules`: the hash of
    the run's own protocol.

    An evaluation of the newest weights, or the last one while training: the later of them; of
    several of one step one that acts greedily, then that of most episodes, so that a quick look
    changes nothing; of equal ones one by the run's own rules, then the newest. Else the training
    episodes. Else, better than nothing, an evaluation of older weights. One by rules that were
    changed for it is no score.
    """
    files = [found for found in after if not found.changed]
    good = [*during[-1:], *(found for found in files if found.step >= newest)]
    if not good and training is not None:
        return training

    def rank(found: _Any) -> tuple[int, bool, int, bool]:
        own = (found.protocol_hash or None) == (rules or None)
        return found.step, not found.sampled, found.episodes, own

    return max(reversed(good or files), key=rank, default=None)


def scored_by(scores: Iterable[tuple[str, int | None]]) -> str:
    """What scores are means of, each by its source and number of episodes: `eval greedy, 100
    episodes`. Those of a short training are of an agent that knew little."""
    known = list(scores)
    sources = " or ".join(sorted({source for source, _ in known}))
    counts = sorted({episodes for _, episodes in known if episodes})
    if not counts:
        return sources
    many = str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    return f"{sources}, {many} episodes"


def saved(run: RunDir, step: int) -> Saved:
    """`step`: that the run is at."""
    there = checkpoint_paths(run.checkpoints)
    return Saved(max(there, default=step), read_pointer(run.checkpoints, "best"))


def _score(run: RunDir, told: dict[str, Any]) -> Score | None:
    weights = saved(run, _whole(told.get("step")) or 0)
    after = _after(run, told, weights)
    training, rules = _training(run, told), _text(told.get("protocol_hash"))
    return choose(_while_training(run), after, training, weights.newest, rules)


def evaluations(folder: Path) -> list[tuple[Path, dict[str, Any]]]:
    """Files of a run's eval/ with what is in them, the newer last. One that cannot be read, or is
    replaced at this moment, is left out."""
    found = []
    for path in sorted(folder.glob("*.json")) if has_folder(folder) else ():
        with contextlib.suppress(OSError):
            found.append((path.lstat().st_mtime, path))
    return [(path, read_json(path)) for _, path in sorted(found)]


def _after(run: RunDir, told: dict[str, Any], weights: Saved) -> list[Score]:
    found = [_of_file(path, value, told, weights) for path, value in evaluations(run.eval)]
    return [score for score in found if score is not None]


def _of_file(
    path: Path, value: dict[str, Any], told: dict[str, Any], weights: Saved
) -> Score | None:
    """An eval/*.json; None for a file of somebody else's."""
    mean, step = _number(value.get("mean")), _whole(value.get("step")) or 0
    if mean is None:
        return None
    scores = value.get("scores")
    return Score(
        mean,
        f"eval {manner_of(path, value)}",
        _whole(value.get("episodes")) or (len(scores) if isinstance(scores, list) else 0),
        step,
        _text(value.get("protocol")) or told.get("protocol"),
        _text(value.get("protocol_hash")) or told.get("protocol_hash"),
        best=weights.flatters(step, Path(str(value.get("checkpoint") or "")).name),
        changed=value.get("changed") is True,
        sampled=value.get("sample") is True,
    )


def manner_of(path: Path, value: dict[str, Any]) -> str:
    """How an evaluation was played. A name may also tell its seed, which is no other way."""
    return _text(value.get("label")) or path.stem.rpartition("-")[0] or path.stem


def _while_training(run: RunDir) -> list[Score]:
    lines = (line.decode("utf-8", "replace") for line in whole_lines(run.evals))
    found = []
    for row in csv_rows(lines):
        mean, step = _number(row.get("mean")), _whole(row.get("step"))
        if mean is None or step is None:  # torn by a kill
            continue
        episodes = _whole(row.get("episodes")) or 0
        rules = row.get("protocol") or None, row.get("protocol_hash") or None
        found.append(Score(mean, "eval while training", episodes, step, *rules))
    return found


def _training(run: RunDir, told: dict[str, Any]) -> Score | None:
    """The last whole episodes; what status.json says where they were written elsewhere."""
    scores = _last_scores(run.episodes)
    value = sum(scores) / len(scores) if scores else _number(told.get("score"))
    if value is None:
        return None
    step = _whole(told.get("step")) or 0
    rules = told.get("protocol"), told.get("protocol_hash")
    return Score(value, "training", len(scores) or WINDOW, step, *rules)


def _last_scores(path: Path) -> list[float]:
    """Of at most the last 100 episodes that were played to their end."""
    try:
        size = path.lstat().st_size
        found = _whole_scores(path, max(0, size - _TAIL))
        if len(found) < WINDOW and size > _TAIL:  # many slots cut by many checkpoints
            found = _whole_scores(path, max(0, size - _MOST_BYTES))
    except OSError:
        return []
    return found[-WINDOW:]


def _whole_scores(path: Path, start: int) -> list[float]:
    with open_read(path) as file:
        header = file.readline(4096).decode(errors="replace").strip().split(",")
        cut = start > file.tell()
        file.seek(start if cut else file.tell())
        text = file.read(_MOST_BYTES).decode(errors="replace")
    lines = text[: text.rfind("\n") + 1].splitlines()[1 if cut else 0 :]
    rows = csv_rows(lines, header)
    scores = [_number(row.get("score")) for row in rows if row.get("end") not in CUT]
    return [score for score in scores if score is not None]


def _versions(run: RunDir) -> dict[str, frozenset[str]]:
    """Of ludus and of the emulator, also those a resumed run changed to."""
    manifest = read_json(run.manifest)
    known = manifest.get("sessions")
    sessions = [table(s, "changed") for s in known] if isinstance(known, list) else []
    tables = [table(t, "versions") for t in (manifest, *sessions)]
    packages = ("ludus", "ale-py")
    return {p: frozenset(str(t[p]) for t in tables if p in t) for p in packages}


def table(tree: Any, name: str) -> dict[str, Any]:
    """A part of a file that should be a table; an empty one where it is not."""
    part = tree.get(name) if isinstance(tree, dict) else None
    return part if isinstance(part, dict) else {}


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _number(value: Any) -> float | None:
    try:
        found = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return found if abs(found) < _LARGEST else None  # neither nan nor inf is


def _whole(value: Any) -> int | None:
    number = _number(value)
    return int(number) if number is not None and number == int(number) else None
