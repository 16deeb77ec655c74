"""status.json: the current state of a run, for other processes. events.jsonl has the history."""

from __future__ import annotations

import math
import os
import shlex
import socket
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from ludus.secret_masking import hide
from ludus.track.atomic_files import load_json, read_json, reason, write_json
from ludus.track.run_dir.lock import holder
from ludus.track.run_dir.rundir import RunDir

_TEXTS = ("state", "reason", "tag", "algo", "env", "protocol", "protocol_hash", "host")
_NUMBERS = ("step", "steps", "updates", "score", "steps_per_second", "seed", "heartbeat", "pid")
_LONGEST = 10_000  # characters of a text
LIVE = ("starting", "running", "stalled", "stopping")  # states that need a living process


@dataclass
class StatusWriter:
    """Write status.json every `every` seconds at most, and whenever the state changes."""

    run: RunDir
    every: float = 5.0
    facts: dict[str, Any] = field(default_factory=dict)  # constant ones: algo, env, seed, steps
    flags: str = ""  # flags of `ludus resume` for the run's own code
    _state: str = ""
    _written: float = -math.inf
    _lock: threading.Lock = field(default_factory=threading.Lock)

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
        """Write the state: starting, running, stalled, stopping, finished, stopped or failed. The
        watchdog's thread may call it too."""
        with self._lock:
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
                "resume": f"ludus resume {shlex.quote(str(self.run.path))}{self.flags}",
            }
            with suppress(OSError):  # a full disk must not end the run; the next heartbeat retries
                write_json(self.run.status, row)


def read_status(run: RunDir) -> dict[str, Any]:
    """Read status.json. `state` is "dead" if the process that wrote it is gone; `problem` says why
    some of it cannot be read. The other fields have the types that StatusWriter writes."""
    status: dict[str, Any] = {}
    try:
        status = load_json(run.status)
        problem = _drop_wrong(status)
    except FileNotFoundError:
        problem = ""
    except (OSError, ValueError) as error:
        problem = reason(error)
    status["state"] = status.get("state") or ("unreadable" if problem else "empty")
    if problem:
        status["problem"] = f"{run.status.name}: {problem}"
    status["name"], status["path"] = run.name, str(run.path)
    if status["state"] in LIVE and holder(run.path) is None:
        status["state"] = "dead"
    return status


def _drop_wrong(status: dict[str, Any]) -> str:
    """Remove fields of the wrong type and return a message that names them."""
    wrong = {k: "text" for k in _TEXTS if not isinstance(status.get(k, ""), str | None)}
    wrong |= {k: "text" for k in _TEXTS if len(str(status.get(k))) > _LONGEST}
    wrong |= {k: "a number" for k in _NUMBERS if not _is_number(status.get(k))}
    for key in wrong:
        del status[key]
    return ", ".join(f"{key} is not {kind}" for key, kind in wrong.items())


def _is_number(value: Any) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return value is None or (number and abs(value) < 1e100)


def mark_finished(run: RunDir, step: int, updates: int) -> None:
    """Mark a run as finished if it was killed or failed after its last step was saved."""
    done = {"state": "finished", "reason": "finished", "step": step, "updates": updates}
    write_json(run.status, read_json(run.status) | done)


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
