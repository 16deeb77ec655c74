"""Does every algorithm learn what it should? Ordinary runs of the command line, all of them kept.

    python benchmarks/learning_classic.py --jobs 2            # the whole matrix, what is missing
    python benchmarks/learning_classic.py --only dqn:CartPole-v1
    python benchmarks/learning_classic.py --only apex-dqn --trial free-4 --seeds 3 1 2 \\
        --set actor.lockstep=auto actor.rows=4                # other settings, to learn from

Each run trains with the algorithm's own preset, with what FLEETS adds for some, and is then
evaluated greedily over 30 episodes from its `last` checkpoint (it counts) and its `best` by
training return. Results are appended to benchmarks/results/learning_classic.jsonl, failures too; a
row that is there is not run again unless its preset changed since. Those of a trial go to
learning_classic_trials.jsonl and never count.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "learning_classic.jsonl"
TRIALS = HERE / "results" / "learning_classic_trials.jsonl"
SEEDS = (1, 2, 3)  # fixed before the first run
EPISODES = 30
ATARI_ONLY = ("atari", "protocol", "threads")  # settings that say nothing here
LOOKS = ("render",)  # who watches changes nothing; some rows were made with it in their digest
# Settings that older rows did not have, with the value that changes nothing.
NEWER = {
    "ladder": None,
    "chunk": 0,
    "clip_by": "global",
    "queue": 0,
    "core": "none",
    "core_size": 64,
    "init": "orthogonal",
}
NEWER_REPLAY = {"initial": "largest"}
NEWER_TORSO = {"layer_norm": False}
NEWER_ENV = {"integer_scale": "bounds", "on_error": "auto"}
VALUE_BASED = (
    "dqn", "double-dqn", "dueling-dqn", "prioritized-dqn", "c51", "qr-dqn", "iqn", "rainbow",
    "rainbow-iqn", "munchausen-iqn", "apex-dqn",
)  # fmt: skip

# Several processes: no two runs are alike.
ASYNC = ("a3c", "async-q", "async-sarsa", "async-nstep-q")

# (algorithm, environment): the bar, the largest number of steps, and whether the bar is for each
# seed or for the mean over seeds.
BARS: dict[tuple[str, str], tuple[float, int, str]] = {
    **{(a, "CartPole-v1"): (475.0, 150_000, "each") for a in (*VALUE_BASED, "ppo", "impala")},
    **{(a, "CartPole-v1"): (475.0, 450_000, "each") for a in ASYNC},
    ("ppo", "Acrobot-v1"): (-100.0, 1_000_000, "each"),
    ("dqn", "Acrobot-v1"): (-100.0, 1_000_000, "each"),
    ("ppo", "LunarLander-v3"): (200.0, 1_000_000, "mean"),
    ("dqn", "LunarLander-v3"): (200.0, 500_000, "mean"),
    ("dqn", "MountainCar-v0"): (-130.0, 240_000, "each"),
    ("ppo", "Pendulum-v1"): (-250.0, 300_000, "each"),
    ("impala", "ludus/CartPoleNoVelocity-v0"): (475.0, 300_000, "each"),  # by its LSTM
    ("a3c", "Pendulum-v1"): (-300.0, 1_500_000, "each"),
}
# What is meant for many actors is judged with two, in processes of their own, with the preset's
# number of environments between them.
TWO = {"run.fleet": "processes", "run.actors": 2, "env.num": 4}
FLEETS: dict[tuple[str, str], dict[str, Any]] = {
    ("impala", "CartPole-v1"): TWO,
    ("impala", "ludus/CartPoleNoVelocity-v0"): TWO,
    # In lockstep: running free they send 16 rows at a time, and one seed of three ended at 274;
    # with 4 rows at a time another ended at 299 (FREE_TRIAL).
    ("apex-dqn", "CartPole-v1"): {**TWO, "actor.lockstep": "on"},
}
FREE_APEX = "6f455501e400"  # the config of those rows
FREE_TRIAL = "apex free, 4 rows"


def ludus(*words: str) -> str:
    """One command; its standard output."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "ludus", *words], capture_output=True, text=True, env=environment
    )
    if done.returncode != 0:
        raise RuntimeError(f"ludus {' '.join(words)} -> {done.returncode}\n{done.stderr[-2000:]}")
    return done.stdout


def one(algo: str, env: str, seed: int, trial: dict[str, Any] | None = None) -> dict[str, Any]:
    """`trial`: its name and the settings it adds to or changes in those of FLEETS."""
    row: dict[str, Any] = {"algo": algo, "env": env, "seed": seed, "episodes": EPISODES}
    added = FLEETS.get((algo, env), {})
    if trial is not None:
        added = added | trial["settings"]
        row |= {"trial": trial["name"], "settings": words_of(added)}
    row |= collected_by(algo, env, added)
    with tempfile.TemporaryDirectory(prefix="ludus-") as folder:
        where = ("--runs-dir", folder)
        start = time.perf_counter()
        try:
            if trial is None:
                row["config"] = digest(algo, env)
            words = [f"seed={seed}", *words_of(added).split()]
            ludus("train", algo, env, *words, "--run", "it", "--quiet", *where)
            row["train_seconds"] = round(time.perf_counter() - start, 1)
            for which in ("last", "best"):
                try:
                    text = ludus("eval", "it", "--checkpoint", which, "--episodes", str(EPISODES),
                                 "--json", *where)  # fmt: skip
                except RuntimeError:
                    if which == "last":
                        raise
                    continue  # too few whole episodes for a best
                result = json.loads(text)
                row[which] = round(result["mean"], 2)
                row[f"{which}_std"] = round(result["std"], 2)
                row[f"{which}_step"] = result["step"]
            row["steps"] = row["last_step"]
        except RuntimeError as error:
            row["failed"] = str(error)
    return row | {
        "commit": commit(),
        "cpu": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
    }


