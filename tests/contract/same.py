"""Two runs compared bit for bit, apart from what the clock wrote."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from ludus.track.checkpoint.reader import Loaded, load
from ludus.track.metrics.writer import read_metrics, without_wall_clock


def same_checkpoints(a: Path, b: Path, which: str = "last", *, replay: bool = True) -> None:
    """Weights, optimizer, counters and (unless it was saved in other pieces) replay."""
    one, two = load(a, which), load(b, which)
    assert one.step == two.step
    assert one.tensors.keys() == two.tensors.keys()
    for group in one.tensors:
        assert one.tensors[group].keys() == two.tensors[group].keys()
        for key, value in one.tensors[group].items():
            other = two.tensors[group][key]
            assert value.dtype == other.dtype and torch.equal(value, other), f"{group}: {key}"
    for key in ("score", "updates", "skipped", "scores", "actors", "barriers", "optim", "spec"):
        assert one.state.get(key) == two.state.get(key), key
    if which == "last" and replay:
        _same_replay(one, two)


def _same_replay(one: Loaded, two: Loaded) -> None:
    numbers = [dict(x.state["replay"]["numbers"]) for x in (one, two)]
    for x in numbers:
        if "roles" in x:
            x["roles"] = [dict(role) for role in x["roles"]]
        for part in (x, *x.get("roles", ())):
            part.pop("sequence", None)  # collectors count their chunks anew in every process
    assert numbers[0] == numbers[1]
    assert (one.replay is None) == (two.replay is None)
    if one.replay is not None and two.replay is not None:
        assert one.replay.names == two.replay.names
        for (name, x), (_, y) in zip(one.replay, two.replay, strict=True):
            assert x.keys() == y.keys()
            for key in x:
                np.testing.assert_array_equal(x[key], y[key], err_msg=f"{name}: {key}")


def same_metrics(a: Path, b: Path) -> None:
    """metrics.jsonl, episodes.csv and evals.csv without their clock readings."""
    lines = [[without_wall_clock(r) for r in read_metrics(p / "metrics.jsonl")] for p in (a, b)]
    assert lines[0] == lines[1] and lines[0]
    for name, columns in (("episodes.csv", slice(0, 5)), ("evals.csv", slice(0, 10))):
        rows = [
            [x.split(",")[columns] for x in (p / name).read_text().splitlines()] for p in (a, b)
        ]
        assert rows[0] == rows[1], name


def same_runs(a: Path, b: Path) -> None:
    same_checkpoints(a, b)
    same_metrics(a, b)
