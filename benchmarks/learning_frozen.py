"""Do the presets learn on seeds that nobody chose? The seeds come from a commit's hash.

    python benchmarks/learning_frozen.py --commit HASH --jobs 2   # what is missing
    python benchmarks/learning_frozen.py --commit HASH --only a2c

HASH freezes the presets: the five seeds are its first five groups of four hex digits, and the
script refuses to run where presets or algorithms have changed since. Each run trains with the
algorithm's own preset and plays 100 greedy episodes from its `last` checkpoint. Rows are appended
to benchmarks/results/learning_frozen.jsonl, failures too; a row that is there is not run again.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import statistics
import subprocess
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from facts import append
from learning_classic import ludus, words_of

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "learning_frozen.jsonl"
FROZEN = ("ludus/presets", "ludus/algos")
SEEDS = 5
EPISODES = 100
NO_VELOCITY = "ludus/CartPoleNoVelocity-v0"
FAILED = -1e9  # the score of a run that ended in an error


@dataclass(frozen=True)
class Task:
    """One line of the matrix: the mean over seeds must reach `bar`, every seed `floor`."""

    name: str
    algo: str
    env: str
    bar: float
    steps: int  # at most
    floor: float | None = None
    below: bool = False  # the mean must stay under the bar instead
    settings: dict[str, Any] = field(default_factory=dict)  # besides the preset


MATRIX = (
    Task("reinforce", "reinforce", "CartPole-v1", 400, 500_000, floor=250),
    Task("reinforce-baseline", "reinforce-baseline", "CartPole-v1", 475, 200_000, floor=400),
    Task("a2c", "a2c", "CartPole-v1", 475, 200_000, floor=400),
    Task("actor-critic", "actor-critic", "CartPole-v1", 475, 500_000, floor=400),
    Task("sac-discrete", "sac", "CartPole-v1", 475, 200_000, floor=400),
    Task("pqn", "pqn", "CartPole-v1", 475, 500_000, floor=400),
    Task("ppo-lstm", "recurrent-ppo", NO_VELOCITY, 450, 500_000, floor=400),
    Task("ppo-no-lstm", "recurrent-ppo", NO_VELOCITY, 250, 500_000, below=True,
         settings={"algo.core": "none"}),
    Task("sac-pendulum", "sac", "Pendulum-v1", -200, 20_000),
    Task("td3-pendulum", "td3", "Pendulum-v1", -200, 20_000),
)  # fmt: skip


def seeds_of(commit: str) -> list[int]:
    """The first five groups of four hex digits of a full hash."""
    if not re.fullmatch(r"[0-9a-f]{40}", commit):
        raise ValueError(f"{commit!r} is not a full commit hash of 40 hex digits")
    return [int(commit[4 * k : 4 * k + 4], 16) for k in range(SEEDS)]


def git(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["git", *words], capture_output=True, text=True, cwd=HERE.parent, check=False
    )


def full_hash(commit: str) -> str:
    done = git("rev-parse", "--verify", f"{commit}^{{commit}}")
    if done.returncode:
        raise SystemExit(f"there is no commit {commit}: {done.stderr.strip()}")
    return done.stdout.strip()


def check_frozen(commit: str) -> None:
    """Refuse to run where presets or algorithms are not those of the commit."""
    changed = git("diff", "--name-only", commit, "--", *FROZEN)
    added = git("ls-files", "--others", "--exclude-standard", "--", *FROZEN)
    if changed.returncode or added.returncode:
        raise SystemExit(changed.stderr + added.stderr)
    files = (changed.stdout + added.stdout).split()
    if files:
        raise SystemExit(
            f"changed since {commit[:12]}: {' '.join(files)}; its seeds judge the presets of that "
            "commit only: give a newer one"
        )


def one(task: Task, seed: int, commit: str) -> dict[str, Any]:
    """Train, evaluate, and return the row."""
    row: dict[str, Any] = {
        "name": task.name, "algo": task.algo, "env": task.env, "seed": seed,
        "settings": words_of(task.settings), "episodes": EPISODES, "commit": commit,
    }  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="ludus-") as folder:
        where = ("--runs-dir", folder)
        words = [f"seed={seed}", "run.threads=1", *words_of(task.settings).split()]
        start = time.perf_counter()
        try:
            ludus("train", task.algo, task.env, *words, "--run", "it", "--quiet", *where)
            row["train_seconds"] = round(time.perf_counter() - start, 1)
            text = ludus("eval", "it", "--checkpoint", "last", "--episodes", str(EPISODES),
                         "--json", *where)  # fmt: skip
            result = json.loads(text)
            row |= {"score": round(result["mean"], 2), "std": round(result["std"], 2)}
            row["steps"] = result["step"]
        except RuntimeError as error:
            row["failed"] = str(error)
    machine = platform.processor() or platform.machine()
    return row | {"machine": machine, "cores": os.cpu_count(), "python": platform.python_version()}


def known() -> list[dict[str, Any]]:
    return [json.loads(x) for x in RESULTS.read_text().splitlines()] if RESULTS.exists() else []


def verdict(task: Task, rows: list[dict[str, Any]], commit: str) -> tuple[bool, list[float]]:
    """Whether the task's bar holds on all seeds of the commit, and their scores."""
    mine = {r["seed"]: r for r in rows if (r["name"], r["commit"]) == (task.name, commit)}
    scores = [float(mine[s].get("score", FAILED)) for s in seeds_of(commit) if s in mine]
    whole = len(scores) == len(seeds_of(commit)) and all("score" in r for r in mine.values())
    if not whole or any(r["steps"] > task.steps for r in mine.values()):
        return False, scores
    mean = statistics.mean(scores)
    if task.below:
        return mean < task.bar, scores
    return mean >= task.bar and (task.floor is None or min(scores) >= task.floor), scores


def table(rows: list[dict[str, Any]], commit: str) -> str:
    lines = [f"seeds {seeds_of(commit)} of {commit[:12]}, {EPISODES} greedy episodes from `last`"]
    for task in MATRIX:
        held, scores = verdict(task, rows, commit)
        word = "pass" if held else "FAIL" if scores else "-"
        mean = f"{statistics.mean(scores):8.1f}" if scores else " " * 8
        bar = f"{'<' if task.below else '>='} {task.bar:g}"
        lines.append(f"{word:4s}  {task.name:19s} {task.env:28s} {bar:7s} {mean}  {scores}")
    return "\n".join(lines)


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--commit", required=True, help="the commit that froze the presets")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", action="append", default=[], choices=[t.name for t in MATRIX])
    args = parser.parse_args(words)
    commit = full_hash(args.commit)
    check_frozen(commit)
    have = {(r["name"], r["seed"]) for r in known() if r["commit"] == commit}
    todo = [
        (task, seed, commit) for seed in seeds_of(commit) for task in MATRIX
        if (task.name, seed) not in have and (not args.only or task.name in args.only)
    ]  # fmt: skip
    with ThreadPoolExecutor(args.jobs) as pool:
        for row in pool.map(lambda job: one(*job), todo):
            append(RESULTS, row)
            print(json.dumps(row), flush=True)
    print(table(known(), commit))


if __name__ == "__main__":
    main()
