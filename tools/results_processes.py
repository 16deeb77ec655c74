"""The part of docs/results.md on many processes: speed, faults, Hogwild, the live evaluator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from result_files import lines_of, table


def processes() -> list[str]:
    peers, faults = table("impala_peers.json"), lines_of("actor_faults.jsonl")
    lines = ["", "## Many processes", ""] if peers or faults else []
    for task, row in (peers or {"tasks": {}})["tasks"].items():
        rates = row["steps_per_second"]
        shown = ", ".join(f"{way} {sorted(x)[len(x) // 2]:,.0f}" for way, x in rates.items())
        ratios = ", ".join(f"{pair} {ratio:.2f}" for pair, ratio in row["median_ratios"].items())
        lines.append(
            f"- IMPALA on {task}, {row['machine']['cores']} cores, {len(rates['rllib'])} rounds, "
            f"median steps/s: {shown}; median ratios: {ratios} (`benchmarks/impala_peers.py`)."
        )
    lines += [FAULTS[row["kind"]](row) for row in faults]
    return [*lines, *hogwild_learning(), *live_evaluator()]


def kills(row: dict[str, Any]) -> str:
    return (
        f"- {row['kills']} SIGKILLs of {row['actors']} actors in {row['seconds']:.0f} s: "
        f"{row['restarts']} replaced, longest pause of the learner "
        f"{row['longest_stall_seconds']} s, its memory "
        f"{row['memory_slope_mb_per_minute']:+} MB a minute (`benchmarks/actor_faults.py`)."
    )


def crowd(row: dict[str, Any]) -> str:
    who = "Hogwild workers" if row.get("fleet") == "hogwild" else "actor processes"
    return (
        f"- {row['actors']} {who}: started in {row['start_seconds']} s, all "
        f"learned from after {row['until_all_were_learned_from']} s more, stopped in "
        f"{row['stop_seconds']} s{_load(row)}."
    )


def hang(row: dict[str, Any]) -> str:
    what = {
        "stopped": "One of {n} {who} stopped with SIGSTOP",
        "sleeping": "An environment of one of {n} {who} asleep for ever in a step",
    }[row["how"]].format(n=row["actors"], who=_who(row))
    return (
        f"- {what}: replaced after {row['replaced_after_seconds']} s, rows of its replacement "
        f"after {row['rows_again_after_seconds']} s, with actor.hang_seconds="
        f"{row['hang_seconds']:g}; {row['steps_meanwhile']:,} steps meanwhile{_load(row)}."
    )


def orphans(row: dict[str, Any]) -> str:
    seconds = [s for s in row["seconds_until_shared_clean"] if s is not None]
    longest = f"at most {max(seconds)} s" if len(seconds) == row["repeats"] else "**not always**"
    return (
        f"- SIGKILL of the main process of {row['actors']} {_who(row)} and a live evaluator, "
        f"{row['repeats']} times, in {sum(row['one_stopped'])} of them one was stopped with "
        f"SIGSTOP: all of its {max(row['processes'])} processes and what it had in /dev/shm gone "
        f"after {longest}; left {sum(row['processes_left'])} and {sum(row['shared_left'])}"
        f"{_load(row)}."
    )


def _who(row: dict[str, Any]) -> str:
    return "Hogwild workers" if row["fleet"] == "hogwild" else "actors"


def _load(row: dict[str, Any]) -> str:
    """Older rows do not say."""
    load, cores = row.get("load_after"), row["machine"]["cores"]
    threads = f", torch threads {row['threads']}" if "threads" in row else ""
    return "" if load is None else f" (load afterwards {load} on {cores} cores{threads})"


FAULTS: dict[str, Callable[[dict[str, Any]], str]] = {
    "kills": kills, "crowd": crowd, "hang": hang, "orphans": orphans,
}  # fmt: skip


def hogwild_learning() -> list[str]:
    lines = []
    for r in lines_of("hogwild_atari.jsonl"):
        if r["algo"] == "random":
            low, high = r["bootstrap_interval"]
            lines.append(
                f"- Random actions on {r['game']} by the same rules: {r['mean']:.2f} (95 % "
                f"{low:.2f} to {high:.2f}, {r['games']} games)."
            )
            continue
        also = f", in parallel with {r['beside']}" if r["beside"] else ""
        curve = ", ".join(str(score) for _, _, score, _ in r["by_minute"])
        lines.append(
            f"- {r['algo']} on {r['game']}, {r['actors']} Hogwild processes of {r['envs']} "
            f"environments on {r['machine']['cores']} cores{also}: {r['steps_per_second']:,.0f} "
            f"steps/s; mean score of each minute {curve} (`benchmarks/hogwild_atari.py`)."
        )
    return lines


def live_evaluator() -> list[str]:
    rows = lines_of("live_eval_cost.jsonl")
    if not rows:
        return []
    # Older rows are of one that never did, or not on that machine: it hides that cores are shared.
    rested = [r for r in rows if "standard_error" in r]
    shown = ", ".join(
        f"{100 * r['cost']:.1f} ± {100 * r['standard_error']:.1f} % ({len(r['windows']['on'])} "
        "windows with it, as many without)"
        for r in rested
    )
    before = ", ".join(f"{100 * r['cost']:.1f}" for r in rows if r not in rested)
    return [
        f"- The live evaluator's cost in steps/s of ppo on {rows[-1]['machine']['cores']} cores "
        f"and a GPU, a run each: {shown} (`benchmarks/live_eval_cost.py`). Before it rested there: "
        f"{before} %."
    ]