def words_of(settings: dict[str, Any]) -> str:
    """As they are typed."""
    return " ".join(f"{key}={value}" for key, value in settings.items())


def collected_by(algo: str, env: str, added: dict[str, Any]) -> dict[str, Any]:
    """Who collects, as the preset and what was added to it say together."""
    import ludus as package

    cfg = package.config(algo, env, seed=0, **added)
    return {"fleet": cfg.run.fleet, "actors": cfg.run.actors, "lockstep": cfg.lockstep}


@functools.cache
def digest(algo: str, env: str, left_out: tuple[str, ...] = ATARI_ONLY + LOOKS) -> str:
    """Changes with what is learned from (algorithm, environment, steps), not with logging."""
    import ludus as package

    tree = package.config(algo, env, seed=0, **FLEETS.get((algo, env), {})).tree()
    replay, torso = tree["algo"].get("replay", {}), tree["algo"]["torso"]
    torsos = [torso, *(torso[k] for k in ("mlp", "cnn") if k in torso)]
    for section, newer in (
        (tree["algo"], NEWER), (replay, NEWER_REPLAY), (tree["env"], NEWER_ENV),
        *((part, NEWER_TORSO) for part in torsos),
    ):  # fmt: skip
        for key, before in newer.items():
            if section.get(key, before) == before:
                section.pop(key, None)
    world = {k: v for k, v in tree["env"].items() if k not in left_out}
    relevant = [tree["algo"], world, tree["run"]["steps"], tree["eval"]["best_window"]]
    if tree["run"]["fleet"] != "inline":
        relevant.append([tree["run"][k] for k in ("fleet", "actors", "shared_statistics")])
    changed = {k: v for k, v in FLEETS.get((algo, env), {}).items() if k.startswith("actor.")}
    relevant += [changed] if changed else []
    return hashlib.sha256(json.dumps(relevant, sort_keys=True).encode()).hexdigest()[:12]


def current(row: dict[str, Any]) -> bool:
    """Whether a row was made with the settings of today."""
    what = row["algo"], row["env"]
    return row["config"] in (digest(*what), digest(*what, ATARI_ONLY))


def commit() -> str:
    done = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=HERE
    )
    return done.stdout.strip()


def known() -> list[dict[str, Any]]:
    return [json.loads(x) for x in RESULTS.read_text().splitlines()] if RESULTS.exists() else []


def counted(row: dict[str, Any]) -> float:
    """The last checkpoint: nothing is selected. (Until 2026-11-15 it was the one that is best by
    training return, which is in every row too.)"""
    return float(row.get("last", -1e9))


def verdicts(rows: list[dict[str, Any]]) -> list[tuple[str, str, bool, list[float]]]:
    """(algorithm, environment, bar held, the score that counts per seed)."""
    out = []
    for (algo, env), (bar, limit, kind) in BARS.items():
        mine = {r["seed"]: r for r in rows
                if (r["algo"], r["env"]) == (algo, env) and current(r)}  # fmt: skip
        got = [counted(r) for _, r in sorted(mine.items())]
        within = all(r.get("steps", limit + 1) <= limit for r in mine.values())
        enough = len(got) >= len(SEEDS) and within
        reached = min(got, default=-1e9) if kind == "each" else sum(got) / max(1, len(got))
        out.append((algo, env, enough and reached >= bar, got))
    return out


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", action="append", default=[], help="algo:env, algo or env")
    parser.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS))
    parser.add_argument("--trial", help="a name for other settings")
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="of the trial")
    args = parser.parse_args(words)
    if bool(args.set) != bool(args.trial):
        parser.error("--trial and --set go together: other settings need a name, and a name some")
    if not args.trial and not set(args.seeds) <= set(SEEDS):
        parser.error(f"what counts was fixed beforehand: seeds {SEEDS}; others are a --trial")
    trial = None
    if args.trial:
        trial = {"name": args.trial, "settings": dict(word.split("=", 1) for word in args.set)}
    counting = known() if trial is None else []
    have = {(r["algo"], r["env"], r["seed"]) for r in counting if current(r)}
    todo = [
        (algo, env, seed, trial) for seed in args.seeds for algo, env in BARS
        if (algo, env, seed) not in have
        and (not args.only or {f"{algo}:{env}", algo, env} & set(args.only))
    ]  # fmt: skip
    out = RESULTS if trial is None else TRIALS
    out.parent.mkdir(exist_ok=True)
    with ThreadPoolExecutor(args.jobs) as pool:
        for row in pool.map(lambda job: one(*job), todo):
            with out.open("a") as file:
                file.write(json.dumps(row) + "\n")
            print(json.dumps(row), flush=True)
    for algo, env, held, got in verdicts(known()):
        print(f"{'ok ' if held else '-- '} {algo:16s} {env:28s} {got}")


if __name__ == "__main__":
    main()
