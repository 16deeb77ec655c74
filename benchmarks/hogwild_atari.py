"""Does a Hogwild run learn an Atari game in minutes, and how many steps a second does it take?

    python benchmarks/hogwild_atari.py a3c breakout --time 600 env.num=8
    python benchmarks/hogwild_atari.py async-nstep-q breakout --time 600 env.num=8

16 processes as the `atari` presets have it, and the settings given. Writes the mean raw score of
whole games by minute of training, the last 200 games, and the first 200 for comparison (played by
a policy that has hardly learned) to benchmarks/results/hogwild_atari.jsonl.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

import facts
import yaml

import ludus
from ludus.bench.speed import machine

RESULTS = Path(__file__).parent / "results" / "hogwild_atari.jsonl"


class Games(ludus.Callback):
    """Every whole game's score with the second and the step it ended at."""

    def __init__(self) -> None:
        self.start, self.seen = 0.0, []

    def on_start(self, run) -> None:
        self.start = time.perf_counter()

    def on_episode(self, run, episode) -> None:
        if episode.end != "checkpoint":
            self.seen.append((time.perf_counter() - self.start, run.step, episode.score))


def by_minute(seen: list[tuple[float, int, float]]) -> list[tuple[int, int, float, int]]:
    """(minute, step, mean score, games) of each minute in which a game ended."""
    rows = []
    for minute in sorted({int(second // 60) for second, _, _ in seen}):
        part = [(step, score) for second, step, score in seen if second // 60 == minute]
        mean = statistics.fmean(score for _, score in part)
        rows.append((minute, part[-1][0], round(mean, 2), len(part)))
    return rows


def one(args: argparse.Namespace, settings: dict) -> dict:
    games = Games()
    quiet = {"log.tensorboard": False, "run.steps": "80M", "run.time": args.time}
    cfg = ludus.config(args.algo, args.game, preset="atari", seed=args.seed, **quiet, **settings)
    with tempfile.TemporaryDirectory(prefix="ludus-") as folder:
        run = ludus.train(cfg, runs_dir=folder, quiet=True, callbacks=[games])
        status = json.loads((run.path / "status.json").read_text())
    spent = time.perf_counter() - games.start
    scores = [score for _, _, score in games.seen]
    return {
        "algo": args.algo, "game": args.game, "seed": args.seed, "settings": settings,
        "actors": cfg.run.actors, "seconds": round(spent, 1), "steps": run.step,
        "frames": 4 * run.step, "updates": run.updates, "steps_per_second": run.step / spent,
        "games": len(scores), "first_200": _mean(scores[:200]), "last_200": _mean(scores[-200:]),
        "by_minute": by_minute(games.seen), **facts.run_facts(cfg, status),
        "beside": args.also_running,
        "machine": machine(),
    }  # fmt: skip


def _mean(scores: list[float]) -> float | None:
    return round(statistics.fmean(scores), 3) if scores else None


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("algo")
    parser.add_argument("game")
    parser.add_argument("settings", nargs="*", metavar="KEY=VALUE")
    parser.add_argument("--time", type=float, default=600.0, help="seconds of training")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--also-running", default="", help="what else ran on the machine, for the record"
    )
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_intermixed_args(words)
    settings = {k: yaml.safe_load(v) for k, v in (word.split("=", 1) for word in args.settings)}
    row = one(args, settings)
    facts.append(args.out, row)
    print(json.dumps({k: v for k, v in row.items() if k not in ("machine", "compute")}))


if __name__ == "__main__":
    main()
