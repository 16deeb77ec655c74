"""TensorBoard event files: a copy of metrics.jsonl, in the groups performance, agent, learner.

Uses TensorBoard's own event writer (no TensorFlow, and not torch's wrapper, which takes a second
to import). On resume, later points stay in the files and are hidden (purge_step).
"""

from __future__ import annotations

import contextlib
import struct
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ludus.errors import LudusError
from ludus.track.atomic_files import make_folder, read_bytes
from ludus.track.metrics.writer import plain
from ludus.track.run_dir.rundir import slug

GROUPS = ("performance", "agent", "learner", "actors")
# Words of a name that decide its group. A final s does not count.
_PERFORMANCE = {"score", "return", "length", "episode", "eval", "step", "update", "second", "time"}
_AGENT = {"epsilon", "entropy", "q", "value", "action", "explore", "noise", "beta", "clip"}
_LOSS = {"los", "loss"}  # `value_loss` belongs to the learner
_BEGIN, _END = b"\x89PNG\r\n\x1a\n", b"IEND\xaeB`\x82"
_LARGEST = 16 << 20  # bytes; screenshots are far smaller


def board_tag(name: str) -> str:
    """Map a metric to its TensorBoard tag: `learner/loss` stays, `epsilon` -> `agent/epsilon`."""
    first, _, rest = name.partition("/")
    if rest and first in GROUPS:
        return name
    words = set(first.removesuffix("s").split("_"))
    if first.endswith("_per_second") or (words & _PERFORMANCE and not words & _LOSS):
        return f"performance/{name}"
    return f"agent/{name}" if words & _AGENT and not words & _LOSS else f"learner/{name}"


class Board:
    """Write scalars and screenshots into `folder` (or `folder/<tag>`, which TensorBoard shows as
    the run's name).

    With enabled=False every call does nothing.
    """

    def __init__(
        self, folder: Path, *, enabled: bool = True, tag: str = "", purge_step: int | None = None
    ) -> None:
        self._writer: Any = None
        if not enabled:
            return
        try:
            from tensorboard.compat.proto import event_pb2, summary_pb2
            from tensorboard.summary.writer.event_file_writer import EventFileWriter
        except ImportError as error:
            raise LudusError(
                "E501",
                "tensorboard is not installed",
                fix="pip install tensorboard , or go without it:  log.tensorboard=off",
            ) from error
        self._events, self._summaries = event_pb2, summary_pb2
        place = make_folder(folder)
        if tag:
            place = make_folder(folder / slug(tag))
        self._writer = EventFileWriter(str(place), max_queue_size=1000, flush_secs=10)
        if purge_step is not None:
            start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
            self._writer.add_event(
                event_pb2.Event(wall_time=time.time(), step=purge_step, session_log=start)
            )

    def write(self, step: int, values: Mapping[str, Any]) -> None:
        """Write one point per finite number in `values`; skip other values."""
        if self._writer is None:
            return
        points = []
        for name, value in values.items():
            number = plain(value)
            if isinstance(number, int | float):
                tag = board_tag(name)
                points.append(self._summaries.Summary.Value(tag=tag, simple_value=float(number)))
        if points:
            self._add(step, points)

    def picture(self, step: int, tag: str, png: bytes) -> None:
        if self._writer is None:
            return
        width, height = struct.unpack(">II", png[16:24])
        image = self._summaries.Summary.Image(height=height, width=width, encoded_image_string=png)
        self._add(step, [self._summaries.Summary.Value(tag=tag, image=image)])

    def _add(self, step: int, points: list[Any]) -> None:
        summary = self._summaries.Summary(value=points)
        event = self._events.Event(wall_time=time.time(), step=step, summary=summary)
        try:
            self._writer.add_event(event)
        except OSError:  # raised for an earlier event, e.g. on a full disk
            self._writer = None  # a copy must not end the run; metrics.jsonl is the record

    def flush(self) -> None:
        if self._writer is not None:
            with contextlib.suppress(OSError):
                self._writer.flush()

    def close(self) -> None:
        if self._writer is not None:
            with contextlib.suppress(OSError):
                self._writer.close()
            self._writer = None


class Pictures:
    """Screenshots of final states (RUN/screenshots) that appear from now on. Actors write them,
    possibly in other processes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._seen = set(self._names())

    def new(self) -> list[bytes]:
        """Return new ones in the order of their numbers; skip incomplete ones until next time."""
        names = sorted(set(self._names()) - self._seen)
        found = {name: png for name in names if (png := _read_png(self.folder / name))}
        self._seen.update(found)
        return list(found.values())

    def _names(self) -> list[str]:
        try:
            return [path.name for path in self.folder.iterdir() if path.suffix == ".png"]
        except OSError:  # no folder yet
            return []


def _read_png(path: Path) -> bytes | None:
    with contextlib.suppress(OSError):
        data = read_bytes(path, _LARGEST)
        if len(data) >= 33 and data.startswith(_BEGIN) and data.endswith(_END):
            return data
    return None
