"""Steps/s of a training with one actor: inline, in a process, and on Ray on this machine.

    python benchmarks/ray_speed.py --windows 8 --seconds 5
    python benchmarks/ray_speed.py --algo impala --env pong

The three trainings are built side by side and take turns in windows of time, so that a slow change
of the machine favours none; while one is measured, the actors of the others wait with full
buffers. The first part of a window, in which they are emptied, does not count. Rows go to
benchmarks/results/ray_speed.jsonl. The load of the machine is in the row: figures of a busy one say
little.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import facts

import ludus
from ludus import registry
from ludus.bench.speed import machine
from ludus.run.build import build_loop
from ludus.run.loop import Loop
from ludus.track.run_dir.rundir import RunDir

RESULTS = Path(__file__).parent / "results" / "ray_speed.jsonl"
FLEETS = ("inline", "processes", "ray")
EMPTIED = 1.0  # seconds of a window that do not count


def loop_of(algo: str, env: str, fleet: str, folder: Path) -> Loop:
    settings = {"run.fleet": fleet, "run.steps": 10_000_000, "run.save_replay": "off"}
    cfg = ludus.config(algo, env, **settings)
    loop, _ = build_loop(cfg, registry.make(cfg.algo), RunDir(folder / fleet))
    loop.barrier(0)
    while not loop.learner.updates:
        loop.iterate()
    return loop


def rate(loop: Loop, seconds: float) -> float:
    """Steps per second of one window."""
    for limit in (EMPTIED, seconds):
        step, start = loop.step, time.perf_counter()
        while time.perf_counter() - start < limit:
            loop.iterate()
        end = time.perf_counter()
    return (loop.step - step) / (end - start)


def measure(algo: str, env: str, windows: int, seconds: float) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="ludus-") as folder:
        loops = {fleet: loop_of(algo, env, fleet, Path(folder)) for fleet in FLEETS}
        rates: dict[str, list[float]] = {fleet: [] for fleet in FLEETS}
        for number in range(windows):
            for fleet in FLEETS if number % 2 else reversed(FLEETS):
                rates[fleet].append(rate(loops[fleet], seconds))
        for loop in loops.values():
            loop.close()
    shares = {
        fleet: statistics.median(a / b for a, b in zip(rates[fleet], rates["inline"], strict=True))
        for fleet in FLEETS[1:]
    }
    return {
        "algo": algo, "env": env, "window_seconds": seconds, "share_of_inline": shares,
        "steps_per_second": {k: round(statistics.fmean(v)) for k, v in rates.items()},
        "windows": {k: [round(r) for r in v] for k, v in rates.items()},
        "load": os.getloadavg()[0], "commit": facts.commit(), "machine": machine(),
    }  # fmt: skip


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--algo", default="dqn")
    parser.add_argument("--env", default="CartPole-v1")
    parser.add_argument("--windows", type=int, default=8, help="of each fleet")
    parser.add_argument("--seconds", type=float, default=5.0, help="of one window")
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args(words)
    row = measure(args.algo, args.env, args.windows, args.seconds)
    facts.append(args.out, row)
    print(json.dumps(row))


if __name__ == "__main__":
    main()
