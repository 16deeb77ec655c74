"""What is recorded with every figure: the code, the settings and the rules of the game."""

from __future__ import annotations

import csv
import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ludus.settings.resolve import Config

HERE = Path(__file__).parent


def commit() -> str:
    """Of the code that ran. BENCH_COMMIT says it where only the files were copied."""
    given = os.environ.get("BENCH_COMMIT")
    if given:
        return given
    words = ["git", "describe", "--always", "--dirty", "--exclude", "*"]
    try:
        done = subprocess.run(words, capture_output=True, text=True, cwd=HERE, check=False)
    except OSError:
        return "unknown"
    return done.stdout.strip() or "unknown"


def rules(cfg: Config) -> dict[str, Any]:
    """Which game was really played: the protocol's label and hash, and what is most asked about."""
    flags = cfg.env.atari
    assert flags is not None, "an Atari game"
    asked = ("life_loss", "max_frames", "sticky", "full_actions", "noops")
    return {**cfg.env.score_facts, "rules": {name: getattr(flags, name) for name in asked}}


def run_facts(cfg: Config, status: Mapping[str, Any]) -> dict[str, Any]:
    """Of a training run, from its settings and its status.json."""
    compute = status.get("compute", {})
    return {
        "config": cfg.digest(),
        "envs": cfg.env.num_envs,
        "precision": compute.get("precision"),
        "compute": compute,
        "capture_seconds": status.get("capture_seconds"),
        "commit": commit(),
        **rules(cfg),
    }


def games(run: Path) -> list[tuple[int, float]]:
    """(agent step, raw score) of every game that was not cut by a checkpoint."""
    with (run / "episodes.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["end"] != "checkpoint"]
    return [(int(row["step"]), float(row["score"])) for row in rows]


def append(path: Path, row: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")
