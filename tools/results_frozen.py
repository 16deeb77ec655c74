"""The table of frozen presets on seeds that nobody chose, for tools/results.py."""

from __future__ import annotations

import statistics

import learning_frozen as frozen


def frozen_presets() -> list[str]:
    """For each task the newest commit that it was run at; earlier ones in a sentence."""
    rows = frozen.known()
    if not rows:
        return []
    lines = [
        "## Presets on seeds drawn after they were frozen",
        "",
        "`python benchmarks/learning_frozen.py --commit HASH`: presets and algorithms of that",
        "commit; the seeds are the first five groups of four hex digits of its hash. A score is",
        f"the mean of {frozen.EPISODES} greedy episodes of the `last` checkpoint, a bar is one of",
        "the mean over seeds; some have a floor for every seed.",
        "",
        "| preset | environment | bar | mean | by seed | commit | |",
        "|---|---|---|---|---|---|---|",
    ]
    earlier = []
    for task in frozen.MATRIX:
        commits = list(dict.fromkeys(r["commit"] for r in rows if r["name"] == task.name))
        for commit in commits:
            held, scores = frozen.verdict(task, rows, commit)
            word = "held" if held else "not held" if len(scores) == frozen.SEEDS else "open"
            name = f"{task.algo}{' without LSTM' if task.below else ''}"
            if commit != commits[-1]:
                earlier.append(f"{name} at {commit[:7]}: {word} ({_words(scores)})")
                continue
            sign = "below" if task.below else "at least"
            floor = "" if task.floor is None else f", each {task.floor:g}"
            lines.append(
                f"| {name} | {task.env} | {sign} {task.bar:g}{floor} | "
                f"{statistics.mean(scores):.1f} | {_words(scores)} | {commit[:7]} | {word} |"
            )
    if earlier:
        lines += ["", f"Presets that were changed since: {'; '.join(earlier)}."]
    return [*lines, ""]


def _words(numbers: list[int] | list[float]) -> str:
    return ", ".join(f"{number:g}" for number in numbers)
