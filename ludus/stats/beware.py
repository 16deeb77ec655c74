"""Reasons not to trust a comparison of runs, each as one sentence. Says nothing when there is none.

Whoever shows scores side by side shows these beside them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ludus.stats.references import listed, protocol_warnings, reference_warnings, scale_of
from ludus.stats.runs import RunScore
from ludus.units import show_count

ENOUGH_SEEDS = 5


def warnings_of(
    groups: Mapping[str, Sequence[RunScore]], unscored: Sequence[RunScore] = ()
) -> list[str]:
    """Of groups of runs of one environment: label -> the runs that share it, all with a score."""
    runs = [run for members in groups.values() for run in members]
    return [
        *mixing(runs),
        *_best(runs),
        *_lengths(runs),
        *_seeds(groups),
        *([f"no score yet, left out: {listed([r.name for r in unscored])}"] if unscored else []),
    ]


def mixing(runs: Sequence[RunScore]) -> list[str]:
    """Why these scores should not be put together, of whatever environments they are."""
    rules = [(r.name, r.score.protocol, r.score.protocol_hash) for r in runs if r.score]
    return [*protocol_warnings(rules), *_scales(runs), *_sources(runs), *_versions(runs)]


def _scales(runs: Sequence[RunScore]) -> list[str]:
    """Of the columns that are shares of human and of record play."""
    pairs = dict.fromkeys((r.score.protocol, r.env) for r in runs if r.score)
    told = [text for rules, env in pairs for text in reference_warnings(rules, scale_of(env))]
    return list(dict.fromkeys(told))


def _sources(runs: Sequence[RunScore]) -> list[str]:
    """Training explores and lags behind: its scores are not those of an evaluation."""
    kinds: dict[str, list[str]] = {}
    for run in runs:
        if run.score is not None:
            kinds.setdefault(run.score.source, []).append(run.name)
    if len(kinds) < 2:
        return []
    told = "; ".join(f"{kind} ({listed(who)})" for kind, who in kinds.items())
    return [f"scores were taken in different ways: {told}"]


def _versions(runs: Sequence[RunScore]) -> list[str]:
    found = []
    for package, shown in (("ludus", "ludus"), ("ale-py", "the emulator ale-py")):
        if package == "ale-py" and not any(run.game for run in runs):
            continue
        seen: dict[str, list[str]] = {}
        for run in runs:
            for version in sorted(run.versions.get(package, ())):
                seen.setdefault(version, []).append(run.name)
        if len(seen) > 1:
            told = "; ".join(f"{version} ({listed(who)})" for version, who in seen.items())
            found.append(f"versions of {shown} are mixed: {told}")
    return found


def _best(runs: Sequence[RunScore]) -> list[str]:
    who = [run.name for run in runs if run.score is not None and run.score.best]
    if not who:
        return []
    return [
        f"best checkpoint: {listed(who)} was chosen among many because it scored well, which "
        "flatters it; compare last checkpoints"
    ]


def _lengths(runs: Sequence[RunScore]) -> list[str]:
    found = []
    done: dict[str, list[str]] = {}
    for run in runs:
        done.setdefault(show_count(run.steps) if run.steps else "?", []).append(run.name)
    if len(done) > 1:
        told = "; ".join(f"{steps} ({listed(who)})" for steps, who in done.items())
        found.append(f"trained for different numbers of steps: {told}")
    short = [run.name for run in runs if run.steps and run.step < run.steps]
    if short:
        found.append(f"not finished: {listed(short)}")
    old = [r.name for r in runs if r.score and not r.score.best and r.score.step < r.step]
    if old:
        found.append(f"trained on since the evaluation: {listed(old)}")
    return found


def _seeds(groups: Mapping[str, Sequence[RunScore]]) -> list[str]:
    found = []
    few = [f"{label} {len(runs)}" for label, runs in groups.items() if len(runs) < ENOUGH_SEEDS]
    if few:
        found.append(f"fewer than {ENOUGH_SEEDS} seeds: {listed(few)}; intervals are rough")
    for label, runs in groups.items():
        seeds = [run.seed for run in runs]
        twice = sorted({str(seed) for seed in seeds if seeds.count(seed) > 1})
        if twice:
            found.append(f"{label} has seed {', '.join(twice)} more than once")
    return found
