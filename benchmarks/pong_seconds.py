"""Seconds of training until Pong is won: mean raw score of the last 100 training games >= 18.

    python benchmarks/pong_seconds.py ppo --seeds 1 2 3            # the preset, until 18 or --limit
    python benchmarks/pong_seconds.py ppo --seeds 11 algo.lr=1e-3  # a trial of other settings

No sticky actions, minimal actions, whole games. The clock starts at the first training step; what
came before it (building emulators) and the capture of graphs (inside it) are reported beside it.
Ordinary runs with metrics and CSV on. Rows go to benchmarks/results/pong_seconds.jsonl.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path

import torch
import yaml

import ludus
from ludus.bench.speed import machine

HERE = Path(__file__).parent
PROTOCOL = {"env.protocol": "dqn-2015", "env.atari.life_loss": "ignore", "env.reward_clip": "sign"}


class Stopwatch(ludus.Callback):
    """Stops the run when the last 100 whole games average the target."""

    def __init__(self, target: float, limit: float) -> None:
        self.target, self.limit = target, limit
        self.scores: list[float] = []
        self.curve: list[tuple[float, int, float]] = []
        self.started = self.told = 0.0
        self.solved: float | None = None

    def on_start(self, run) -> None:
        self.started, self.told = time.perf_counter(), 0.0

    def on_episode(self, run, episode) -> None:
        if episode.end == "checkpoint":
            return
        self.scores.append(episode.score)
        now = time.perf_counter() - self.started
        mean = sum(self.scores[-100:]) / len(self.scores[-100:])
        if now - self.told > 2:
            self.told = now
            self.curve.append((round(now, 1), run.step, round(mean, 2)))
        if len(self.scores) >= 100 and mean >= self.target and self.solved is None:
            self.solved = now
            run.stop("solved")
        elif now > self.limit:
            run.stop("time")


def one(algo: str, preset: str, seed: int, target: float, limit: float, settings: dict) -> dict:
    start = time.perf_counter()
    watch = Stopwatch(target, limit)
    quiet = {"log.tensorboard": False, "run.save_replay": "off"}
    every = {**PROTOCOL, **quiet, **settings}
    cfg = ludus.config(algo, "pong", preset=preset, seed=seed, **every)
    with tempfile.TemporaryDirectory(prefix="ludus-") as folder:
        run = ludus.train(cfg, runs_dir=folder, quiet=True, callbacks=[watch])
        status = json.loads((run.path / "status.json").read_text())
    spent = time.perf_counter() - watch.started
    return {
        "algo": algo, "preset": preset, "settings": settings, "seed": seed, "target": target,
        "solved_seconds": watch.solved, "before_first_step_seconds": watch.started - start,
        "seconds": spent, "steps": run.step, "frames": run.step * 4, "updates": run.updates,
        "steps_per_second": run.step / spent, "games": len(watch.scores),
        "final_100": sum(watch.scores[-100:]) / max(1, len(watch.scores[-100:])),
        "capture_seconds": status.get("capture_seconds"),
        "compute": status.get("compute"), "curve": watch.curve, "machine": machine(),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("algo")
    parser.add_argument("settings", nargs="*")
    parser.add_argument("--preset", default="atari-fast")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--target", type=float, default=18.0)
    parser.add_argument("--limit", type=float, default=120.0)
    parser.add_argument("--out", type=Path, default=HERE / "results" / "pong_seconds.jsonl")
    args = parser.parse_intermixed_args()
    words = (word.split("=", 1) for word in args.settings)
    settings = {key: yaml.safe_load(value) for key, value in words}
    for seed in args.seeds:
        row = one(args.algo, args.preset, seed, args.target, args.limit, settings)
        with args.out.open("a") as file:
            file.write(json.dumps(row) + "\n")
        shown = {k: v for k, v in row.items() if k not in ("curve", "machine", "compute")}
        print(json.dumps(shown), row["curve"][::5], flush=True)
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
