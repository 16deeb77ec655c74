"""What a tracker that blocks for ever costs a run: steps/s with it fed and not fed, in turns in one
run, and how long the end of the run takes.

    python benchmarks/tracker_cost.py ppo CartPole-v1 --windows 60 --seconds 0.7

The tracker's package is a stand-in whose `log` never returns. Metrics are logged after every
iteration and the queue is short, so that it is full before the first window and every further line
is dropped: the dearest case. Steps are also counted by the run's own processor time, which says
more than the clock where other programs share the cores; and one line to a tracker whose queue is
full is timed by itself. Windows are short, so that both kinds see the same machine. Rows go to
benchmarks/results/tracker_cost.jsonl.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import facts
import yaml
from live_eval_cost import edge

import ludus
from ludus.bench.speed import machine
from ludus.track.metrics import trackers

RESULTS = Path(__file__).parent / "results" / "tracker_cost.jsonl"
BLOCKS = """
import time
class Run:
    def define_metric(self, *a, **k): pass
    def log(self, *a, **k): time.sleep(1e9)
    def finish(self, *a, **k): time.sleep(1e9)
def init(**how): return Run()
"""


class Turns(ludus.Callback):
    """Counts steps in windows of time; in every second one the tracker gets nothing."""

    def __init__(self, windows: int, seconds: float, warm_up: float) -> None:
        self.windows, self.seconds, self.warm_up = windows, seconds, warm_up
        self.rates: dict[str, list[float]] = {"on": [], "off": []}
        self.by_processor: dict[str, list[float]] = {"on": [], "off": []}
        self.dropped = 0
        self.asked = 0.0

    def on_start(self, run) -> None:
        threading.Thread(target=self._watch, args=(run,), daemon=True).start()

    def _watch(self, run) -> None:
        while not run.updates:
            time.sleep(0.1)
        time.sleep(self.warm_up)
        fed = run.board.trackers
        for number in range(2 * self.windows):
            # on off off on on off off on: a slow change of the machine favours neither
            mode = "on" if (number + 1) // 2 % 2 == 0 else "off"
            run.board.trackers = fed if mode == "on" else []
            time.sleep(0.05)
            (step, start), worked = edge(run), time.process_time()
            time.sleep(self.seconds)
            (last, end), worked = edge(run), time.process_time() - worked
            self.rates[mode].append((last - step) / (end - start))
            self.by_processor[mode].append((last - step) / worked)
        run.board.trackers = fed
        self.dropped = sum(tracker.dropped for tracker in fed)
        self.asked = time.perf_counter()
        run.stop("measured")


def cost(rates: dict[str, list[float]]) -> dict[str, float]:
    """The share of speed that is lost, by neighbouring windows, and the standard error of it."""
    logs = [math.log(on / off) for on, off in zip(rates["on"], rates["off"], strict=True)]
    error = statistics.stdev(logs) / math.sqrt(len(logs)) if len(logs) > 1 else math.nan
    return {"share": 1 - math.exp(statistics.fmean(logs)), "standard_error": error}


def line_seconds(folder: Path, metrics: Path, lines: int = 5000) -> float:
    """Of processor time for one line of metrics to a tracker that hangs, its queue full."""
    row = json.loads(metrics.read_text().splitlines()[-1])
    how = {"project": "p", "mode": "offline", "entity": None, "group": None}
    start = {"id": "x", "name": "x", "tag": "", "folder": str(folder), "settings": how,
             "config": {}}  # fmt: skip
    tracker = trackers.Tracker("wandb", start, folder / "line.txt", lambda text: None)
    while not tracker.dropped:
        tracker.write(0, row)
    began = time.process_time()
    for step in range(lines):
        tracker.write(step, row)
    spent = time.process_time() - began
    tracker.wait(0.0)
    return spent / lines


def measure(args: argparse.Namespace, settings: dict[str, Any]) -> dict[str, Any]:
    every = {"log.every": 100, "log.tensorboard": False, "log.wandb.mode": "offline",
             "steps": "1G", **settings}  # fmt: skip
    trackers.QUEUE = args.queue
    turns = Turns(args.windows, args.seconds, args.warm_up)
    with tempfile.TemporaryDirectory(prefix="ludus-") as folder:
        (Path(folder) / "wandb.py").write_text(BLOCKS)
        sys.path.insert(0, folder)
        os.environ["PYTHONPATH"] = os.pathsep.join(
            filter(None, [folder, os.environ.get("PYTHONPATH")])
        )
        cfg = ludus.config(args.algo, args.env, **every)
        ludus.train(cfg, runs_dir=folder, quiet=True, callbacks=[turns])
        ended = time.perf_counter() - turns.asked
        line = line_seconds(Path(folder), next(Path(folder).rglob("metrics.jsonl")))
    mean, work = (
        {mode: statistics.fmean(rates) for mode, rates in kind.items()}
        for kind in (turns.rates, turns.by_processor)
    )
    return {
        "algo": args.algo, "env": args.env, "settings": settings, "log_every": cfg.log.every,
        "steps_per_second": mean, "cost": cost(turns.rates),
        "steps_per_processor_second": work, "processor_cost": cost(turns.by_processor),
        "windows": {k: [round(r) for r in rates] for k, rates in turns.rates.items()},
        "processor_windows": {k: [round(r) for r in v] for k, v in turns.by_processor.items()},
        "window_seconds": args.seconds, "load": os.getloadavg()[0],
        "dropped_lines": turns.dropped, "queue": trackers.QUEUE,
        "end_seconds": round(ended, 2), "line_microseconds": round(1e6 * line, 1),
        "lines_share": line * mean["on"] / cfg.log.every,
        "config": cfg.digest(), "commit": facts.commit(),
        "machine": machine(),
    }  # fmt: skip


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("algo")
    parser.add_argument("env")
    parser.add_argument("settings", nargs="*", metavar="KEY=VALUE")
    parser.add_argument("--windows", type=int, default=60, help="of each kind")
    parser.add_argument("--seconds", type=float, default=0.7, help="of one window")
    parser.add_argument("--warm-up", type=float, default=15.0, help="seconds that do not count")
    parser.add_argument("--queue", type=int, default=50, help="lines that may wait")
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args(words)
    settings = {k: yaml.safe_load(v) for k, v in (word.split("=", 1) for word in args.settings)}
    row = measure(args, settings)
    facts.append(args.out, row)
    print(json.dumps(row))


if __name__ == "__main__":
    main()
