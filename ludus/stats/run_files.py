"""A run as a report sees it, read from its files alone: no torch, no configuration classes.

What is read is bounded, however long the run: of a large file only evenly spaced parts.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ludus.errors import LudusError
from ludus.reporting.windows import Window, read_windows
from ludus.settings.yaml import read_file
from ludus.stats.runs import Saved, evaluations, manner_of, saved, table
from ludus.track.atomic_files import has_folder, open_read, parse_json, read_json
from ludus.track.lines import csv_rows
from ludus.track.run_dir.rundir import RunDir
from ludus.track.run_dir.status import read_status

_MOST = 1e100  # no number of a run is larger
WHOLE = 6_000_000  # bytes up to which a file of lines is read as a whole
LINES = 1_500  # lines of metrics that are parsed at most
_LINE = 1 << 16  # bytes that a line of theirs may have
EVENTS = 4_000  # of the newest events
_VIDEOS = {".mp4": "video/mp4", ".webm": "video/webm", ".gif": "image/gif"}


@dataclass(frozen=True)
class Video:
    path: Path
    kind: str  # its media type
    size: int  # bytes


@dataclass(frozen=True)
class Evaluation:
    """Whole episodes without learning: a line of evals.csv, or a file of eval/."""

    step: int
    mean: float
    std: float
    episodes: int
    label: str = ""  # the file's name without the step: greedy, saber, ...
    scores: tuple[float, ...] = ()
    checkpoint: str = ""
    protocol: str = ""
    protocol_hash: str = ""
    by_length: dict[str, float] = field(default_factory=dict)  # means at 5, 30 minutes, the end
    changed: bool = False  # by rules that were typed for it
    sampled: bool = False  # actions drawn from the policy


@dataclass(frozen=True)
class RunData:
    path: Path
    name: str
    algo: str
    env: str
    seed: int
    steps: int  # asked for
    step: int  # reached
    state: str
    config: dict[str, Any]
    manifest: dict[str, Any]
    status: dict[str, Any]
    metrics: list[dict[str, Any]]
    windows: list[Window]
    during: list[Evaluation]  # while training, by step
    after: list[Evaluation]  # by `ludus eval`, by step
    events: list[dict[str, Any]]
    videos: list[Video]
    saved: Saved
    tag: str = ""

    @property
    def skip(self) -> int:
        """Frames of an agent step."""
        atari = table(table(self.config, "env"), "atari")
        return int(number(atari.get("skip")) or 1)

    @property
    def protocol(self) -> str:
        return str(self.manifest.get("protocol") or self.status.get("protocol") or "")

    @property
    def protocol_hash(self) -> str:
        return str(self.manifest.get("protocol_hash") or self.status.get("protocol_hash") or "")

    @property
    def preset(self) -> str:
        return str(table(self.manifest, "lineage").get("preset") or "")

    @property
    def seconds(self) -> float:
        """Age of the run at its last line."""
        return float(number(self.metrics[-1].get("seconds")) or 0.0) if self.metrics else 0.0


def read_run(path: Path) -> RunData:
    """Everything a report needs of one run. Missing files are no error: a run may just begin."""
    run = RunDir(path.resolve())
    config, status = _config(run), read_status(run)
    algo, env, settings = (table(config, name) for name in ("algo", "env", "run"))
    metrics = read_lines(run.metrics, LINES)
    last = metrics[-1].get("step") if metrics else None
    step = int(number(status.get("step")) or number(last) or 0)
    return RunData(
        path=run.path,
        name=run.name,
        algo=str(algo.get("name") or status.get("algo") or "?"),
        env=str(env.get("id") or status.get("env") or "?"),
        seed=int(number(settings.get("seed")) or 0),
        steps=int(number(settings.get("steps")) or 0),
        step=step,
        state=str(status["state"]),
        config=config,
        manifest=read_json(run.manifest),
        status=status,
        metrics=metrics,
        windows=read_windows(run.episodes),
        during=_during(run.evals),
        after=_after(run.eval),
        events=read_lines(run.events, None, newest=EVENTS),
        videos=_videos(run.videos),
        saved=saved(run, step),
        tag=str(table(config, "log").get("tag") or ""),
    )


def _config(run: RunDir) -> dict[str, Any]:
    try:
        return read_file(run.config).tree
    except LudusError:  # cut off while its directory was being made
        return {}


def number(value: Any) -> float | None:
    """A finite number, or None: files may be of another version, or edited by hand."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        found = float(value)
    except (ValueError, OverflowError):
        return None
    return found if abs(found) < _MOST else None  # neither nan nor inf is


