"""Digests of what every algorithm learns, to prove that a change of the code changed no result.

    python tools/digests.py --out before.json        # on the old commit
    python tools/digests.py --against before.json    # on the new one: exits 1 if anything differs

Every registered algorithm trains for at least 200 updates at a fixed seed, in one process and in
two actor processes in lockstep (hogwild: one worker). Weights, optimizer state, metrics and
episodes are hashed, without times and rates. Only the command line and the files of a run are
used, so that the script runs on commits whose modules have other names.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from safetensors import safe_open

ROOT = Path(__file__).parent.parent
LUDUS = Path(sys.executable).parent / "ludus"
UPDATES = 200
COMMON = (
    "seed=7", "env.num=2", "run.exact=on", "run.threads=1", "run.device=cpu", "run.precision=fp32",
    "run.checkpoint_time=off", "log.every=200", "log.tensorboard=false",
)  # fmt: skip
REPLAY = (
    "steps=1200",
    "warmup=64",
    "batch=16",
    "replay_ratio=4",
    "target_period=20",
    "capacity=3000",
)
FAMILY = {
    "dqn": REPLAY,
    "sac": REPLAY,
    "td3": tuple(word for word in REPLAY if not word.startswith("target_period")),
    "ppo": ("steps=2000", "rollout=16", "epochs=2", "minibatches=2"),
    "pqn": ("steps=2000", "rollout=16", "epochs=2", "minibatches=2"),
    "impala": ("steps=8000", "unroll=8", "batch=4"),
    "a3c": ("steps=2000", "t_max=5"),
    "a2c": ("steps=2500",),
    "reinforce": ("steps=5000", "env.max_episode_steps=10"),
    "async": ("steps=2000", "t_max=5", "target_period=20"),
}
HEADS = {
    "quantile": ("head.quantiles=8",),
    "implicit": ("head.taus=8", "head.target_taus=8", "head.act_taus=8", "head.cosines=16"),
    "categorical": ("head.atoms=25",),
}
CLOCK = re.compile(
    r"second|^time/|_time$|^agent/policy_lag_s|wait|utili[sz]ation|memory|^actors/(chunks|queue)"
)
# Metrics that runs did not have when benchmarks/results/digests.json was recorded.
NEWER = frozenset(("learner/policy_lag",))


def environment(name: str) -> str:
    from ludus import registry

    return "CartPole-v1" if "discrete" in registry.find(name).actions else "Pendulum-v1"


def settings(name: str) -> tuple[str, ...]:
    from ludus import registry

    entry = registry.find(name)
    head = entry.variant.get("head", {}).get("kind", "")
    return FAMILY[entry.family] + HEADS.get(head, ())


def fleets(name: str) -> dict[str, tuple[str, ...]]:
    if name.startswith(("a3c", "async")):
        return {"hogwild": ("actors=1",)}
    return {
        "inline": ("fleet=inline",),
        "lockstep": ("fleet=processes", "actors=2", "env.num=1"),
    }


def train(name: str, more: tuple[str, ...], folder: Path) -> Path:
    run = folder / "run"
    words = [str(LUDUS), "train", name, environment(name), "--preset", "none", "--run", "run"]
    words += ["--runs-dir", str(folder), *COMMON, *settings(name), *more]
    done = subprocess.run(
        words, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(words)}\n{done.stdout}{done.stderr}")
    return run


def of_tensors(path: Path) -> str:
    found = hashlib.sha256()
    with safe_open(path, "pt") as file:
        for key in sorted(file.keys()):
            value = file.get_tensor(key)
            found.update(f"{key} {value.dtype} {tuple(value.shape)}".encode())
            found.update(value.contiguous().numpy().tobytes())
    return found.hexdigest()


def of_metrics(path: Path) -> str:
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    rows = [
        {k: row[k] for k in sorted(row) if not CLOCK.search(k) and k not in NEWER} for row in rows
    ]
    return hashlib.sha256(json.dumps(rows).encode()).hexdigest()


def of_episodes(path: Path) -> str:
    rows = [",".join(line.split(",")[:5]) for line in path.read_text().splitlines()]
    return hashlib.sha256("\n".join(rows).encode()).hexdigest()


def digests(name: str, more: tuple[str, ...]) -> dict[str, str | int]:
    with tempfile.TemporaryDirectory() as folder:
        run = train(name, more, Path(folder))
        last = run / "checkpoints" / "last"
        step = (
            last.resolve() if last.is_symlink() else run / "checkpoints" / last.read_text().strip()
        )
        state = json.loads((step / "state.json").read_text())
        updates = int(state["updates"])
        if updates < UPDATES:
            raise SystemExit(f"{name}: {updates} updates, fewer than {UPDATES}")
        return {
            "updates": updates,
            "model": of_tensors(step / "model.safetensors"),
            "optimizer": of_tensors(step / "optim.safetensors"),
            "metrics": of_metrics(run / "metrics.jsonl"),
            "episodes": of_episodes(run / "episodes.csv"),
        }


def main() -> int:
    from ludus import registry

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--against", type=Path)
    parser.add_argument("names", nargs="*", help="algorithms; all if none is named")
    options = parser.parse_args()
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=ROOT
    )
    known = json.loads(options.against.read_text())["runs"] if options.against else {}
    found: dict[str, dict[str, str | int]] = {}
    differ = 0
    for name in options.names or [entry.name for entry in registry.entries()]:
        for fleet, more in fleets(name).items():
            key = f"{name} {fleet}"
            found[key] = digests(name, more)
            if not known:
                print(f"{key}: {found[key]['updates']} updates", flush=True)
                continue
            if key not in known:
                print(f"{key}: not recorded", flush=True)
                continue
            parts = [part for part, value in found[key].items() if known[key][part] != value]
            differ += bool(parts)
            print(f"{key}: {'differs in ' + ', '.join(parts) if parts else 'equal'}", flush=True)
    if options.out:
        text = json.dumps({"commit": commit.stdout.strip(), "runs": found}, indent=1)
        options.out.write_text(text + "\n")
    print(f"{len(found)} runs, {differ} differ" if known else f"{len(found)} runs")
    return 1 if differ else 0


if __name__ == "__main__":
    sys.exit(main())
