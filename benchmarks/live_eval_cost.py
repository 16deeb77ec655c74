"""What the live evaluator costs training: steps/s with it at work and asleep, in turns in one run.

    python benchmarks/live_eval_cost.py ppo --windows 60 --seconds 1.25
    python benchmarks/live_eval_cost.py ppo env.threads=15      # a core that no emulator uses

Pong as the `atari-fast` preset has it, with eval.live=true. The evaluator's process is stopped and
continued by signal (SIGSTOP, SIGCONT), so both halves are the same run with the same environments.
The first seconds, when it starts and graphs are captured, do not count. Rows go to
benchmarks/results/live_eval_cost.jsonl.
"""

from __future__ import annotations

import argparse
import csv
import json
import multiprocessing
import os
import signal
import statistics
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import facts
import yaml

import ludus
from ludus.bench.speed import machine

RESULTS = Path(__file__).parent / "results" / "live_eval_cost.jsonl"


def tell_evaluator(number: int) -> None:
    for process in multiprocessing.active_children():
        if process.name == "ludus-evaluator" and process.pid:
            os.kill(process.pid, number)


def edge(run) -> tuple[int, float]:
    """The next time the count of steps changes: it grows by whole rounds."""
    step = run.step
    while run.step == step:
        time.sleep(0.001)
    return run.step, time.perf_counter()


class Turns(ludus.Callback):
    """Counts steps in windows of time, the evaluator at work in every second one."""

    def __init__(self, windows: int, seconds: float, warm_up: float, to_the_end: bool) -> None:
        self.windows, self.seconds, self.warm_up = windows, seconds, warm_up
        self.to_the_end = to_the_end
        self.rates: dict[str, list[float]] = {"on": [], "off": []}

    def on_start(self, run) -> None:
        threading.Thread(target=self._watch, args=(run,), daemon=True).start()

    def _watch(self, run) -> None:
        while not run.updates:
            time.sleep(0.1)
        time.sleep(self.warm_up)
        for number in range(2 * self.windows):
            # on off off on on off off on: a slow change of the machine favours neither
            mode = "on" if (number + 1) // 2 % 2 == 0 else "off"
            tell_evaluator(signal.SIGCONT if mode == "on" else signal.SIGSTOP)
            time.sleep(0.3)
            step, start = edge(run)
            time.sleep(self.seconds)
            last, end = edge(run)
            self.rates[mode].append((last - step) / (end - start))
        tell_evaluator(signal.SIGCONT)
        if not self.to_the_end:
            run.stop("measured")


def measure(algo: str, settings: dict[str, Any], args: argparse.Namespace) -> dict[str, Any]:
    every = {"eval.live": True, "log.tensorboard": False, "run.save_replay": "off", **settings}
    cfg = ludus.config(algo, "pong", preset="atari-fast", **every)
    turns = Turns(args.windows, args.seconds, args.warm_up, to_the_end=args.keep is not None)
    with tempfile.TemporaryDirectory(prefix="ludus-") as folder:
        run = ludus.train(cfg, runs_dir=args.keep or folder, quiet=True, callbacks=[turns])
        with (run.path / "evals.csv").open() as file:
            live = sum(row["checkpoint"] == "live" for row in csv.DictReader(file))
    mean = {mode: statistics.fmean(rates) for mode, rates in turns.rates.items()}
    pairs = zip(turns.rates["on"], turns.rates["off"], strict=False)
    costs = [1 - on / off for on, off in pairs]
    return {
        "algo": algo, "settings": settings, "envs": cfg.env.num_envs, "steps_per_second": mean,
        "windows": {k: [round(r) for r in rates] for k, rates in turns.rates.items()},
        "window_seconds": args.seconds, "cost": 1 - mean["on"] / mean["off"],
        "standard_error": statistics.stdev(costs) / len(costs) ** 0.5,
        "live_evaluations": live, "config": cfg.digest(), "commit": facts.commit(),
        "machine": machine(),
    }  # fmt: skip


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("algo")
    parser.add_argument("settings", nargs="*", metavar="KEY=VALUE")
    parser.add_argument("--windows", type=int, default=60, help="of each kind, at least 2")
    parser.add_argument("--seconds", type=float, default=1.25, help="of one window")
    parser.add_argument("--warm-up", type=float, default=15.0, help="seconds that do not count")
    parser.add_argument("--keep", type=Path, help="train to the end, and keep the run there")
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args(words)
    settings = {k: yaml.safe_load(v) for k, v in (word.split("=", 1) for word in args.settings)}
    row = measure(args.algo, settings, args)
    facts.append(args.out, row)
    print(json.dumps(row))


if __name__ == "__main__":
    main()
