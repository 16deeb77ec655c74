"""Trained agents that come with the package: `agent:NAME` wherever a run can be evaluated.

Each is a folder with weights (model.safetensors, which carry their settings) and the logs of the
run that made them. Not runs: nothing is ever written here, and none can be resumed.
"""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

from ludus.errors import LudusError, nearest

PREFIX = "agent:"
_HOME = Path(__file__).parent


def agent_names() -> list[str]:
    return sorted(file.parent.name for file in _HOME.glob("*/model.safetensors"))


def agent_file(named: str) -> Path:
    """The weights of `agent:NAME`, or of a plain NAME."""
    name, known = named.removeprefix(PREFIX), agent_names()
    if name not in known:
        raise LudusError(
            "E303",
            f"no agent {name!r} comes with ludus{nearest(name, known)}",
            where="command line",
            why=f"there are: {', '.join(known)}",
            fix="ludus list agents",
        )
    return _HOME / name / "model.safetensors"


def describe_agents() -> list[dict[str, Any]]:
    """What each was trained with, and its score: greedy, after training, on other seeds."""
    from ludus.settings.yaml import read_file

    rows = []
    for name in agent_names():
        tree = read_file(_HOME / name / "config.yaml", follow=True).tree
        with (_HOME / name / "evals.csv").open(encoding="utf-8") as file:
            *_, score = csv.DictReader(file)
        rows.append(
            {
                "name": f"{PREFIX}{name}",
                "algo": tree["algo"]["name"],
                "env": tree["env"]["id"],
                "steps": int(score["step"]),
                "score": float(score["mean"]),
                "episodes": int(score["episodes"]),
            }
        )
    return rows
