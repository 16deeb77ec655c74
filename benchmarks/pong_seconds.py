"""Seconds of training until Pong is won: mean raw score of the last 100 training games >= 18.

    python benchmarks/pong_seconds.py ppo --seeds 1 2 3            # the preset, until 18 or --limit
    python benchmarks/pong_seconds.py ppo --seeds 11 algo.lr=1e-3  # a trial of other settings

No sticky actions, minimal actions, whole games of up to 108,000 frames. The clock starts at the
first training step; what came before it (building emulators) and the capture of graphs (inside it)
are reported with it. Ordinary runs with metrics and CSV on. Rows, with the protocol's label and
hash, go to benchmarks/results/pong_seconds.jsonl; --trial marks those that only choose settings.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

import facts
import torch
import yaml

import ludus
from ludus.bench.speed import machine

HERE = Path(__file__).parent
# dqn-2015 alone would cut a game at 18,000 frames, less than a close game of Pong may take.
PROTOCOL = {
    "env.protocol": "dqn-2015", "env.atari.life_loss": "ignore", "env.atari.max_frames": 108_000,
    "env.reward_clip": "sign",
}  # fmt: skip


class Stopwatch(ludus.Callback):
    """Stops the run when the last 100 whole games average the target."""

    def __init__(self, target: float, limit: float) -> None:
        self.target, self.limit = target, limit
        self.scores: list[float] = []
        self.curve: list[tuple[float, int, float]] = []
        self.started = self.last_report = 0.0
        self.solved: float | None = None

    def on_start(self, run) -> None:
        self.started, self.last_report = time.perf_counter(), 0.0

    def on_episode(self, run, episode) -> None:
        if episode.end == "checkpoint":
            return
        self.scores.append(episode.score)
        now = time.perf_counter() - self.started
        mean = statistics.fmean(self.scores[-100:])
        if now - self.last_report > 2:
            self.last_report = now
            self.curve.append((round(now, 1), run.step, round(mean, 2)))
        if len(self.scores) >= 100 and mean >= self.target and self.solved is None:
            self.solved = now
            run.stop("solved")
        elif now > self.limit:
            run.stop("time")


def one(algo: str, preset: str, seed: int, target: float, limit: float, settings: dict) -> dict:
    changed = [key for key in settings if key in PROTOCOL or key.startswith("env.atari")]
    if changed:
        raise SystemExit(f"{', '.join(changed)}: the rules of the game are fixed here")
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
        "final_100": statistics.fmean(watch.scores[-100:]) if watch.scores else None,
        **facts.run_facts(cfg, status), "curve": watch.curve, "machine": machine(),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("algo")
    parser.add_argument("settings", nargs="*")
    parser.add_argument("--preset", default="atari-fast")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--target", type=float, default=18.0)
    parser.add_argument("--limit", type=float, default=120.0)
    parser.add_argument("--trial", action="store_true", help="mark the rows as no results")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "pong_seconds.jsonl")
    args = parser.parse_intermixed_args()
    words = (word.split("=", 1) for word in args.settings)
    settings = {key: yaml.safe_load(value) for key, value in words}
    for seed in args.seeds:
        row = one(args.algo, args.preset, seed, args.target, args.limit, settings)
        row["kind"] = "trial" if args.trial else "result"
        facts.append(args.out, row)
        shown = {k: v for k, v in row.items() if k not in ("curve", "machine", "compute")}
        print(json.dumps(shown), row["curve"][::5], flush=True)
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
