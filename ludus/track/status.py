"""status.json: what a run is doing now, for other processes. Not a history (events.jsonl is)."""

from __future__ import annotations

import math
import os
import socket
import time
from dataclasses import dataclass, field
from typing import Any

from ludus.masking import hide
from ludus.track.files import read_json, write_json
from ludus.track.lock import holder
from ludus.track.rundir import RunDir

LIVE = ("starting", "running", "stopping")  # states that need a living process


@dataclass
class StatusWriter:
    """Replaces status.json at most every `every` seconds, at once when the state changes."""

    run: RunDir
    every: float = 5.0
    facts: dict[str, Any] = field(default_factory=dict)  # constant ones: algo, env, seed, steps
    _state: str = ""
    _written: float = -math.inf

    def due(self) -> bool:
        return time.monotonic() - self._written >= self.every

    def beat(
        self,
        state: str,
        step: int,
        updates: int,
        *,
        score: float | None = None,
        steps_per_second: float | None = None,
        **more: Any,
    ) -> None:
        """state: starting, running, stopping, finished, stopped or failed."""
        if state == self._state and not self.due():
            return
        self._state, self._written = state, time.monotonic()
        row = {
            "state": state,
            "step": step,
            "updates": updates,
            "score": _finite(score),
            "steps_per_second": _finite(steps_per_second),
            **self.facts,
            **hide(more),
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "heartbeat": round(time.time(), 3),
            "resume": f"ludus resume {self.run.path}",
        }
        try:
            write_json(self.run.status, row)
        except OSError:
            return  # a full disk must not end the run; the next beat tries again


def read_status(run: RunDir) -> dict[str, Any]:
    """status.json, with `state` = dead when the process that wrote it is gone."""
    status = read_json(run.status)
    status.setdefault("state", "empty")
    status["name"], status["path"] = run.name, str(run.path)
    if status["state"] in LIVE and holder(run.path) is None:
        status["state"] = "dead"
    return status


def mark_finished(run: RunDir, step: int, updates: int) -> None:
    """Of a run that was cut off or failed after its last step was saved."""
    done = {"state": "finished", "reason": "finished", "step": step, "updates": updates}
    write_json(run.status, read_json(run.status) | done)


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