def read_lines(path: Path, limit: int | None, newest: int | None = None) -> list[dict[str, Any]]:
    """Whole JSON lines, evenly thinned to about `limit`, or only the `newest`; the last always."""
    lines = spread_lines(path) if newest is None else tail_lines(path, newest)
    stride = max(1, math.ceil(len(lines) / limit)) if limit else 1
    kept = [line for i, line in enumerate(lines) if (len(lines) - 1 - i) % stride == 0]
    return list(_objects(kept))


def _objects(lines: Iterable[bytes]) -> Iterable[dict[str, Any]]:
    for line in lines:
        try:
            value = parse_json(line)
        except ValueError:
            continue
        if isinstance(value, dict):
            yield value


def spread_lines(path: Path, parts: int = 1_500) -> list[bytes]:
    """All whole lines of a file, or of a large one the first whole line of each of many parts."""
    try:
        with open_read(path) as file:
            size = file.seek(0, 2)
            file.seek(0)
            if size <= WHOLE:
                return file.read().split(b"\n")[:-1]
            found = [file.readline(_LINE)]
            for i in range(1, parts):
                file.seek(size * i // parts)
                file.readline(_LINE)  # the rest of a line
                found.append(file.readline(_LINE))
    except OSError:
        return []
    return [*(line for line in found if line.endswith(b"\n")), *tail_lines(path, 1)]


def tail_lines(path: Path, count: int) -> list[bytes]:
    try:
        with open_read(path) as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - WHOLE))
            return file.read().split(b"\n")[:-1][-count:]
    except OSError:
        return []


def _during(path: Path) -> list[Evaluation]:
    lines = [line.decode("utf-8", "replace") for line in spread_lines(path)]
    return [found for row in csv_rows(lines) if (found := _evaluation(row)) is not None]


def _after(folder: Path) -> list[Evaluation]:
    """Every eval/<label>-<step>.json, by step; at one step the older ones first."""
    rows = [_evaluation(row, manner_of(path, row)) for path, row in evaluations(folder)]
    return sorted((e for e in rows if e is not None), key=lambda e: e.step)


def _evaluation(row: dict[str, Any], label: str = "") -> Evaluation | None:
    step, mean = number(row.get("step")), number(row.get("mean"))
    if step is None or mean is None:
        return None
    given = row.get("scores")
    scores = [number(s) for s in given] if isinstance(given, list) else []
    lengths = table(row, "by_length")
    means = {str(k): number(table(lengths, k).get("mean")) for k in lengths}
    return Evaluation(
        step=int(step),
        mean=mean,
        std=number(row.get("std")) or 0.0,
        episodes=int(number(row.get("episodes")) or len(scores)),
        label=label,
        scores=tuple(s for s in scores if s is not None),
        checkpoint=Path(str(row.get("checkpoint") or "")).name,  # its place is nobody's business
        protocol=str(row.get("protocol") or ""),
        protocol_hash=str(row.get("protocol_hash") or ""),
        by_length={name: mean for name, mean in means.items() if mean is not None},
        changed=row.get("changed") is True,
        sampled=row.get("sample") is True,
    )


def _videos(folder: Path) -> list[Video]:
    """Without hidden ones, which are being written, and without those that cannot be read."""
    found = []
    for path in sorted(folder.rglob("*")) if has_folder(folder) else []:
        kind = _VIDEOS.get(path.suffix.lower())
        if not kind or any(p.startswith(".") for p in path.relative_to(folder).parts):
            continue
        with contextlib.suppress(OSError):
            if path.is_file() and not path.is_symlink():
                found.append(Video(path, kind, path.stat().st_size))
    return found
