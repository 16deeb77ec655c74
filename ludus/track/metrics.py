"""The files a run streams: metrics.jsonl, episodes.csv, evals.csv, events.jsonl, log.txt.

Lines are gathered in memory and reach the disk about once a second, at `offsets()` (every
checkpoint) and at `close()`. These files are the record; TensorBoard is a copy of them.
Fields that depend on the clock follow one naming rule (`is_wall_clock`), so that two runs can
be compared without them.
"""

from __future__ import annotations

import csv
import io
import json
import math
import os
import statistics
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ludus.errors import LudusError
from ludus.masking import hide
from ludus.track.rundir import RunDir

if TYPE_CHECKING:
    from ludus.types import EpisodeEnd

EPISODE_FIELDS = ("step", "slot", "score", "length", "end", "seconds", "info")
EVAL_FIELDS = (
    "step", "updates", "checkpoint", "episodes", "mean", "std", "median", "min", "max", "length",
    "seconds", "protocol", "protocol_hash",
)  # fmt: skip
_RESUMED = ("metrics", "episodes", "evals")  # truncated on resume; events and log are history


def is_wall_clock(name: str) -> bool:
    """Whether a field depends on the clock and not on the run: time, seconds, x_per_second."""
    last = name.rsplit("/", 1)[-1]
    return (
        name.startswith("time/")
        or last in ("time", "seconds")
        or last.endswith(("_seconds", "_per_second"))
    )


