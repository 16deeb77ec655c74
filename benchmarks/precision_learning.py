"""Does bf16 on a CPU learn what fp32 learns? Same settings, same seeds, only the precision differs.

    python benchmarks/precision_learning.py [--jobs 2] [--steps 150000]
    python benchmarks/precision_learning.py --verdict

PPO on Breakout with its `atari` preset (8 environments), the learning rate that its `atari-fast`
preset has, under the protocol `dopamine`. The score is the mean of the raw scores of the last 200
training games. Rows of "bf16, heads too" were made when the last layers of heads were rounded as
well. Rows go to benchmarks/results/precision_learning.jsonl; what is there already is not run
again. Each run has one thread, two run at a time on two cores.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import facts
import torch

import ludus
from ludus.bench.speed import machine

RESULTS = Path(__file__).parent / "results" / "precision_learning.jsonl"
LAST = 200  # games
PRECISIONS = ("fp32", "bf16")


def one(precision: str, seed: int, steps: int) -> dict[str, Any]:
    torch.set_num_threads(1)
    start = time.perf_counter()
    settings = {
        "env.protocol": "dopamine", "run.steps": steps, "run.precision": precision,
        "algo.lr": "5e-4->0", "run.device": "cpu", "log.tensorboard": False,
        "run.save_replay": "off", "eval.episodes": 0,
    }  # fmt: skip
    cfg = ludus.config("ppo", "breakout", preset="atari", seed=seed, **settings)
    with tempfile.TemporaryDirectory(prefix="ludus-") as folder:
        run = ludus.train(cfg, runs_dir=folder, quiet=True)
        scores = [score for _, score in facts.games(run.path)]
        status = json.loads((run.path / "status.json").read_text())
    return {
        "precision": precision, "seed": seed, "steps": run.step, "settings": settings,
        "games": len(scores), "first_200": round(statistics.fmean(scores[:LAST]), 2),
        "last_200": round(statistics.fmean(scores[-LAST:]), 2),
        "standard_error": round(statistics.stdev(scores[-LAST:]) / LAST**0.5, 2),
        "seconds": round(time.perf_counter() - start, 1), **facts.run_facts(cfg, status),
        "machine": machine(),
    }  # fmt: skip


def verdict(rows: list[dict[str, Any]], steps: int) -> None:
    """Held: the mean difference of the same seeds is within two of its standard errors."""
    by: dict[str, dict[int, float]] = {}
    for row in rows:
        if row["settings"]["run.steps"] == steps:
            by.setdefault(row["precision"], {})[row["seed"]] = row["last_200"]
    for precision, scores in by.items():
        values = [*scores.values()]
        spread = statistics.stdev(values) if len(values) > 1 else float("nan")
        print(f"{precision}: {scores} mean {statistics.fmean(values):.2f}, seeds {spread:.2f}")
    pairs = [by["bf16"][s] - x for s, x in by.get("fp32", {}).items() if s in by.get("bf16", {})]
    if len(pairs) > 1:
        error = statistics.stdev(pairs) / len(pairs) ** 0.5
        held = "held" if abs(statistics.fmean(pairs)) <= 2 * error else "not held"
        print(f"{held}: bf16 - fp32 = {statistics.fmean(pairs):.2f}, standard error {error:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="*", default=[1, 2, 3])
    parser.add_argument("--steps", type=int, default=150_000)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--verdict", action="store_true")
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    rows = [json.loads(x) for x in args.out.read_text().splitlines()] if args.out.exists() else []
    known = {(r["precision"], r["seed"], r["settings"]["run.steps"]) for r in rows}
    todo = [(p, s, args.steps) for s in args.seeds for p in PRECISIONS]
    if not args.verdict:
        with ProcessPoolExecutor(args.jobs, get_context("spawn"), max_tasks_per_child=1) as pool:
            runs = [pool.submit(one, *words) for words in todo if words not in known]
            for done in as_completed(runs):
                row = done.result()
                rows.append(row)
                facts.append(args.out, row)
                print(row["precision"], row["seed"], row["last_200"], row["seconds"], flush=True)
    verdict(rows, args.steps)


if __name__ == "__main__":
    main()
