"""The records of Atari's speed: what was reached, and what limits it. Called by results.py."""

from __future__ import annotations

from typing import Any

Json = dict[str, Any]
# Three passes forward and one back, which counts twice, of 512 stacks at 22 MFLOP each.
_GFLOP = 56


def records(speed: Json, peers: Json | None, pong: list[Json]) -> list[str]:
    """Lines of docs/results.md. `speed`: atari_speed.json, `peers`: atari_peers.json, `pong`: rows
    of pong_seconds.jsonl."""
    runs = {r["label"]: r["modes"]["auto"] for r in speed["runs"] if "auto" in r["modes"]}
    learners = {r["label"]: r["modes"]["auto"] for r in speed.get("learner", [])}
    lines = ["", "Records that were chased, and what limits each:", ""]
    if "ppo" in runs and "rainbow-iqn" in runs:
        shares = ", ".join(f"{runs[k]['of_ceiling']:.3f} ({k})" for k in ("ppo", "rainbow-iqn"))
        lines.append(
            f"- Share of the emulators' speed, 0.90: {shares}. Of its time ppo's loop waited "
            f"{runs['ppo']['time_env']:.2f} for emulators; the rest is choosing actions, learning "
            "and bookkeeping, during which one of the two groups may have nothing to do."
        )
    if "like Ape-X" in learners:
        rate = learners["like Ape-X"]["learner_alone_updates_per_second"]
        lines.append(
            f"- Ape-X's learner, 800 updates/s: {rate:.0f}. An update is one graph, with products "
            f"of {_GFLOP} GFLOP: {rate * _GFLOP / 1000:.0f} TFLOP/s, a small part of what tensor "
            "cores do. The rest is some hundred small kernels that move frames and activations."
        )
    won = [r["solved_seconds"] for r in pong if r["algo"] == "ppo" and r["solved_seconds"]]
    if won:
        lines.append(
            f"- Pong in 45 s: {min(won):.0f} s. About a million steps are needed, and the "
            "emulators of 16 cores do no more than 16,000 to 28,000 in a second."
        )
    if "ppo as CleanRL" in runs:
        row = runs["ppo as CleanRL"]
        lines.append(
            "- PPO with CleanRL's hyperparameters and float32, 9,000 steps/s: "
            f"{row['steps_per_second']:,.0f}. Eight emulators alone, each waiting for the slowest "
            f"of its group, did {row['ceiling_steps_per_second']:,.0f} on these cores."
        )
    if peers:
        ratios = {task: _best(row) for task, row in peers["tasks"].items()}
        shown = ", ".join(f"{task} {ratio:.2f}" for task, ratio in ratios.items())
        lines.append(
            "- Two cores, relative to stable-baselines3, ppo 1.8, dqn 1.35, acting 1.7: "
            f"{shown}. Acting is the emulator and one pass through the network on both sides; only "
            "what lies between them can be saved."
        )
    return lines


def _best(row: Json) -> float:
    ratios: dict[str, float] = row["median_ratio"]
    return max(ratios.values()) if isinstance(ratios, dict) else float(ratios)
