"""Two commits side by side: does a change of the code cost speed?

    python benchmarks/commits.py OLD NEW [--pairs 7] [--cases "ppo CartPole" ...]

OLD and NEW are checkouts with a .venv of their own (`make setup`); without one, this Python runs
them. Each case runs in a fresh process of one, then of the other, so that a busy machine slows both
alike; the ratio new / old is taken within a pair. The cases on Pong are for a GPU, and only run if
named. Appends a row to benchmarks/results/commits.jsonl. Not a test.
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
COMMON = ("seed=1", "log.tensorboard=false")
SMALL = ("CartPole-v1", "eval.episodes=1", "run.threads=1", "run.device=cpu")
PONG = ("pong", "--preset", "atari-fast", "eval.episodes=0", "log.every=20k", "steps=50M",
        "run.time=17s")  # fmt: skip
TRAIN = {
    "ppo CartPole": ("ppo", *SMALL, "steps=60k"),
    "dqn CartPole": ("dqn", *SMALL, "steps=15k"),
    "impala 2 processes": ("impala", *SMALL, "steps=60k", "fleet=processes", "actors=2"),
}
ON_GPU = {"ppo Pong": ("ppo", *PONG), "rainbow-iqn Pong": ("rainbow-iqn", *PONG)}
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
    """Steps a second, as the run itself counts them; on Pong in its last 55 % of the time, when
    the emulators run and the graphs are captured."""
    with tempfile.TemporaryDirectory() as folder:
        command = [python_of(tree), "-m", "ludus", "train", *words, *COMMON]
        command += ["--run", "x", "--runs-dir", folder, "--quiet"]
        run(command, tree)
        lines = (Path(folder) / "x" / "metrics.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    last = rows[-1]
    late = [r for r in rows if r["seconds"] >= 0.45 * last["seconds"]] if "pong" in words else []
    first = late[0] if late else {"step": 0, "seconds": 0}
    return float(last["step"] - first["step"]) / float(last["seconds"] - first["seconds"])


def python_of(tree: Path) -> Path:
    own = tree / ".venv/bin/python"
    return own if own.exists() else Path(sys.executable)


def run(command: list[object], tree: Path) -> str:
    path = os.pathsep.join([str(tree), os.environ.get("PYTHONPATH", "")])
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    words = [str(word) for word in command]
    done = subprocess.run(words, cwd=tree, env=env, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(words)}\n{done.stdout}{done.stderr}")
    return done.stdout


def measure(tree: Path, case: str) -> float:
    if case == "replay cycle":
        return float(run([python_of(tree), "-c", REPLAY], tree))
    return train(tree, (TRAIN | ON_GPU)[case])


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
