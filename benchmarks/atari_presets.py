"""Every algorithm's Atari preset, started: does it train, learn without NaN, save and evaluate?

    python benchmarks/atari_presets.py                            # all, 20k steps of Pong each
    python benchmarks/atari_presets.py --preset atari-fast --only dqn --env ALE/Breakout-v5

Not a test of learning: 20,000 steps are a small part of what the presets are for. Warm-up and
replay are made small for it, and episodes are cut at --cap steps; all else is the preset's. Each
row is appended to benchmarks/results/atari_presets.jsonl, failures too.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

import ludus
from ludus import registry

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "atari_presets.jsonl"
NAMES = [entry.name for entry in registry.BUILT_IN]


def settings(name: str, args: argparse.Namespace) -> dict[str, Any]:
    """What this benchmark changes; the preset has the rest."""
    small: dict[str, Any] = {
        "run.steps": args.steps,
        "run.seed": args.seed,
        "run.device": args.device,
        "run.save_replay": "off",
        "log.tensorboard": False,
        "env.max_episode_steps": args.cap,
    }
    if registry.find(name).family == "dqn":
        small |= {"algo.warmup": max(1, args.steps // 10), "algo.capacity": 2 * args.steps}
    return small


def one(name: str, args: argparse.Namespace, folder: str) -> dict[str, Any]:
    row: dict[str, Any] = {"algo": name, "preset": args.preset, "env": args.env, "seed": args.seed}
    try:
        cfg = ludus.config(name, args.env, preset=args.preset, **settings(name, args))
        start = time.perf_counter()
        run = ludus.train(cfg, runs_dir=folder, run=f"{name}-{args.preset}", quiet=True)
        seconds = time.perf_counter() - start
        result = run.last.eval(episodes=1)
        losses = [line["learner/loss"] for line in run.metrics() if "learner/loss" in line]
        row |= {
            "config": cfg.digest(),
            "steps": run.step,
            "updates": run.updates,
            "seconds": round(seconds, 1),
            "steps_per_second": round(run.step / seconds),
            "train_score": run.score,
            "eval_score": result.mean,
            "eval_length": result.lengths[0],
            "last_loss": losses[-1] if losses else None,
            "ok": run.updates > 0 and bool(losses) and all(map(math.isfinite, losses)),
        }
    except Exception as error:
        row |= {"ok": False, "failed": f"{type(error).__name__}: {error}"}
    cuda = torch.cuda.is_available()
    return row | {
        "commit": commit(),
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name() if cuda and args.device != "cpu" else "cpu",
        "cpu": platform.processor() or platform.machine(),
    }


def commit() -> str:
    done = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=HERE
    )
    return done.stdout.strip()


def arguments(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--preset", choices=("atari", "atari-fast"), default="atari")
    parser.add_argument("--only", action="append", choices=NAMES, help="may be given again")
    parser.add_argument("--env", default="ALE/Pong-v5")
    parser.add_argument("--steps", type=int, default=20_000, help="agent steps of each run")
    parser.add_argument("--cap", type=int, default=1_000, help="agent steps of an episode")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--dry-run", action="store_true", help="resolve every preset, then exit")
    return parser.parse_args(words)


def main() -> int:
    args = arguments()
    names = args.only or NAMES
    if args.dry_run:
        for name in names:
            cfg = ludus.config(name, args.env, preset=args.preset, **settings(name, args))
            print(f"{name:16s} {cfg.digest()} {cfg.run.steps} steps, {cfg.env.num} environments")
        return 0
    args.out.parent.mkdir(exist_ok=True)
    failed = 0
    for name in names:
        with tempfile.TemporaryDirectory(prefix="ludus-") as folder:
            row = one(name, args, folder)
        with args.out.open("a") as file:
            file.write(json.dumps(row) + "\n")
        print(json.dumps(row), flush=True)
        failed += not row["ok"]
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
