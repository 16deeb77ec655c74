"""How long Ctrl-C takes with a full replay of 1M CartPole steps, none of it saved before.

Starts `ludus train`, waits until the replay is full, sends SIGINT, and measures until the process
is gone; then the checkpoint is read back. The bar is 30 s.
Writes results/interrupt_full_replay.json.

    python benchmarks/interrupt_full_replay.py [algorithm ...]
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from ludus.track.checkpoint.reader import load
from ludus.track.metrics.writer import read_metrics

HERE = Path(__file__).parent
BAR = 30.0
SETTINGS = (
    "CartPole-v1", "steps=100M", "checkpoint_every=100M", "algo.capacity=1M", "algo.warmup=1M",
    "env.num=64", "log.every=10k", "tensorboard=off", "save_replay=on", "--preset", "none",
)  # fmt: skip


def measure(algorithm: str, folder: Path) -> dict[str, Any]:
    """Fill, interrupt, read back."""
    command = [sys.executable, "-m", "ludus", "train", algorithm, *SETTINGS]
    process = subprocess.Popen(
        [*command, "--runs-dir", str(folder), "--run", algorithm],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
    )
    path, begun = folder / algorithm, time.perf_counter()
    try:
        while not (rows := read_metrics(path / "metrics.jsonl")) or rows[-1]["replay/fill"] < 1:
            if process.poll() is not None:
                raise SystemExit(f"the run ended by itself with {process.returncode}")
            time.sleep(0.2)
        filled = time.perf_counter()
        process.send_signal(signal.SIGINT)
        code = process.wait(600)
        gone = time.perf_counter()
    finally:
        if process.poll() is None:
            process.kill()
    saved = load(path)
    files = [p for p in saved.path.rglob("*") if p.is_file()]
    return {
        "algorithm": algorithm,
        "seconds": round(gone - filled, 2),
        "within_bar": gone - filled <= BAR,
        "exit_code": code,
        "step": saved.step,
        "replay_items": saved.state["replay"]["size"],
        "checkpoint_megabytes": round(sum(p.stat().st_size for p in files) / 1e6, 1),
        "fill_seconds": round(filled - begun, 1),
        "read_back_seconds": round(_read_back(path), 2),
    }


def _read_back(path: Path) -> float:
    start = time.perf_counter()
    saved = load(path)
    assert saved.replay is not None and sum(len(arrays) for _, arrays in saved.replay) > 0
    return time.perf_counter() - start


def main() -> None:
    folder = Path(tempfile.mkdtemp(prefix="ludus-interrupt-"))
    try:
        runs = [measure(name, folder) for name in sys.argv[1:] or ("dqn", "rainbow")]
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    result = {
        "what": "SIGINT to the end of the process, 1M CartPole steps in replay, first checkpoint",
        "bar_seconds": BAR,
        "runs": runs,
        "cores": os.cpu_count(),
        "machine": platform.machine(),
        "python": platform.python_version(),
    }
    out = HERE / "results" / "interrupt_full_replay.json"
    out.parent.mkdir(exist_ok=True)
    out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(result, indent=1))
    if not all(run["within_bar"] and run["exit_code"] == 130 for run in runs):
        raise SystemExit("the bar is missed")


if __name__ == "__main__":
    main()
