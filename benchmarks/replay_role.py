"""A replay role against a replay with the learner: updates per second on Atari-shaped rows, and the
share of time in which the learner waits for samples.

    python benchmarks/replay_role.py rates --seconds 20
    python benchmarks/replay_role.py wait --steps 30k
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

import ludus
from ludus import registry
from ludus.collect.collector import Collected
from ludus.run.build import build_loop
from ludus.track.metrics.writer import read_metrics
from ludus.track.run_dir.rundir import RunDir

ROWS = 4_000  # in the replay before the measurement


def rate(replays: int, args: argparse.Namespace) -> dict[str, Any]:
    """Updates per second of `apex-dqn` with as many updates due as the learner can do. All rows are
    collected before, so that no emulator takes a core."""
    cfg = ludus.config(
        "apex-dqn", args.env,
        **{
            "algo.batch": args.batch, "algo.capacity": args.capacity, "algo.warmup": ROWS,
            "algo.replay_ratio": 1e6, "run.replays": replays, "run.prefetch": args.prefetch,
            "run.device": args.device, "run.overlap": "off", "run.actors": max(1, replays),
            "actor.lockstep": "off", "algo.replay.initial": "largest", "run.steps": 1_000_000,
        },
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        loop, _ = build_loop(cfg, registry.make(cfg.algo), RunDir(Path(folder)))
        try:
            loop.barrier(0)
            values = loop.values.at(0)
            loop.fleet.publish(loop.learner.net, 0)
            copied, chunks = 0.0, 0
            while loop.step < ROWS:
                got: list[Collected] = loop.fleet.poll(values)
                start = time.perf_counter()
                for one in got:
                    loop.store.add(one.chunk)
                copied, chunks = copied + time.perf_counter() - start, chunks + len(got)
                loop._count(got)
            return measured(loop, values, args.seconds) | {"add_us": 1e6 * copied / chunks}
        finally:
            loop.close()


def measured(loop: Any, values: dict[str, torch.Tensor], seconds: float) -> dict[str, Any]:
    """Learn for so long: the store is due all the time, so it is told to stop by the clock."""
    store, ready = loop.store, loop.store.ready
    until = time.perf_counter() + 3.0
    store.ready = lambda: time.perf_counter() < until and ready()
    loop.updates.start(values)  # libraries, graphs, first samples
    loop.updates.finish()
    waited, updates, start = getattr(store, "wait_seconds", 0.0), loop.learner.updates, None
    start = time.perf_counter()
    until = start + seconds
    loop.updates.start(values)
    loop.updates.finish()
    spent = time.perf_counter() - start
    return {
        "updates_per_second": (loop.learner.updates - updates) / spent,
        "wait": (getattr(store, "wait_seconds", 0.0) - waited) / spent,
        "mode": loop.updates.mode,
    }


def wait(args: argparse.Namespace) -> dict[str, Any]:
    """The wait share of a whole run of `apex-dqn` on CartPole: 2 actors and a role."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            [sys.executable, "-m", "ludus", "train", "apex-dqn", "CartPole-v1", "fleet=processes",
             "actors=2", "run.replays=1", f"steps={args.steps}", f"prefetch={args.prefetch}",
             "log.tensorboard=false", "log.report=false", "--runs-dir", folder, "--run", "x",
             "--quiet"],
            check=True,
        )  # fmt: skip
        last = read_metrics(Path(folder) / "x" / "metrics.jsonl")[-1]
    names = (
        "step", "updates", "learner/updates_per_second", "performance/steps_per_second",
        "time/learn", "time/replay_wait", "replay/samples_per_step", "performance/score",
    )  # fmt: skip
    return {name: last.get(name) for name in names}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("rates", "wait"))
    parser.add_argument("--env", default="ALE/Pong-v5")
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--capacity", type=int, default=20_000)
    parser.add_argument("--prefetch", default="2")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--replays", type=int, nargs="*", default=[0, 1, 2])
    parser.add_argument("--steps", default="30k")
    args = parser.parse_args()
    if args.what == "wait":
        print(json.dumps(wait(args)))
        return
    args.prefetch = int(args.prefetch)
    for replays in args.replays:
        print(json.dumps({"replays": replays, "batch": args.batch, **rate(replays, args)}))


if __name__ == "__main__":
    main()
