"""Trackers (W&B, Trackio): send copies of the metrics to external services. Each tracker runs in
its own process (tracker_process.py) and reads from a pipe.

Only `close_all` waits for a tracker, for a few seconds at most. The pipe does not block, lines
wait in a bounded queue, and lines that do not fit are dropped, counted and reported.
"""

from __future__ import annotations

import importlib.util
import json
import os
import secrets
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ludus.errors import LudusError, install_extra
from ludus.process.supervisor import kill_group, start_detached
from ludus.track.atomic_files import make_folder, open_append, read_json, read_tail, write_json
from ludus.track.metrics.writer import plain
from ludus.track.run_dir.rundir import RunDir

KINDS = ("wandb", "trackio")
QUEUE = 1_000  # lines that may wait for a slow tracker; the oldest are dropped
END_SECONDS = 10.0  # time limit for all trackers together to finish when the run ends


def asked(log: Mapping[str, Any]) -> list[str]:
    """Return the trackers that section `log` of a configuration switches on."""
    return [kind for kind in KINDS if log.get(kind) is not None]


def check_trackers(log: Mapping[str, Any]) -> None:
    """Raise an error for a tracker that is not installed, before anything starts."""
    for kind in asked(log):
        spec = importlib.util.find_spec(kind)
        if spec is None or spec.origin is None:  # W&B creates a folder of that name
            raise LudusError(
                "E501",
                f"{kind} is not installed",
                where=f"log.{kind}",
                fix=f"{install_extra(kind)}, or go without it:  log.{kind}=off",
            )


class Tracker:
    """The run's side of one tracker process."""

    def __init__(
        self, kind: str, start: Mapping[str, Any], log: Path, say: Callable[[str], None]
    ) -> None:
        self.kind, self.dropped, self._log, self._say = kind, 0, log, say
        self._lines: deque[bytes] = deque()
        self._sending = memoryview(b"")  # the unsent rest of a line
        self._gone = False  # its process ended before the run; this was reported
        with open_append(log) as out:
            self._process = start_detached("ludus.track.metrics.tracker_process", kind, out=out)
        assert self._process.stdin is not None
        self._pipe = self._process.stdin
        self._send(start)

    @property
    def waiting(self) -> int:
        """Number of lines not yet sent to the tracker's process."""
        return len(self._lines) + bool(self._sending)

    def write(self, step: int, values: Mapping[str, Any]) -> None:
        """Send the finite numbers of one point. Never waits."""
        numbers = {name: plain(value) for name, value in values.items()}
        found = {name: number for name, number in numbers.items() if _is_number(number)}
        if found:
            self._send({"step": step, "values": found})

    def _send(self, row: Mapping[str, Any]) -> None:
        if self._gone:
            return
        if len(self._lines) >= QUEUE:
            self._lines.popleft()
            self.dropped += 1
            if self.dropped == 1:
                self._say(f"warning: {self.kind} does not keep up; what it misses is dropped")
        self._lines.append(json.dumps(row, default=str).encode() + b"\n")
        self._push()

    def _push(self) -> None:
        """Write as much as the pipe takes now."""
        while self.waiting and not self._gone:
            if not self._sending:
                self._sending = memoryview(self._lines.popleft())
            try:
                sent = os.write(self._pipe.fileno(), self._sending)
            except BlockingIOError:
                return
            except OSError:
                self._lost()
                return
            self._sending = self._sending[sent:]

    def _lost(self) -> None:
        self._gone = True
        lines = read_tail(self._log).strip().splitlines()
        why = f": {lines[-1].strip()}" if lines else ""
        self._say(f"warning: {self.kind} failed{why}; the run goes on without it ({self._log})")

    def ending(self, state: str) -> None:
        """Send the end of the run to the tracker."""
        self._send({"end": state})

    def wait(self, until: float) -> None:
        """Wait until `until` (time.monotonic()) for it to finish, then kill it."""
        while self._process.poll() is None and time.monotonic() < until:
            self._push()
            time.sleep(0.02)
        if self._process.poll() is None:
            self._say(f"warning: {self.kind} did not finish in time and was stopped")
        elif self._process.returncode and not self._gone:
            self._lost()
        kill_group(self._process)
        missed = self.dropped + self.waiting
        if missed:
            self._say(f"warning: {self.kind} missed {missed} lines of metrics")


def open_trackers(
    run: RunDir, config: Mapping[str, Any], say: Callable[[str], None]
) -> list[Tracker]:
    """Start the trackers that `config` (all settings) switches on."""
    log = config["log"]
    check_trackers(log)
    made = []
    for kind in asked(log):
        if kind == "wandb":  # it writes into a folder of that name
            make_folder(run.path / kind)
        start = {
            "id": _identity(run),
            "name": run.name,
            "tag": log["tag"],
            "folder": str(run.path),
            "settings": log[kind],
            "config": config,
        }
        made.append(Tracker(kind, start, run.path / f"tracker-{kind}.txt", say))
    return made


def close_all(trackers: Sequence[Tracker], state: str) -> None:
    until = time.monotonic() + END_SECONDS
    for tracker in trackers:
        tracker.ending(state)
    for tracker in trackers:
        tracker.wait(until)


def _identity(run: RunDir) -> str:
    """Return the id of the run at a service; it is stored so that a resumed run keeps it."""
    path = run.path / "trackers.json"
    known = read_json(path).get("id")
    if isinstance(known, str):
        return known
    made = secrets.token_hex(8)
    write_json(path, {"id": made})
    return made


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
