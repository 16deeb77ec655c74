"""Write the files that a run appends to: metrics.jsonl, episodes.csv, evals.csv, events.jsonl,
log.txt.

Lines are buffered and written about once a second, at `offsets()` (every checkpoint) and at
`close()`. TensorBoard gets a copy of them. On a full disk, lines wait in a bounded buffer and are
retried at growing intervals. Fields that depend on the clock follow one naming rule
(`is_wall_clock`), so that two runs can be compared without them.
"""

from __future__ import annotations

import csv
import errno
import io
import json
import math
import os
import statistics
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ludus.errors import LudusError
from ludus.secret_masking import hide
from ludus.track.atomic_files import LINE, open_append, open_read, parse_json, whole_lines, writing
from ludus.track.run_dir.rundir import RunDir
from ludus.units import show_bytes, show_seconds

if TYPE_CHECKING:
    from ludus.types import EpisodeEnd

EPISODE_FIELDS = ("step", "slot", "score", "length", "end", "seconds", "info")
EVAL_FIELDS = (
    "step", "updates", "checkpoint", "episodes", "mean", "std", "median", "min", "max", "length",
    "seconds", "protocol", "protocol_hash",
)  # fmt: skip
_RESUMED = ("metrics", "episodes", "evals", "events")  # truncated on resume; log.txt is not
_SESSION = ("start", "resume", "end", "failed")  # events that a resume does not remove
BUFFER = 8 << 20  # characters buffered per file while the disk refuses writes
_RETRIES = 1.0, 60.0  # seconds between write attempts after an error: first, longest


def is_wall_clock(name: str) -> bool:
    """Whether a field depends on the clock or the machine and not on the run: time, seconds,
    x_per_second, x_bytes."""
    last = name.rsplit("/", 1)[-1]
    return (
        name.startswith("time/")
        or last in ("time", "seconds")
        or last.endswith(("_seconds", "_per_second", "_bytes"))
    )


