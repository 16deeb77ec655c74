"""Every algorithm's Atari presets, started: do they train, learn without NaN, save and evaluate?

    python benchmarks/atari_presets.py --jobs 4                   # all, 20k steps of Pong each
    python benchmarks/atari_presets.py --preset atari-fast --only dqn --env ALE/Breakout-v5
    python benchmarks/atari_presets.py --part 1/3                 # the first third of them

Not a test of learning: 20,000 steps are a small part of what the presets are for. Warm-up and
replay are made small for it, and games are cut at --frames; all else is the preset's. Each runs in
a process of its own, which may crash or hang without ending the others. Its row is appended to
benchmarks/results/atari_presets.jsonl, failures too; what passed there on the same device is run
again only with --again. Ends with 1 if any failed.
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
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import facts
import torch

import ludus
from ludus import registry
from ludus.presets import presets_of
from ludus.settings.resolve import Config

RESULTS = Path(__file__).parent / "results" / "atari_presets.jsonl"
NAMES = [entry.name for entry in registry.BUILT_IN]
# Two rows with these alike are of the same run.
SAME = ("algo", "preset", "env", "seed", "config", "device")
Task = tuple[str, str]  # preset, algorithm
EVERY: list[Task] = [
    (preset.name, entry.name)
    for entry in registry.BUILT_IN
    for preset in presets_of(entry)
    if preset.fits("ALE/Pong-v5")
]
PRESETS = sorted({preset for preset, _ in EVERY})


def configured(task: Task, args: argparse.Namespace) -> Config:
    """The preset, and what this benchmark changes in it."""
    preset, name = task
    small: dict[str, Any] = {
        "run.steps": args.steps,
        "run.seed": args.seed,
        "run.device": args.device,
        "run.save_replay": "off",
        "log.tensorboard": False,
        "env.atari.max_frames": args.frames,
        "eval.episodes": 0,
    }
    if registry.find(name).family == "dqn":
        small |= {"algo.warmup": max(1, args.steps // 10), "algo.capacity": 2 * args.steps}
    return ludus.config(name, args.env, preset=preset, **small)


def begun(task: Task, args: argparse.Namespace) -> dict[str, Any]:
    """What is known of a row before the run."""
    cuda = torch.cuda.is_available() and args.device != "cpu"
    return {
        "algo": task[1], "preset": task[0], "env": args.env, "seed": args.seed,
        "device": torch.cuda.get_device_name() if cuda else "cpu",
        "cpu": platform.processor() or platform.machine(),
        "torch": torch.__version__, "commit": facts.commit(), "jobs": args.jobs,
    }  # fmt: skip


# This half runs inside a process of its own.


def one(task: Task, args: argparse.Namespace) -> dict[str, Any]:
    cfg = configured(task, args)
    with tempfile.TemporaryDirectory(prefix="ludus-") as folder:
        start = time.perf_counter()
        run = ludus.train(cfg, runs_dir=folder, quiet=True)
        trained = time.perf_counter()
        result = run.last.eval(episodes=args.episodes)
        status = json.loads((run.path / "status.json").read_text())
        losses = [line["learner/loss"] for line in run.metrics() if "learner/loss" in line]
    seconds = trained - start
    return facts.run_facts(cfg, status) | {
        "steps": run.step,
        "updates": run.updates,
        "seconds": round(seconds, 1),
        "eval_seconds": round(time.perf_counter() - trained, 1),
        "steps_per_second": round(run.step / seconds),
        "score": result.mean,
        "scores": result.scores,
        "lengths": result.lengths,
        "train_score": run.score,
        "last_loss": losses[-1] if losses else None,
        "ok": run.updates > 0 and bool(losses) and all(map(math.isfinite, losses)),
    }


# The driver.


def apart(words: list[str], limit: float) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, capture_output=True, text=True, timeout=limit, check=False)


def started(task: Task, args: argparse.Namespace) -> dict[str, Any]:
    """The row of one preset, whatever became of its process."""
    row = begun(task, args)
    try:
        row["config"] = configured(task, args).digest()
        words = [sys.executable, __file__, "--work", *task, "--env", args.env]
        for name in ("steps", "frames", "episodes", "seed", "device"):
            words += [f"--{name}", str(getattr(args, name))]
        done = apart(words, args.limit)
        if done.returncode == 0:
            return row | json.loads(done.stdout.splitlines()[-1])
        said = done.stderr.strip().splitlines() or ["nothing was said"]
        failed = f"exit code {done.returncode}: {said[-1]}"
    except subprocess.TimeoutExpired:
        failed = f"not done after {args.limit:g} s"
    except Exception as error:
        failed = f"{type(error).__name__}: {error}"
    return row | {"ok": False, "failed": failed}


def open_tasks(args: argparse.Namespace) -> list[Task]:
    """All that are asked for, without those that passed before."""
    wanted = args.only or NAMES
    every = [(preset, name) for preset, name in EVERY if preset in args.preset and name in wanted]
    part, parts = args.part
    tasks = every[part - 1 :: parts]
    if args.again or not args.out.exists():
        return tasks
    rows = [json.loads(line) for line in args.out.read_text().splitlines()]
    passed = {tuple(r.get(k) for k in SAME) for r in rows if r.get("ok")}
    left = []
    for task in tasks:
        row = begun(task, args) | {"config": configured(task, args).digest()}
        if tuple(row[k] for k in SAME) in passed:
            print(f"{task[1]} {task[0]}: passed before", flush=True)
        else:
            left.append(task)
    return left


def part_of(text: str) -> tuple[int, int]:
    """2/3 -> (2, 3)"""
    part, _, parts = text.partition("/")
    found = int(part), int(parts)
    if not 1 <= found[0] <= found[1]:
        raise ValueError(text)
    return found


def arguments(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--preset", nargs="+", choices=PRESETS, default=list(PRESETS))
    parser.add_argument("--only", nargs="+", choices=NAMES, default=[])
    parser.add_argument("--part", type=part_of, default=(1, 1), metavar="K/N")
    parser.add_argument("--jobs", type=int, default=1, help="presets at a time")
    parser.add_argument("--env", default="ALE/Pong-v5")
    parser.add_argument("--steps", type=int, default=20_000, help="agent steps of each run")
    parser.add_argument("--frames", type=int, default=4_000, help="a game is cut after so many")
    parser.add_argument("--episodes", type=int, default=2, help="of the evaluation")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--limit", type=float, default=600.0, help="seconds of one preset")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--again", action="store_true", help="also what has passed before")
    parser.add_argument("--dry-run", action="store_true", help="resolve every preset, then exit")
    parser.add_argument("--work", nargs=2, metavar=("PRESET", "ALGO"), help=argparse.SUPPRESS)
    return parser.parse_args(words)


def main(words: list[str] | None = None) -> int:
    args = arguments(words)
    if args.work:
        print(json.dumps(one(tuple(args.work), args)))
        return 0
    tasks = open_tasks(args)
    if args.dry_run:
        for task in tasks:
            cfg = configured(task, args)
            print(f"{task[1]:16s} {task[0]:10s} {cfg.digest()} {cfg.env.num} environments")
        return 0
    failed = 0
    with ThreadPoolExecutor(args.jobs) as pool:
        for done in as_completed([pool.submit(started, task, args) for task in tasks]):
            row = done.result()
            facts.append(args.out, row)
            print(json.dumps(row), flush=True)
            failed += not row["ok"]
    print(f"{len(tasks) - failed} of {len(tasks)} passed", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
