"""Turns benchmarks/results/*.json[l] into docs/results.md. Measures nothing itself."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))

import learning_classic as classic  # noqa: E402


def learning() -> list[str]:
    rows = classic.known()
    now = [r for r in rows if r["config"] == classic.newest(rows, r)]
    old = [r for r in rows if r not in now]
    lines = [
        "## Learning, classic control",
        "",
        "`python benchmarks/learning_classic.py`: three seeds fixed beforehand, the algorithm's",
        f"own preset, greedy evaluation over {classic.EPISODES} episodes of the checkpoint that is",
        "`best` by training return (in brackets: of the `last`). Seconds are of training with one",
        "thread while other jobs shared the machine.",
        "",
        "How far the rows can be trusted: presets were changed and run again on these seeds",
        "after one had failed, so they are not untouched. The eight rows of 9fbbb78 were labelled",
        "afterwards; their second seeds ran while presets and dqn.py were being replaced by newer",
        "ones. iqn seed 2 (71bc2bf) ran with a preset that was committed later. ppo rows before",
        "c4cc5ce lack the setting policy_cost, whose default changes nothing.",
        "",
        "| algorithm | environment | seed 1 | seed 2 | seed 3 | bar | steps | seconds |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for algo, env, held, got in classic.verdicts(rows):
        mine = sorted(
            (r for r in now if (r["algo"], r["env"]) == (algo, env)), key=lambda r: r["seed"]
        )
        if not mine:
            continue
        bar, _, kind = classic.BARS[algo, env]
        by_seed = {
            r["seed"]: f"{x:.1f} ({r.get('last', 0):.1f})" for x, r in zip(got, mine, strict=True)
        }
        cells = [by_seed.get(seed, "-") for seed in classic.SEEDS]
        steps = f"{max(r.get('steps', 0) for r in mine):,}"
        seconds = ", ".join(f"{r.get('train_seconds', 0):.0f}" for r in mine)
        word = "held" if held else "not held" if len(got) == len(classic.SEEDS) else "open"
        verdict = f"{word}: {bar:g} ({kind})"
        row = (algo, env, *cells, verdict, steps, seconds)
        lines.append(f"| {' | '.join(map(str, row))} |")
    if old:
        lines += ["", "Earlier presets, kept for the record:", ""]
        for r in old:
            both = f"last {r.get('last')}, best {r.get('best')}"
            scores = "failed" if "failed" in r else both
            lines.append(f"- {r['algo']} {r['env']} seed {r['seed']}: {scores} ({r['config']})")
    return lines


def table(name: str) -> dict[str, Any] | None:
    path = ROOT / "benchmarks" / "results" / name
    return json.loads(path.read_text()) if path.exists() else None


def speed() -> list[str]:
    lines = ["", "## Speed", ""]
    train = table("train_peers.json")
    if train:
        for task, row in train["tasks"].items():
            mid = [sorted(row[k])[len(row[k]) // 2] for k in ("ludus", "sb3")]
            lines.append(
                f"- {task} CartPole-v1, {train['threads']} thread: {mid[0]:,.0f} steps/s, "
                f"stable-baselines3 {mid[1]:,.0f} steps/s, median ratio {row['median_ratio']:.2f} "
                f"over {len(row['sb3'])} rounds (`benchmarks/train_peers.py`)."
            )
    where = "`benchmarks/results"
    lines.append(f"- Prioritised replay beside cpprb and tianshou: {where}/replay_peers.json`.")
    lines.append(f"- Every algorithm on one GPU beside the CPU: {where}/gpu_smoke.json`.")
    return lines


def main() -> None:
    text = "\n".join(["# Results", "", *learning(), *speed()]) + "\n"
    (ROOT / "docs" / "results.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
