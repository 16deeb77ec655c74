"""Training speed on Pong as a share of the emulators' own, for the record: see ludus bench speed.

    python benchmarks/atari_speed.py --seconds 20 --counts 256

ppo and rainbow-iqn as their `atari-fast` presets have it, and a learner like that of Ape-X (double,
dueling, three steps, prioritised, batch 512, a million frames). Writes results/atari_speed.json.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import ludus
from ludus.bench.speed import best_ceiling, machine, measure

APEX = {"algo.n_step": 3, "algo.double": True, "algo.head.dueling": True}
RUNS: list[tuple[str, str, dict[str, Any]]] = [
    ("ppo", "ppo", {"run.steps": "3M", "algo.lr": "1e-3->0"}),  # as in pong_seconds.py
    ("rainbow-iqn", "rainbow-iqn", {}),
    ("like Ape-X", "prioritized-dqn", APEX),
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--counts", type=int, nargs="*", default=[])
    parser.add_argument("--modes", nargs="*", default=["auto", "off"])
    parser.add_argument("--only", nargs="*", default=[])
    here = Path(__file__).parent / "results" / "atari_speed.json"
    parser.add_argument("--out", type=Path, default=here)
    args = parser.parse_args()
    result: dict[str, Any] = {"machine": machine(), "seconds": args.seconds, "runs": []}
    for label, algo, settings in RUNS:
        if args.only and label not in args.only:
            continue
        cfg = ludus.config(algo, "pong", preset="atari-fast", **settings,
                           **{"log.tensorboard": False})  # fmt: skip
        run = measure(cfg, seconds=args.seconds, modes=tuple(args.modes), label=label)
        result["runs"].append({**run, "settings": settings})
        for mode, row in run["modes"].items():
            shown = {k: round(v, 3) for k, v in row.items() if isinstance(v, float)}
            print(label, mode, row["compute"]["updates"], json.dumps(shown), flush=True)
        args.out.write_text(json.dumps(result, indent=1) + "\n")
    if args.counts:
        result["best"] = best_ceiling(cfg, args.counts, 4.0)
        print("ceilings", result["best"], flush=True)
    args.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
