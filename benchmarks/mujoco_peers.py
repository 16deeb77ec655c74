"""Scores on MuJoCo against stable-baselines3 with the settings of its RL Zoo: same steps, one
environment, one thread, greedy evaluation.

    python benchmarks/mujoco_peers.py [--ours] [--theirs] [--only TASK ...] [--seeds 1 2 3]
    python benchmarks/mujoco_peers.py --table      ours and theirs, from what is recorded
    python benchmarks/mujoco_peers.py --page       that table and the curves in the documentation

A row of benchmarks/results/mujoco_peers.jsonl is one run: the mean of 20 greedy episodes of the
last weights, and of 5 at every tenth of the run. Ours are the presets. A row that is there is not
run again. The bar: our mean over seeds >= theirs minus one standard deviation of theirs.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from peers import ROOT, python_of, set_up

RESULTS = ROOT / "benchmarks" / "results" / "mujoco_peers.jsonl"
STEPS = {
    "sac-HalfCheetah-v5": 50_000,
    "sac-Hopper-v5": 50_000,
    "td3-HalfCheetah-v5": 50_000,
    "ppo-HalfCheetah-v5": 300_000,
}
OURS, THEIRS = "ludus", "stable-baselines3"
SEEDS, POINTS, CURVE_EPISODES, EPISODES = (1, 2, 3), 10, 5, 20
Row = dict[str, Any]


def play_ours(task: str, seed: int, steps: int) -> Row:
    """One run of ours, by the preset of its environment."""
    import torch

    import ludus

    torch.set_num_threads(1)
    algo, _, env = task.partition("-")
    start = time.time()
    with tempfile.TemporaryDirectory() as folder:
        cfg = ludus.config(
            algo, env, steps=steps, seed=seed,
            **{"env.num": 1, "run.threads": 1, "run.device": "cpu", "log.tensorboard": False,
               "eval.every": steps // POINTS, "eval.episodes": CURVE_EPISODES},
        )  # fmt: skip
        run = ludus.train(cfg, runs_dir=folder, quiet=True)
        with (run.path / "evals.csv").open() as file:
            curve = [[int(r["step"]), round(float(r["mean"]), 2)] for r in csv.DictReader(file)]
        score = ludus.load(run.path).evaluate(EPISODES).mean
    return {
        "system": OURS, "task": task, "seed": seed, "steps": steps, "score": round(score, 2),
        "episodes": EPISODES, "curve": curve, "seconds": round(time.time() - start, 1),
        "versions": {p: version(p) for p in ("ludus-rl", "torch", "gymnasium", "mujoco")},
        "commit": commit(),
    }  # fmt: skip


def commit() -> str:
    if os.environ.get("BENCH_COMMIT"):  # where only the files were copied
        return os.environ["BENCH_COMMIT"]
    words = ["git", "describe", "--always", "--dirty", "--exclude=*"]
    return subprocess.run(words, capture_output=True, text=True, cwd=ROOT).stdout.strip()


def known(path: Path = RESULTS) -> list[Row]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def measured(job: tuple[str, str, int], steps: int | None, out: Path) -> None:
    """One run in a process of its own; its row is added as soon as it is there."""
    system, task, seed = job
    many = str(steps or STEPS[task])
    here = Path(__file__).parent
    words = [sys.executable, __file__, "--work", task, str(seed), many]
    if system == THEIRS:
        words = [str(python_of("sb3")), str(here / "mujoco_sb3.py"), task, str(seed), many]
    with tempfile.TemporaryDirectory() as folder:  # MuJoCo writes a log where it is started
        done = subprocess.run(
            words, capture_output=True, text=True, cwd=folder,
            env={**os.environ, "OMP_NUM_THREADS": "1"}, check=False,
        )  # fmt: skip
    if done.returncode:
        raise SystemExit(f"{system} {task} seed {seed}:\n{done.stderr[-2000:]}")
    line = done.stdout.strip().splitlines()[-1]
    with out.open("a") as file:
        file.write(line + "\n")
    row = json.loads(line)
    print(f"{system} {task} seed {seed}: {row['score']} in {row['seconds']} s", flush=True)


def scores(rows: list[Row], system: str, task: str) -> list[float]:
    mine = [r for r in rows if (r["system"], r["task"]) == (system, task)]
    return [r["score"] for r in sorted(mine, key=lambda r: r["seed"])]


def verdict(ours: list[float], theirs: list[float]) -> str:
    """The bar, once all seeds of both are there."""
    if min(len(ours), len(theirs)) < len(SEEDS):
        return "open"
    bar = statistics.mean(theirs) - statistics.stdev(theirs)
    return "held" if statistics.mean(ours) >= bar else "not held"


def table(rows: list[Row]) -> list[str]:
    lines = [
        "| task | steps | ludus | stable-baselines3 | bar | |",
        "|---|---|---|---|---|---|",
    ]
    for task, steps in STEPS.items():
        ours, theirs = scores(rows, OURS, task), scores(rows, THEIRS, task)
        bar = "-"
        if len(theirs) > 1:
            bar = f"{statistics.mean(theirs) - statistics.stdev(theirs):,.0f}"
        cells = (task, f"{steps:,}", spread(ours), spread(theirs), bar, verdict(ours, theirs))
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def spread(values: list[float]) -> str:
    """The mean, the standard deviation between seeds, and each seed's score."""
    if not values:
        return "-"
    std = f" ± {statistics.stdev(values):,.0f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):,.0f}{std} ({', '.join(f'{v:,.0f}' for v in values)})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ours", action="store_true", help="only our runs")
    parser.add_argument("--theirs", action="store_true", help="only the peer's runs")
    parser.add_argument("--only", nargs="+", choices=list(STEPS), default=list(STEPS))
    parser.add_argument("--seeds", nargs="+", type=int, default=list(SEEDS))
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--steps", type=int, help="other than the task's, with --out")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--page", action="store_true")
    parser.add_argument("--work", nargs=3, metavar=("TASK", "SEED", "STEPS"))
    args = parser.parse_args()
    if args.work:
        task, seed, steps = args.work
        print(json.dumps(play_ours(task, int(seed), int(steps))), flush=True)
        return
    if args.steps and args.out == RESULTS:
        parser.error("--steps is for trials: name another file with --out")
    if not (args.table or args.page):
        run_missing(args)
    if args.page:
        from mujoco_plot import write_page

        write_page(known(args.out))
    print("\n".join(table(known(args.out))))


def run_missing(args: argparse.Namespace) -> None:
    there = {(r["system"], r["task"], r["seed"]) for r in known(args.out)}
    both = args.ours == args.theirs
    systems = [THEIRS] * (both or args.theirs) + [OURS] * (both or args.ours)
    jobs = [(s, t, seed) for t in args.only for seed in args.seeds for s in systems]
    jobs = [job for job in jobs if job not in there]
    if any(system == THEIRS for system, *_ in jobs):
        set_up("sb3")
    with ThreadPoolExecutor(args.jobs) as pool:
        list(pool.map(partial(measured, steps=args.steps, out=args.out), jobs))


if __name__ == "__main__":
    main()
