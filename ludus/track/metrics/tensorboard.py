"""TensorBoard event files: a copy of metrics.jsonl, in the groups performance, agent, learner.

Uses TensorBoard's own event writer (no TensorFlow, and not torch's wrapper, which takes a second
to import). On resume, later points stay in the files and are hidden (purge_step).
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ludus.errors import LudusError
from ludus.track.atomic_files import make_folder
from ludus.track.metrics.pictures import Picture
from ludus.track.run_dir.rundir import slug

GROUPS = ("performance", "agent", "learner", "actors")
_PERFORMANCE = (
    "score",
    "return",
    "length",
    "episode",
    "eval",
    "steps",
    "updates",
    "seconds",
    "time",
)
_AGENT = (
    "epsilon",
    "entropy",
    "q",
    "value",
    "action",
    "explore",
    "noise",
    "log_std",
    "beta",
    "clip",
)


def board_tag(name: str) -> str:
    """Map a metric to its TensorBoard tag: `learner/loss` stays, `epsilon` -> `agent/epsilon`."""
    first, _, rest = name.partition("/")
    if rest and first in GROUPS:
        return name
    if any(_is_word(first, word) for word in _PERFORMANCE) or first.endswith("_per_second"):
        return f"performance/{name}"
    return f"agent/{name}" if any(_is_word(first, word) for word in _AGENT) else f"learner/{name}"


def _is_word(name: str, word: str) -> bool:
    """Match `q`, `q_mean` and `mean_q`, but not `value_loss`: losses belong to the learner."""
    parts = name.removesuffix("s").split("_")
    return "los" not in parts and "loss" not in parts and word.removesuffix("s") in parts


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
            number = value.item() if hasattr(value, "item") else value
            if isinstance(number, int | float) and math.isfinite(number):
                tag = board_tag(name)
                points.append(self._summaries.Summary.Value(tag=tag, simple_value=float(number)))
        if points:
            self._add(step, points)

    def picture(self, step: int, tag: str, picture: Picture) -> None:
        if self._writer is None:
            return
        image = self._summaries.Summary.Image(
            height=picture.height, width=picture.width, encoded_image_string=picture.data
        )
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
