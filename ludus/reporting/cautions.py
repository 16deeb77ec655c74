"""What a reader must know before believing a number: few seeds, mixed rules, chosen weights."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from ludus.reporting.comparing import Comparison
from ludus.reporting.groups import Group
from ludus.reporting.reading import RunData
from ludus.reporting.scores import Game, GroupScore, best_score
from ludus.stats import warnings as beware
from ludus.stats.references import listed, protocol_warnings, reference_warnings, scale_of
from ludus.stats.runs import table
from ludus.track.atomic_files import read_json

_VERSIONS = ("ludus", "torch", "gymnasium", "ale-py")


def cautions(
    groups: Sequence[Group],
    scores: Sequence[GroupScore],
    comparison: Comparison | None,
    games: Sequence[Game] = (),
) -> list[str]:
    runs = [run for group in groups for run in group.runs]
    found = [*_seeds(groups), *_lengths(groups), *_protocols(scores), *_references(games)]
    found += [*_versions(runs), *_sources(scores)]
    found += _best(runs, scores) + _older(scores) + _unfinished(runs) + _benches(runs)
    if comparison is not None:
        found += _compared(comparison)
    elif scores and len({group.env for group in groups}) > 1:
        found.append("No aggregates: nothing ran with the same settings in every environment.")
    return found


def _seeds(groups: Sequence[Group]) -> list[str]:
    if sum(len(group.runs) for group in groups) == 1:
        return ["One seed: another may score otherwise; an interval over episodes does not tell."]
    fewest: dict[str, int] = {}
    for group in groups:
        number = len(set(group.seeds))
        fewest[group.label] = min(number, fewest.get(group.label, number))
    few = [_sentence(text) for text in beware.few_seeds(fewest)]
    twice = _by_env(groups, lambda some: beware.repeated_seeds({g.label: g.seeds for g in some}))
    return [*few, *(_sentence(text, keep=True) for text in twice)]


def _lengths(groups: Sequence[Group]) -> list[str]:
    """A group has one length: it is a setting."""
    told = _by_env(groups, lambda some: beware.lengths((g.label, g.runs[0].steps) for g in some))
    return [_sentence(text) for text in told]


def _by_env(groups: Sequence[Group], check: Callable[[Sequence[Group]], list[str]]) -> list[str]:
    """What is said of the groups of each environment: once, and where, unless of all of them."""
    envs = list(dict.fromkeys(group.env for group in groups))
    said: dict[str, list[str]] = {}
    for env in envs:
        for text in check([group for group in groups if group.env == env]):
            said.setdefault(text, []).append(env)
    return [
        text if len(where) == len(envs) else f"{text}, in {listed(where)}"
        for text, where in said.items()
    ]


def _protocols(scores: Sequence[GroupScore]) -> list[str]:
    """Of the rules that scores were made by, which an evaluation may have chosen anew."""
    runs = [run for score in scores for run in score.runs]
    rules = [(score.run.name, score.protocol, score.protocol_hash) for score in runs]
    return [_sentence(text) for text in protocol_warnings(rules)]


def _references(games: Sequence[Game]) -> list[str]:
    """Of published agents, and of the play that shares are of; each sentence once."""
    found: dict[str, None] = {}
    for game in games:
        for protocol in {run.protocol: None for row in game.rows for run in row.score.runs}:
            beside = [*scale_of(game.env), *game.published]
            found |= dict.fromkeys(reference_warnings(protocol or None, beside))
    return [_sentence(text) for text in found]


def _versions(runs: Sequence[RunData]) -> list[str]:
    found = []
    for package in _VERSIONS:
        seen = {str(v[package]) for run in runs for v in _installed(run) if package in v}
        if len(seen) > 1:
            found.append(f"{package} {', '.join(sorted(seen))}")
    commits = {str(c) for run in runs if (c := _commit(run)) is not None}
    if len(commits) > 1:
        found.append(f"{len(commits)} commits ({', '.join(sorted(c[:7] for c in commits))})")
    changed = f"Mixed versions: these runs were made with {'; '.join(found)}."
    return [changed] if found else []


def _installed(run: RunData) -> list[dict[str, Any]]:
    """Versions at the start of a run, and those that a later session had instead."""
    sessions = run.manifest.get("sessions")
    later = [s for s in sessions if isinstance(s, dict)] if isinstance(sessions, list) else []
    tables = [run.manifest, *(table(session, "changed") for session in later)]
    return [table(t, "versions") for t in tables]


def _commit(run: RunData) -> str | None:
    git = run.manifest.get("git")
    return str(git.get("commit")) if isinstance(git, dict) and git.get("commit") else None


def _sources(scores: Sequence[GroupScore]) -> list[str]:
    every = [run for score in scores for run in score.runs]
    told = beware.sources((s.run.name, s.source) for s in every)
    told += beware.few_episodes((s.run.name, s.episodes) for s in every if s.evaluated)
    return [_sentence(text) for text in told]


def _best(runs: Sequence[RunData], scores: Sequence[GroupScore]) -> list[str]:
    told = beware.chosen([s.run.name for score in scores for s in score.runs if s.of_best])
    beside = [run.name for run in runs if best_score(run) is not None]
    if beside and not told:
        told = [
            f"best checkpoint: {listed(beside)} also has evaluations of it, chosen by its score; "
            "they are listed, and never used as a headline"
        ]
    return [_sentence(text) for text in told]


def _older(scores: Sequence[GroupScore]) -> list[str]:
    """Chosen ones have a sentence of their own."""
    every = [s for score in scores for s in score.runs if s.evaluated and not s.of_best]
    told = beware.trained_on([s.run.name for s in every if s.step < s.run.step])
    return [_sentence(text) for text in told]


def _unfinished(runs: Sequence[RunData]) -> list[str]:
    failed = [run.name for run in runs if run.state in ("failed", "dead")]
    short = [run.name for run in runs if run.state in ("stopped", "empty")]
    found = [f"Failed before the end: {listed(failed)}."] if failed else []
    return [*found, f"Stopped before the end: {listed(short)}."] if short else found


def _benches(runs: Sequence[RunData]) -> list[str]:
    """A bench of which only a part is here."""
    found = []
    for folder in sorted({run.path.parent for run in runs}):
        told = read_json(folder / "bench.json")
        cells = [c for c in told.get("cells") or () if isinstance(c, dict)]
        names = {run.name for run in runs if run.path.parent == folder}
        missing = [c for c in cells if c.get("run") not in names or c.get("state") != "finished"]
        if missing and len(names) > 1:
            states = Counter(str(c.get("state") or "missing") for c in missing)
            counts = ", ".join(f"{number} {state}" for state, number in sorted(states.items()))
            found.append(f"The bench is not complete: of {len(cells)} runs {counts}.")
    return found


def _compared(comparison: Comparison) -> list[str]:
    found = []
    if comparison.left_out:
        found.append(
            f"Not in the aggregates: {listed(comparison.left_out, 5)}, which did not run in every "
            "environment."
        )
    if comparison.uneven:
        found.append("Numbers of runs differ: aggregates use as many of each as the fewest have.")
    return found


def _sentence(text: str, keep: bool = False) -> str:
    """`keep`: it begins with a name."""
    return f"{text}." if keep else f"{text[:1].upper()}{text[1:]}."
