"""The process that talks to W&B or Trackio: `python -m ludus.track.metrics.tracker_process wandb`.

It reads JSON lines from standard input: first the start options, then points, then the end state.
An error of a library or the network does not reach the run (trackers.py is the run's side).
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Protocol

from ludus.process.child import kill_group_after_parent
from ludus.process.signals import ignore_signals

NICE = 10  # training comes first where cores are short
ORPHAN_SECONDS = 60.0  # time to finish after the run is gone; then the process is killed


class Service(Protocol):
    def log(self, step: int, values: Mapping[str, float]) -> None: ...

    def end(self, state: str) -> None: ...


class Wandb:
    """One W&B run per ludus run; a resumed run keeps the id."""

    def __init__(self, start: Mapping[str, Any]) -> None:
        wandb = importlib.import_module("wandb")
        how = start["settings"]
        self._run = wandb.init(
            project=how["project"], entity=how["entity"], group=how["group"], mode=how["mode"],
            id=start["id"], name=start["name"], config=start["config"], dir=start["folder"],
            tags=[start["tag"]] if start["tag"] else None, resume="allow",
        )  # fmt: skip
        # Use a step metric of our own: W&B's step cannot go back to a checkpoint.
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log({**values, "step": step})

    def end(self, state: str) -> None:
        self._run.finish(exit_code=0 if state == "finished" else 1)


class Trackio:
    """One Trackio run per ludus run. Trackio identifies it by its name, which must be unique."""

    def __init__(self, start: Mapping[str, Any]) -> None:
        trackio = importlib.import_module("trackio")
        how, tag = start["settings"], start["tag"]
        name = f"{start['name']}-{start['id'][:4]}"
        self._run = trackio.init(
            project=how["project"], name=name, group=how["group"] or tag or None,
            space_id=how["space"], config=start["config"], resume="allow", embed=False,
        )  # fmt: skip
        self._finish: Callable[[], None] = trackio.finish

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=step)

    def end(self, state: str) -> None:
        self._finish()


SERVICES: dict[str, Callable[[Mapping[str, Any]], Service]] = {"wandb": Wandb, "trackio": Trackio}


def main() -> None:
    ignore_signals()
    with suppress(OSError):
        os.nice(NICE)
    kill_group_after_parent(ORPHAN_SECONDS)
    lines = sys.stdin.buffer
    service, state = SERVICES[sys.argv[1]](json.loads(lines.readline())), "killed"
    for line in lines:
        if not line.endswith(b"\n"):  # the run was killed while writing it
            break
        row = json.loads(line)
        if "end" in row:
            state = row["end"]
            break
        service.log(row["step"], row["values"])
    service.end(state)


if __name__ == "__main__":
    main()
