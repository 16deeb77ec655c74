"""Reasons not to trust a comparison of runs, each as one sentence. Says nothing when there is none.

Whoever shows scores side by side shows these beside them: comparisons all at once, reports each
for itself, as they name what they show by groups and have several environments.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ludus.stats.references import (
    grouped,
    listed,
    protocol_warnings,
    reference_warnings,
    scale_of,
)
from ludus.stats.runs import RunScore
from ludus.units import show_count

ENOUGH_SEEDS, ENOUGH_EPISODES = 5, 10


def warnings_of(
    groups: Mapping[str, Sequence[RunScore]], unscored: Sequence[RunScore] = ()
) -> list[str]:
    """Of groups of runs of one environment: label -> the runs that share it, all with a score."""
    runs = [run for members in groups.values() for run in members]
    scored = [(run, run.score) for run in runs if run.score is not None]
    short = [run.name for run in runs if run.steps and run.step < run.steps]
    seeds = {label: [run.seed for run in members] for label, members in groups.items()}
    return [
        *mixing(runs),
        *chosen([run.name for run, score in scored if score.best]),
        *lengths((run.name, run.steps) for run in runs),
        *([f"not finished: {listed(short)}"] if short else []),
        *few_episodes((run.name, score.episodes) for run, score in scored if score.evaluated),
        *trained_on([r.name for r, score in scored if not score.best and score.step < r.step]),
        *few_seeds({label: len(set(found)) for label, found in seeds.items()}),
        *repeated_seeds(seeds),
        *([f"no score yet, left out: {listed([r.name for r in unscored])}"] if unscored else []),
    ]


def mixing(runs: Sequence[RunScore]) -> list[str]:
    """Why these scores should not be put together, of whatever environments they are."""
    rules = [(r.name, r.score.protocol, r.score.protocol_hash) for r in runs if r.score]
    ways = [(run.name, run.score.source) for run in runs if run.score]
    return [*protocol_warnings(rules), *_scales(runs), *sources(ways), *_versions(runs)]


def _scales(runs: Sequence[RunScore]) -> list[str]:
    """Of the columns that are shares of human and of record play."""
    pairs = dict.fromkeys((r.score.protocol, r.env) for r in runs if r.score)
    told = [text for rules, env in pairs for text in reference_warnings(rules, scale_of(env))]
    return list(dict.fromkeys(told))


def sources(ways: Iterable[tuple[str, str]]) -> list[str]:
    """Of whose score is of what. Training explores and lags behind: it is no evaluation."""
    kinds = grouped(ways)
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


def chosen(who: Sequence[str]) -> list[str]:
    """Those whose score is of weights that were chosen by their score."""
    if not who:
        return []
    return [
        f"best checkpoint: {listed(who)}: chosen among many because of a good score, which "
        "flatters; compare last checkpoints"
    ]


def lengths(planned: Iterable[tuple[str, int | None]]) -> list[str]:
    """Of who was to be trained for how many steps, within one environment."""
    kinds = grouped((who, show_count(steps) if steps else "?") for who, steps in planned)
    if len(kinds) < 2:
        return []
    told = "; ".join(f"{steps} ({listed(who)})" for steps, who in kinds.items())
    return [f"trained for different numbers of steps: {told}"]


def few_episodes(evaluated: Iterable[tuple[str, int]]) -> list[str]:
    """Of who was evaluated over how many episodes."""
    few = [f"{who} ({number})" for who, number in evaluated if number < ENOUGH_EPISODES]
    if not few:
        return []
    return [f"evaluated over fewer than {ENOUGH_EPISODES} episodes: {listed(few)}"]


def trained_on(who: Sequence[str]) -> list[str]:
    """Those whose score is of weights that have changed since."""
    return [f"trained on since the evaluation: {listed(who)}"] if who else []


def few_seeds(counts: Mapping[str, int]) -> list[str]:
    """Label -> how many different seeds."""
    few = {label: number for label, number in counts.items() if number < ENOUGH_SEEDS}
    if not few:
        return []
    why = ["intervals are rough"] if max(few.values()) > 1 else []
    why += ["the order may be luck"] if len(counts) > 1 else []
    told = listed([f"{label} ({number})" for label, number in few.items()])
    if len(counts) > 1 and len(set(counts.values())) == 1:
        told = f"{max(few.values())} each"
    reason = " and ".join(why) or "another seed may score otherwise"
    return [f"fewer than {ENOUGH_SEEDS} seeds: {told}; {reason}"]


def repeated_seeds(groups: Mapping[str, Sequence[int | None]]) -> list[str]:
    """Label -> the seed of each of its runs."""
    found = []
    for label, seeds in groups.items():
        twice = sorted({str(seed) for seed in seeds if seeds.count(seed) > 1})
        found += [f"{label} has seed {', '.join(twice)} more than once"] if twice else []
    return [f"{listed(found)}: such runs are not independent"] if found else []
