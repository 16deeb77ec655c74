"""Training speed on Pong as a share of the emulators' own, for the record: see ludus bench speed.

    python benchmarks/atari_speed.py --seconds 20
    python benchmarks/atari_speed.py --learner --modes auto        # updates/s on a full replay only

ppo, rainbow-iqn, impala, pqn and apex-dqn as their `atari-fast` presets have it, and a learner like
that of Ape-X (double, dueling, three steps, prioritised, batch 512), whose replay is filled with a
million random frames before anything is measured. Rows of results/atari_speed.json with the same
label are replaced, the others kept. `--set algo.capacity=4096 env.num=2` makes it small enough to
try on a CPU.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import facts
import pong_seconds
import yaml

import ludus
from ludus.bench.ceilings import add_share_of_best, best_ceiling, default_counts
from ludus.bench.speed import machine, measure

RESULTS = Path(__file__).parent / "results" / "atari_speed.json"
APEX = {
    "algo.n_step": 3, "algo.double": True, "algo.batch": 512, "algo.capacity": 1_000_000,
    # Wang et al. 2016: two streams of 512, not one that both share.
    "algo.torso.hidden": 0, "algo.head.dueling": True, "algo.head.hidden": 512,
}  # fmt: skip
SOLVES = {"run.steps": "2M", "algo.lr": "1e-3->0"}  # Pong in a minute: results/pong_seconds.jsonl
# ppo_atari.py of CleanRL: 8 environments, rollouts of 128, 4 epochs of 4 minibatches, Adam 2.5e-4
# annealed, clip 0.1 of values too, float32, episodes that end with a life.
CLEANRL = {
    "env.protocol": "dqn-2015", "env.num": 8, "run.precision": "fp32", "run.overlap": "off",
    "algo.rollout": 128, "algo.epochs": 4, "algo.minibatches": 4, "algo.lr": "2.5e-4->0",
    "algo.clip": 0.1, "algo.value_clip": 0.1, "env.atari.life_loss": "episodic",
}  # fmt: skip
# label, algorithm, settings, whether the replay is filled first
RUNS: list[tuple[str, str, dict[str, Any], bool]] = [
    ("ppo", "ppo", {**pong_seconds.PROTOCOL, **SOLVES}, False),
    ("rainbow-iqn", "rainbow-iqn", {}, False),
    ("impala", "impala", {}, False),
    ("pqn", "pqn", {}, False),
    ("apex-dqn", "apex-dqn", {}, False),
    ("like Ape-X", "prioritized-dqn", APEX, True),
    ("ppo as CleanRL", "ppo", CLEANRL, False),
]
FEW = {"env.num": 16}  # emulators take long to build and a learner alone has no use for them


def one(label: str, algo: str, settings: dict[str, Any], full: bool, args: Any) -> dict[str, Any]:
    every = {**(FEW if args.learner else {}), **settings, **args.set}
    cfg = ludus.config(algo, "pong", preset="atari-fast", **every, **{"log.tensorboard": False})
    row = measure(cfg, seconds=args.seconds, modes=tuple(args.modes), label=label, full=full,
                  learner_only=args.learner)  # fmt: skip
    return row | {
        "settings": every, "seconds": args.seconds, "commit": facts.commit(),
        "config": cfg.digest(), "machine": machine(), "command": " ".join(sys.argv),
        **facts.rules(cfg),
    }  # fmt: skip


def put(path: Path, key: str, row: dict[str, Any]) -> None:
    """In place of the row with the same label."""
    known = json.loads(path.read_text()) if path.exists() else {"runs": []}
    known["machine"] = row["machine"]
    rows = {r["label"]: r for r in known.get(key, [])}
    known[key] = [*(rows | {row["label"]: row}).values()]
    path.write_text(json.dumps(known, indent=1) + "\n")


def ceilings(args: argparse.Namespace, measured: list[str]) -> None:
    """Emulators alone at several numbers of them, and what was measured now as a share of the most:
    another day's machine may be of the same kind and yet a fifth faster."""
    cfg = ludus.config("ppo", "pong", preset="atari-fast")
    best = best_ceiling(cfg, args.counts or default_counts(cfg.env), args.seconds / 2)
    known = json.loads(args.out.read_text())
    for run in known["runs"]:
        if run["label"] in measured:
            add_share_of_best(run, best)
            run["best_ceilings"] = best
            print(run["label"], {k: m["of_best_ceiling"] for k, m in run["modes"].items()})
    args.out.write_text(json.dumps(known | {"best": best}, indent=1) + "\n")
    print("ceilings", best, flush=True)


def arguments(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--counts", type=int, nargs="*", help="none given: by the cores")
    parser.add_argument("--modes", nargs="*", default=["auto", "off"])
    parser.add_argument("--only", nargs="*", default=[], choices=[run[0] for run in RUNS])
    parser.add_argument("--learner", action="store_true", help="only learners, on a full replay")
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE")
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args(words)
    pairs = (word.split("=", 1) for word in args.set)
    args.set = {key: yaml.safe_load(value) for key, value in pairs}
    return args


def main(words: list[str] | None = None) -> None:
    args = arguments(words)
    measured = []
    for label, algo, settings, full in RUNS:
        if (args.only and label not in args.only) or (args.learner and not full):
            continue
        row = one(label, algo, settings, full, args)
        measured.append(label)
        put(args.out, "learner" if args.learner else "runs", row)
        for mode, m in row["modes"].items():
            shown = {k: round(v, 3) for k, v in m.items() if isinstance(v, float)}
            held = m.get("learner_alone_on", {})
            print(label, mode, m["compute"]["updates"], json.dumps(shown | held), flush=True)
    if not args.learner and args.counts != []:
        ceilings(args, measured)


if __name__ == "__main__":
    main()