def without_wall_clock(row: Mapping[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in row.items() if not is_wall_clock(k)}


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Every whole line of a metrics.jsonl or events.jsonl; a torn last line is left out."""
    if not path.exists():
        return []
    text = path.read_text(encoding="utf-8")
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def first_numbers(path: Path) -> set[int]:
    """The steps of an episodes.csv or evals.csv."""
    if not path.is_file():
        return set()
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    parts = [line.partition(",") for line in lines]
    return {int(first) for first, comma, _ in parts if comma and first.isdigit()}


class _Stream:
    """An append-only file with a buffer and a known size."""

    def __init__(self, path: Path, header: Sequence[str] | None = None) -> None:
        self.path = path
        try:
            self._file = open(path, "ab", buffering=0)
        except OSError as error:
            raise LudusError(
                "E301",
                f"cannot write {path.name}: {error.strerror}",
                where=str(path),
                fix="choose a writable place with  --runs-dir DIR",
            ) from error
        self._lines: list[str] = []
        self.problem = ""
        self.size = _whole_lines(path)
        self._file.truncate(self.size)
        self._header = tuple(header or ())
        # A file goes on with the columns it began with, also if there are more by now.
        self.columns = _first_row(path) if header and self.size else self._header
        self._synced = self.size
        self._begin()

    def _begin(self) -> None:
        if self.size == 0 and self._header:
            self.columns = self._header
            self.add(csv_line(self._header))

    def add(self, line: str) -> None:
        self._lines.append(line)

    def flush(self) -> None:
        if not self._lines:
            return
        data = "".join(self._lines).encode()
        view = memoryview(data)
        try:
            while view:
                view = view[self._file.write(view) :]
        except OSError as error:  # a full disk must not end the run: keep the lines, try again
            self.problem = f"{self.path.name}: {error.strerror}"
            self._file.truncate(self.size)
            return
        self.problem = ""
        self._lines.clear()
        self.size += len(data)

    def sync(self) -> None:
        """On disk for good; raises where `flush` would only remember the problem."""
        self.flush()
        if self.problem:
            raise LudusError(
                "E301",
                f"cannot write {self.problem}",
                where=str(self.path),
                why="the disk is full, or the directory went away or became read-only",
                fix="free some space, or choose another place with  --runs-dir DIR",
            )
        if self._synced != self.size:
            os.fsync(self._file.fileno())
            self._synced = self.size

    def truncate(self, size: int) -> int:
        """Cut back to `size` bytes; returns how many of them are missing from the file."""
        self.flush()
        missing = max(0, size - self.size)
        self.size = self._synced = min(size, self.size)
        self._file.truncate(self.size)
        self._begin()
        return missing

    def close(self) -> None:
        self.flush()
        self._file.close()


class MetricWriter:
    """Writes a run's files. `seconds` is the run's age at the start (not 0 after a resume); `rules`
    stand beside every score: protocol and protocol_hash of an Atari game."""

    def __init__(
        self,
        run: RunDir,
        *,
        seconds: float = 0.0,
        episodes_path: Path | None = None,
        flush_every: float = 1.0,
        rules: Mapping[str, str] | None = None,
    ) -> None:
        self._streams = {
            "metrics": _Stream(run.metrics),
            "episodes": _Stream(episodes_path or run.episodes, EPISODE_FIELDS),
            "evals": _Stream(run.evals, EVAL_FIELDS),
            "events": _Stream(run.events),
            "log": _Stream(run.log),
        }
        self._before = seconds
        self._started = self._flushed = time.monotonic()
        self._every, self._rules = flush_every, dict(rules or {})

    @property
    def seconds(self) -> float:
        """Wall-clock age of the run, earlier sessions included."""
        return self._before + time.monotonic() - self._started

    def metrics(self, step: int, updates: int, values: Mapping[str, Any]) -> None:
        """One line of metrics.jsonl. Values: numbers, 0-d tensors, text, lists of plain
        numbers; not finite -> null."""
        row = {"step": step, "updates": updates, "seconds": round(self.seconds, 3)}
        row.update((name, _plain(value)) for name, value in values.items())
        self._add("metrics", json.dumps(row, separators=(",", ":")) + "\n")

    def episode(
        self, step: int, episode: EpisodeEnd, extra: Mapping[str, float] | None = None
    ) -> None:
        """One line of episodes.csv; call it once per EpisodeEnd."""
        info = {**episode.info, **(extra or {})}
        told = json.dumps({k: _plain(v) for k, v in info.items()}) if info else ""
        score, seconds = _plain(episode.score), round(self.seconds, 3)
        row = (step, episode.slot, score, episode.length, episode.end, seconds, told)
        self._add("episodes", csv_line(row))

    def evaluation(
        self,
        step: int,
        updates: int,
        scores: Sequence[float],
        lengths: Sequence[int],
        *,
        checkpoint: str = "",
        seconds: float = 0.0,
    ) -> dict[str, float]:
        """One line of evals.csv; returns the numbers in it (std is of the sample, n - 1)."""
        facts = {
            "mean": statistics.fmean(scores),
            "std": statistics.stdev(scores) if len(scores) > 1 else 0.0,
            "median": float(statistics.median(scores)),
            "min": float(min(scores)),
            "max": float(max(scores)),
            "length": statistics.fmean(lengths),
        }
        row: dict[str, Any] = {"step": step, "updates": updates, "checkpoint": checkpoint}
        row |= {"episodes": len(scores), **facts, "seconds": round(seconds, 3), **self._rules}
        columns = self._streams["evals"].columns
        self._add("evals", csv_line(row.get(name, "") for name in columns))
        return facts

    def event(self, kind: str, step: int, **fields: Any) -> None:
        """One line of events.jsonl: start, resume, checkpoint, fault, stop, end ..."""
        row = {"kind": kind, "step": step, "time": time.strftime("%Y-%m-%dT%H:%M:%S%z")}
        row.update((name, _plain(hide(value))) for name, value in fields.items())
        self._add("events", json.dumps(row, default=str) + "\n")

    def log(self, text: str, level: str = "info") -> None:
        """Time-stamped lines of log.txt."""
        stamp = time.strftime("%Y-%m-%d %H:%M:%S")
        for line in hide(text).splitlines() or [""]:
            self._add("log", f"{stamp} {level:7s} {line}\n")

    def offsets(self) -> dict[str, int]:
        """Everything on disk, and how long each file is: belongs into the checkpoint."""
        self.flush()
        for name in _RESUMED:
            self._streams[name].sync()
        return {name: self._streams[name].size for name in _RESUMED}

    def truncate(self, offsets: Mapping[str, int]) -> list[str]:
        """Forget what was written after a checkpoint. Returns warnings about lost lines."""
        warnings = []
        for name in _RESUMED:
            stream = self._streams[name]
            missing = stream.truncate(int(offsets.get(name, 0)))
            if missing:
                warnings.append(f"{stream.path.name} lacks {missing} bytes of earlier lines")
        return warnings

    @property
    def problems(self) -> list[str]:
        """Files that could not be written at the last flush; their lines wait in memory."""
        return [s.problem for s in self._streams.values() if s.problem]

    def flush(self) -> None:
        for stream in self._streams.values():
            stream.flush()
        self._flushed = time.monotonic()

    def close(self) -> None:
        for stream in self._streams.values():
            stream.close()

    def _add(self, name: str, line: str) -> None:
        self._streams[name].add(line)
        if time.monotonic() - self._flushed >= self._every:
            self.flush()


def csv_line(values: Iterable[Any]) -> str:
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerow(values)
    return buffer.getvalue()


def _first_row(path: Path) -> tuple[str, ...]:
    with open(path, newline="", encoding="utf-8") as file:
        return tuple(next(csv.reader(file), ()))


def _plain(value: Any) -> Any:
    """A JSON value: tensors and numpy scalars become numbers, nan and inf become null."""
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _whole_lines(path: Path) -> int:
    """Bytes up to the last newline: a kill may have torn the last line."""
    size = path.stat().st_size
    with open(path, "rb") as file:
        end = size
        while end > 0:
            begin = max(0, end - 65536)
            file.seek(begin)
            at = file.read(end - begin).rfind(b"\n")
            if at >= 0:
                return begin + at + 1
            end = begin
    return 0