def without_wall_clock(row: Mapping[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in row.items() if not is_wall_clock(k)}


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Read a metrics.jsonl or events.jsonl; skip incomplete and damaged lines."""
    rows = []
    for line in whole_lines(path):
        with suppress(ValueError):  # a damaged line
            rows.append(parse_json(line))
    return [row for row in rows if isinstance(row, dict)]


class _Stream:
    """An append-only file with a buffer and a known size."""

    def __init__(self, path: Path, header: Sequence[str] | None = None) -> None:
        self.path = path
        elsewhere = "choose a writable place with  --runs-dir DIR"
        with writing(f"cannot write {path.name}", path, elsewhere):
            self._file = open_append(path)
            self.size = _whole_lines(path)
        self.lines: deque[str] = deque()  # in memory
        self.problem = ""
        self.waiting = 0  # characters
        self.kept = self.dropped = 0  # lines written late and lines dropped, since the last error
        self._file.truncate(self.size)
        self._header = tuple(header or ())
        # Keep the columns of an existing file, even if this version has more.
        self.columns = _first_row(path) if header and self.size else self._header
        self._synced = self.size

    def add(self, line: str) -> None:
        self.lines.append(line)
        self.waiting += len(line)
        while self.problem and self.waiting > BUFFER and len(self.lines) > 1:
            self.waiting -= len(self.lines.popleft())
            self.dropped += 1

    def flush(self) -> None:
        header = csv_line(self._header) if self._header and self.size == 0 else ""
        data = "".join([header, *self.lines]).encode()
        if not data:
            self.problem = ""
            return
        try:
            self._write(data)
        except OSError as error:  # a full disk must not end the run: keep the lines, retry
            self.problem = f"{self.path.name}: {error.strerror}"
            with suppress(OSError):
                self._file.truncate(self.size)
            return
        if self.problem:
            self.kept += len(self.lines)
        self.problem, self.waiting = "", 0
        self.lines.clear()
        self.size += len(data)

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[self._file.write(view) :]

    def sync(self) -> None:
        """Flush and fsync. Raise on an error, which `flush` would only store."""
        self.flush()
        if not self.problem and self._synced != self.size:
            try:
                os.fsync(self._file.fileno())
                self._synced = self.size
            except OSError as error:
                self.problem = f"{self.path.name}: {error.strerror}"
        if self.problem:
            raise LudusError(
                "E301",
                f"cannot write {self.problem}",
                where=str(self.path),
                why="the disk is full, or the directory went away or became read-only",
                fix="free some space, or choose another place with  --runs-dir DIR",
            )

    def truncate(self, size: int, keep: Callable[[str], bool] | None = None) -> int:
        """Cut the file to `size` bytes, except later lines that `keep` accepts. Return the number
        of bytes missing from the file."""
        self.flush()
        kept = [line for line in self._after(size) if keep(line)] if keep is not None else []
        missing = max(0, size - self.size)
        self.size = self._synced = min(size, self.size)
        self._file.truncate(self.size)
        if self.size == 0:
            self.columns = self._header
        for line in kept:
            self.add(line)
        self.flush()
        return missing

    def _after(self, size: int) -> list[str]:
        with open_read(self.path) as file:
            file.seek(min(size, self.size))
            return file.read(4 * LINE).decode(errors="replace").splitlines(keepends=True)

    def close(self) -> None:
        self._file.close()


class MetricWriter:
    """Write a run's files. `seconds` is the run's age at the start (not 0 after a resume). `rules`
    go into every line with a score: protocol and protocol_hash of an Atari game. `say` receives
    messages about disk errors and their end."""

    def __init__(
        self,
        run: RunDir,
        *,
        seconds: float = 0.0,
        episodes_path: Path | None = None,
        flush_every: float = 1.0,
        rules: Mapping[str, str] | None = None,
        say: Callable[[str], None] | None = None,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self._streams = {
            "metrics": _Stream(run.metrics),
            "episodes": _Stream(episodes_path or run.episodes, EPISODE_FIELDS),
            "evals": _Stream(run.evals, EVAL_FIELDS),
            "events": _Stream(run.events),
            "log": _Stream(run.log),
        }
        self._before = seconds
        self._clock, self._say = clock or time.monotonic, say or (lambda text: None)
        self._started = self._flushed = self._clock()
        self._every, self._rules = flush_every, dict(rules or {})
        self._pause = flush_every  # longer after disk errors
        self._refused_at: float | None = None
        self._step = 0  # of the newest line
        self._lock = threading.RLock()  # the watchdog's thread reports too

    @property
    def seconds(self) -> float:
        """Wall-clock age of the run, earlier sessions included."""
        return self._before + self._clock() - self._started

    def metrics(self, step: int, updates: int, values: Mapping[str, Any]) -> None:
        """Write one line of metrics.jsonl. Values: numbers, 0-d tensors, text, lists of plain
        numbers. Numbers that are not finite become null."""
        self._step = step
        row = {"step": step, "updates": updates, "seconds": round(self.seconds, 3)}
        row.update((name, plain(value)) for name, value in values.items())
        self._add("metrics", json.dumps(row, separators=(",", ":")) + "\n")

    def episode(
        self, step: int, episode: EpisodeEnd, extra: Mapping[str, float] | None = None
    ) -> None:
        """Write one line of episodes.csv; call it once per EpisodeEnd."""
        self._step = step
        info = {**episode.info, **(extra or {})}
        details = json.dumps({k: plain(v) for k, v in info.items()}) if info else ""
        score, seconds = plain(episode.score), round(self.seconds, 3)
        row = (step, episode.env, score, episode.length, episode.end, seconds, details)
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
        """Write one line of evals.csv and return its numbers (std is of the sample, n - 1)."""
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
        """Write one line of events.jsonl: start, resume, checkpoint, fault, stop, end ..."""
        row = {"kind": kind, "step": step, "time": time.strftime("%Y-%m-%dT%H:%M:%S%z")}
        row.update((name, plain(hide(value))) for name, value in fields.items())
        self._add("events", json.dumps(row, default=str) + "\n")

    def log(self, text: str, level: str = "info") -> None:
        """Write time-stamped lines to log.txt."""
        stamp = time.strftime("%Y-%m-%d %H:%M:%S")
        for line in hide(text).splitlines() or [""]:
            self._add("log", f"{stamp} {level:7s} {line}\n")

    def offsets(self) -> dict[str, int]:
        """Sync all files and return their sizes, which the checkpoint stores."""
        self.flush()
        for name in _RESUMED:
            self._streams[name].sync()
        return {name: self._streams[name].size for name in _RESUMED}

    def truncate(self, offsets: Mapping[str, int], step: int = 0) -> list[str]:
        """Remove lines written after the checkpoint of `step`, except the start and end of sessions
        in events.jsonl. Return warnings about lost lines."""

        def happened(line: str) -> bool:
            with suppress(ValueError, AttributeError):
                event = parse_json(line)
                saved = event.get("kind") == "checkpoint" and event.get("step") == step
                return saved or event.get("kind") in _SESSION
            return False

        warnings = []
        for name in _RESUMED:
            stream, events = self._streams[name], name == "events"
            if events and name not in offsets:
                continue  # an older version's checkpoint
            missing = stream.truncate(int(offsets.get(name, 0)), happened if events else None)
            if missing:
                warnings.append(f"{stream.path.name} lacks {missing} bytes of earlier lines")
        return warnings

    @property
    def problems(self) -> list[str]:
        """Errors of the last flush, one per file; the lines wait in memory."""
        return [s.problem for s in self._streams.values() if s.problem]

    @property
    def waiting(self) -> int:
        """Number of characters in memory."""
        return sum(s.waiting for s in self._streams.values())

    def flush(self) -> None:
        with self._lock:
            for stream in self._streams.values():
                stream.flush()
            self._flushed = self._clock()
            self._report()

    def close(self) -> None:
        self.flush()
        if self.problems:
            lost = sum(len(s.lines) + s.dropped for s in self._streams.values())
            self._say(f"warning: {lost} lines are lost: cannot write {'; '.join(self.problems)}")
        for stream in self._streams.values():
            stream.close()

    def _report(self) -> None:
        """Report disk errors and their end; retry at growing intervals."""
        problems, first, most = self.problems, *_RETRIES
        if not problems and self._refused_at is None:
            return
        if self._refused_at is None:
            self._refused_at, self._pause = self._flushed, max(first, self._every)
            self.event("disk full", self._step, error=problems[0])
            size = show_bytes(BUFFER)
            self._say(f"warning: cannot write {problems[0]}; lines wait in memory, {size} a file")
        elif problems:
            self._pause = min(2 * self._pause, most)
        else:
            seconds, self._refused_at = self._flushed - self._refused_at, None
            self._pause = self._every
            kept, dropped = self._take_counts()
            self.event("disk written again", self._step, kept=kept, dropped=dropped)
            self._say(
                f"the run's files are written again after {show_seconds(seconds)}: "
                f"{kept} lines kept, {dropped or 'none'} dropped"
            )

    def _take_counts(self) -> tuple[int, int]:
        streams = self._streams.values()
        kept, dropped = sum(s.kept for s in streams), sum(s.dropped for s in streams)
        for stream in streams:
            stream.kept = stream.dropped = 0
        return kept, dropped

    def _add(self, name: str, line: str) -> None:
        with self._lock:
            self._streams[name].add(line)
            if self._clock() - self._flushed >= self._pause:
                self.flush()


def csv_line(values: Iterable[Any]) -> str:
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerow(values)
    return buffer.getvalue()


def _first_row(path: Path) -> tuple[str, ...]:
    with open_read(path) as file:
        line = file.readline(LINE).decode("utf-8", "replace")
    with suppress(csv.Error):
        return tuple(next(csv.reader([line]), ()))
    return ()


def plain(value: Any) -> Any:
    """Return a JSON value: tensors and numpy scalars become numbers, nan and inf become null."""
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _whole_lines(path: Path) -> int:
    """Return the size up to the last newline: a kill may leave an incomplete last line."""
    with open_read(path) as file:
        size = end = file.seek(0, os.SEEK_END)
        while end > 0:
            if size - end > LINE:
                raise OSError(errno.EINVAL, "its end is damaged: move it out of the run", str(path))
            begin = max(0, end - 65536)
            file.seek(begin)
            at = file.read(end - begin).rfind(b"\n")
            if at >= 0:
                return begin + at + 1
            end = begin
    return 0
