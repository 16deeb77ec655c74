"""Run directories with the files a comparison reads, made without training."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from ludus.track.metrics.writer import EPISODE_FIELDS, EVAL_FIELDS
from ludus.track.run_dir.rundir import RunDir

EPISODES = ",".join(EPISODE_FIELDS) + "\n"


def made_run(
    folder: Path,
    *,
    name: str = "a",
    algo: str = "dqn",
    env: str = "CartPole-v1",
    seed: int = 0,
    step: int = 1000,
    scores: Sequence[float] = (),
    episodes: str | None = None,
    evals: Sequence[tuple[int, float]] = (),
    files: Mapping[str, float] | None = None,
    protocol: tuple[str, str] | None = None,
    version: str = "0.1.0",
    settings: Mapping[str, Any] | None = None,
    status: Mapping[str, Any] | None = None,
    checkpoints: Sequence[int] = (),
    best: int | None = None,
    changed: Sequence[str] = (),
    sampled: Sequence[str] = (),
    played: int = 10,  # episodes of each file
    by: Mapping[str, Mapping[str, Any]] | None = None,  # what else a file of that label says
) -> RunDir:
    run = RunDir.create(folder, env, algo, seed, name=name)
    tree = {
        "algo": {"name": algo, **(settings or {})},
        "env": {"id": env, "workers": 0},
        "run": {"seed": seed, "steps": 1000},
    }
    run.config.write_text(yaml.safe_dump(tree))
    run.manifest.write_text(json.dumps({"versions": {"ludus": version}}))
    rules = dict(zip(("protocol", "protocol_hash"), protocol or (), strict=False))
    result = {"state": "finished", "step": step, **rules, **(status or {})}
    run.status.write_text(json.dumps(result))
    if scores:
        lines = "".join(f"{i},0,{score},10,terminal,0.1,\n" for i, score in enumerate(scores))
        run.episodes.write_text(EPISODES + lines)
    if episodes is not None:
        run.episodes.write_text(episodes)
    if evals:
        rows = [f"{at},1,,5,{mean}" + "," * (len(EVAL_FIELDS) - 5) for at, mean in evals]
        run.evals.write_text("\n".join([",".join(EVAL_FIELDS), *rows]) + "\n")
    if files:
        run.eval.mkdir()
        for stem, mean in files.items():
            value = {
                "mean": mean,
                "step": int(stem.rpartition("-")[2]),
                "episodes": played,
                **rules,
            }
            label = stem.rpartition("-")[0]
            value |= (by or {}).get(label, {})
            value |= {"changed": label in changed, "sample": label in sampled}
            (run.eval / f"{stem}.json").write_text(json.dumps(value))
    for at in checkpoints:
        (run.checkpoints / f"{at:012d}").mkdir()
    if best is not None:
        (run.checkpoints / "best").symlink_to(f"{best:012d}")
    return run
