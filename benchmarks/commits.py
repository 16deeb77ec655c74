"""Two commits side by side: does a change of the code cost speed?

    python benchmarks/commits.py OLD NEW [--pairs 7] [--cases "ppo CartPole" ...]

OLD and NEW are checkouts with a .venv of their own (`make setup`). Each case runs in a fresh
process of one, then of the other, so that a busy machine slows both alike; the ratio new / old
is taken within a pair. Appends a row to benchmarks/results/commits.jsonl. Not a test.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
OUT = ROOT / "benchmarks" / "results" / "commits.jsonl"
COMMON = ("seed=1", "log.tensorboard=false", "eval.episodes=1", "run.threads=1", "run.device=cpu")
TRAIN = {
    "ppo CartPole": ("ppo", "steps=60k"),
    "dqn CartPole": ("dqn", "steps=15k"),
    "impala 2 processes": ("impala", "steps=60k", "fleet=processes", "actors=2"),
}
REPLAY = """
import sys, time
sys.path.insert(0, "benchmarks")
from replay_peers import ludus_parts
add, sample, update = ludus_parts(200_000)
for _ in range(3200): add()
end, cycles = time.perf_counter() + 3, 0
while time.perf_counter() < end:
    add(); sample(); update(); cycles += 1
print(cycles / 3)
"""


def train(tree: Path, words: tuple[str, ...]) -> float:
    """Steps a second, as the run itself counts them."""
    with tempfile.TemporaryDirectory() as folder:
        algo, *settings = words
        command = [tree / ".venv/bin/ludus", "train", algo, "CartPole-v1", *settings, *COMMON]
        command += ["--run", "x", "--runs-dir", folder, "--quiet"]
        run(command, tree)
        rows = (Path(folder) / "x" / "metrics.jsonl").read_text().splitlines()
        last = json.loads(rows[-1])
        return float(last["step"]) / float(last["seconds"])


def run(command: list[object], tree: Path) -> str:
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(tree)}
    words = [str(word) for word in command]
    done = subprocess.run(words, cwd=tree, env=env, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(words)}\n{done.stdout}{done.stderr}")
    return done.stdout


def measure(tree: Path, case: str) -> float:
    if case == "replay cycle":
        return float(run([tree / ".venv/bin/python", "-c", REPLAY], tree))
    return train(tree, TRAIN[case])


def commit_of(tree: Path) -> str:
    return run(["git", "rev-parse", "--short", "HEAD"], tree).strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--cases", nargs="*", default=[*TRAIN, "replay cycle"])
    options = parser.parse_args()
    old, new = options.old.resolve(), options.new.resolve()
    row: dict[str, object] = {
        "command": f"{sys.argv[0]} OLD NEW --pairs {options.pairs}",
        "old": commit_of(old),
        "new": commit_of(new),
        "machine": f"{os.cpu_count()} cores, {platform.machine()}",
        "cases": {},
    }
    for case in options.cases:
        pairs = []
        for number in range(options.pairs):
            order = (old, new) if number % 2 == 0 else (new, old)
            speed = {tree: measure(tree, case) for tree in order}
            pairs.append((speed[old], speed[new]))
        ratio = statistics.median(b / a for a, b in pairs)
        row["cases"][case] = {"old_new": pairs, "median_ratio": ratio}
        print(f"{case}: {ratio:.3f} (median of {len(pairs)} pairs)", flush=True)
    with OUT.open("a") as file:
        file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
