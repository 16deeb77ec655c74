"""Does it learn Atari as fast as published runs, frame for frame?

    python benchmarks/atari_learning.py --only iqn:pong rainbow:pong
    python benchmarks/atari_learning.py --verdict                     # what is held so far
    python benchmarks/atari_learning.py --jobs 3                      # three runs at a time
    python benchmarks/atari_learning.py --only ppo:breakout --seeds 11 --set algo.minibatches=16

Ordinary runs under the protocol `dopamine` (sticky actions, minimal action set, no life signal),
with the `atari-fast` presets at the papers' eight samples per step and the settings below. The
score at F frames is the mean raw score of the training games that ended within the million frames
before F, as in the reference. Rows, failed ones too, go to benchmarks/results/atari_learning.jsonl;
rows of runs with other settings (`--set`) are marked as trials and do not count.

References (mean and standard deviation over 5 seeds): Dopamine's JAX agents with the Nature
network, whose IQN learns from three steps; PPO is the fixed-hyperparameter run published with
DreamerV3, whose protocol is not recorded.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import facts
import yaml

import ludus
from ludus.bench.speed import machine

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "atari_learning.jsonl"
M = 1_000_000
# (algorithm, game): frames to play, {frames: (mean, standard deviation)} of the reference, seeds.
DQN_PONG = {1: (-20.19, 0.09), 2: (-18.36, 0.87), 3: (-16.12, 1.62), 5: (-11.2, 2.73),
            10: (1.12, 4.95)}  # fmt: skip
IQN_PONG = {1: (-19.6, 0.19), 2: (-15.01, 1.62), 3: (-10.63, 3.57), 5: (-0.2, 2.37)}
RAINBOW_PONG = {1: (-20.46, 0.06), 2: (-20.62, 0.07), 3: (-18.95, 1.18), 5: (-14.16, 2.69)}
PPO_PONG = {1: (-20.26, 0.08), 2: (-19.15, 0.1), 5: (3.23, 5.92), 10: (12.35, 3.27)}
DQN_BREAKOUT = {1: (1.81, 0.1), 2: (7.11, 0.93), 3: (14.19, 0.49), 5: (23.35, 0.99)}
PPO_BREAKOUT = {1: (5.83, 1.65), 2: (12.7, 1.8), 5: (29.11, 2.47)}
RUNS: dict[tuple[str, str], tuple[int, dict[int, tuple[float, float]], tuple[int, ...]]] = {
    ("iqn", "pong"): (5, IQN_PONG, (1,)),
    ("rainbow", "pong"): (5, RAINBOW_PONG, (1,)),
    ("rainbow-iqn", "pong"): (5, IQN_PONG, (1,)),
    ("dqn", "breakout"): (5, DQN_BREAKOUT, (1,)),
    ("ppo", "breakout"): (5, PPO_BREAKOUT, (1,)),
    ("dqn", "pong"): (10, DQN_PONG, (1, 2)),
    ("ppo", "pong"): (10, PPO_PONG, (1, 2)),
}
# Between the papers' batch of 32 and the presets' 512: four times the updates, at nearly no cost.
# 32 environments, not 128: with 128 a game of Pong that ends now was begun a million frames ago,
# yet its score counts for the policy of today.
REPLAY = {"algo.batch": 128, "algo.target_period": 500, "algo.lr": 1.5e-4, "env.num": 32}
SETTINGS: dict[str, dict[str, Any]] = {
    "dqn": REPLAY,
    "iqn": {**REPLAY, "algo.n_step": 3},
    "rainbow": REPLAY,
    "rainbow-iqn": REPLAY,
    "ppo": {"algo.lr": "1e-3->0"},
}
# What one game has otherwise. The reference's PPO has the residual network for every game.
RESIDUAL = {"algo.torso": {"kind": "impala", "width": 1, "hidden": 256}, "algo.lr": "5e-4->0"}
GAMES: dict[tuple[str, str], dict[str, Any]] = {("ppo", "breakout"): RESIDUAL}


def one(algo: str, game: str, trial: dict[str, Any], seed: int, frames: int) -> dict[str, Any]:
    start = time.perf_counter()
    special = SETTINGS[algo] | GAMES.get((algo, game), {}) | trial
    settings = {
        "env.protocol": "dopamine", "log.tensorboard": False, "run.save_replay": "off",
        "eval.episodes": 0, "run.steps": frames // 4, **special,
    }  # fmt: skip
    row: dict[str, Any] = {"algo": algo, "game": game, "seed": seed, "frames": frames,
                           "settings": special, "preset": "atari-fast"}  # fmt: skip
    row["kind"] = "trial" if trial else "result"
    cfg = ludus.config(algo, game, preset="atari-fast", seed=seed, **settings)
    with tempfile.TemporaryDirectory(prefix="ludus-") as folder:
        run = ludus.train(cfg, runs_dir=folder, quiet=True)
        games = [(4 * step, score) for step, score in facts.games(run.path)]
        status = json.loads((run.path / "status.json").read_text())
    row["curve"] = [(f / M, *_mean(games, f)) for f in range(M // 2, frames + 1, M // 2)]
    row |= facts.run_facts(cfg, status)
    row |= {"steps": run.step, "updates": run.updates, "machine": machine()}
    return row | {"seconds": round(time.perf_counter() - start, 1)}


def in_time(until: float, pace: float, *words: Any) -> dict[str, Any] | None:
    """A run, unless it would end too late."""
    *_, frames = words
    return one(*words) if time.time() + frames / 4 / pace < until else None


def _mean(games: list[tuple[int, float]], frames: int) -> tuple[float | None, int]:
    """Mean score and number of the games that ended in the million frames before `frames`."""
    scores = [s for f, s in games if frames - M < f <= frames]
    return (round(sum(scores) / len(scores), 2) if scores else None), len(scores)


def verdict(rows: list[dict[str, Any]]) -> None:
    for (algo, game), (frames, reference, seeds) in RUNS.items():
        mean, deviation = reference[frames]
        for seed in seeds:
            mine = [r for r in rows if (r["algo"], r["game"], r["seed"]) == (algo, game, seed)
                    and r.get("kind") != "trial"]  # fmt: skip
            if not mine:
                print(f"?   {algo:12s} {game:9s} seed {seed}: not run")
                continue
            got = {f: score for f, score, _ in mine[-1]["curve"]}
            last = got.get(float(frames))
            held = last is not None and last >= mean - deviation
            line = ", ".join(
                f"{f}M {got.get(float(f))} ({m}±{s})" for f, (m, s) in reference.items()
            )
            print(f"{'ok ' if held else '-- '} {algo:12s} {game:9s} seed {seed}: {line}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=[], help="algo:game")
    parser.add_argument("--seeds", type=int, nargs="*", default=[])
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument(
        "--within", type=float, help="seconds: begin no run that would not be done by then"
    )
    parser.add_argument(
        "--pace", type=float, default=5000, help="steps/s of a run that --within counts with"
    )
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="a trial")
    parser.add_argument("--verdict", action="store_true")
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    trial = {k: yaml.safe_load(v) for k, v in (word.split("=", 1) for word in args.set)}
    todo: list[tuple[str, str, dict[str, Any], int, int]] = []
    for (algo, game), (frames, _, seeds) in RUNS.items():
        if args.verdict or (args.only and f"{algo}:{game}" not in args.only):
            continue
        todo += [(algo, game, trial, seed, frames * M) for seed in args.seeds or seeds]
    todo.sort(key=lambda words: -words[-1])  # long ones first, so that no one waits for them alone
    # Each in a process of its own: runs share no graphs, no memory of the device, no threads.
    with ProcessPoolExecutor(args.jobs, get_context("spawn"), max_tasks_per_child=1) as pool:
        limits = (time.time() + (args.within or 1e9), args.pace)
        for done in as_completed([pool.submit(in_time, *limits, *words) for words in todo]):
            row = done.result()
            if row is None:
                continue
            row["jobs"] = args.jobs
            facts.append(args.out, row)
            print(row["algo"], row["game"], row["seed"], row["seconds"], row["curve"], flush=True)
    known = [json.loads(x) for x in args.out.read_text().splitlines()] if args.out.exists() else []
    verdict(known)


if __name__ == "__main__":
    main()
