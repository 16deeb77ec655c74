"""Reasons not to trust a comparison of runs, one sentence each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, TypeAlias

from ludus.stats.groups import ENOUGH_EPISODES, Group
from ludus.stats.references import HUMAN, RANDOM, RECORD, Reference, kind_of, scale_of
from ludus.stats.runs import Run, Score
from ludus.track.atomic_files import read_json
from ludus.units import show_count

if TYPE_CHECKING:
    from ludus.stats.compare import Aggregates

Rules: TypeAlias = tuple[str, str | None, str | None]  # whose; their label; their hash
ENOUGH_SEEDS = 5
_FAILED = ("failed", "dead")  # states
_PACKAGES = {"ludus": "ludus", "torch": "torch", "gymnasium": "gymnasium",
             "ale-py": "the emulator ale-py"}  # fmt: skip


def warnings_of(groups: Sequence[Group], unscored: Sequence[Run] = ()) -> list[str]:
    """Warnings about groups of runs, of one environment or several."""
    runs = [run for group in groups for run in group.runs]
    scored = _scored(runs)
    chosen = [run.name for run, score in scored if score.of_best]
    # Chosen checkpoints are older by nature and have a warning of their own.
    old = [run.name for run, score in scored if not score.of_best and score.step < run.step]
    few = [
        f"{run.name} ({score.episodes})"
        for run, score in scored
        if score.evaluated and score.episodes < ENOUGH_EPISODES
    ]
    return [
        *mixed(runs),
        *_about(
            "best checkpoint: {}: chosen among many because of a good score, which flatters; "
            "compare last checkpoints",
            chosen,
        ),
        *_by_env(groups, _lengths),
        *_unfinished(runs),
        *_about(f"evaluated over fewer than {ENOUGH_EPISODES} episodes: {{}}", few),
        *_about("trained on since the evaluation: {}", old),
        *_few_seeds(groups),
        *_by_env(groups, _repeated_seeds),
        *_about("no score yet, left out: {}", [run.name for run in unscored]),
    ]


def report_warnings(groups: Sequence[Group], aggregates: Aggregates | None) -> list[str]:
    """The warnings of a report, which also lists best checkpoints, benches and aggregates."""
    runs = [run for group in groups for run in group.runs]
    found = warnings_of(groups)
    if not any(score.of_best for _, score in _scored(runs)):
        found += _about(
            "best checkpoint: {} also has evaluations of it, chosen by its score; they are listed, "
            "and never used as a headline",
            [run.name for run in runs if run.best_evaluation is not None],
        )
    found += _incomplete_benches(runs)
    if aggregates is not None:
        found += _about(
            "not in the aggregates: {}, which did not run in every environment",
            aggregates.left_out,
            most=5,
        )
        if aggregates.uneven:
            found.append(
                "numbers of runs differ: aggregates use as many of each as the fewest have"
            )
    elif _scored(runs) and len({group.env for group in groups}) > 1:
        found.append("no aggregates: nothing ran with the same settings in every environment")
    names = tuple(f"{group.label} has seed" for group in groups)  # keep their case
    return [f"{text if text.startswith(names) else text[:1].upper() + text[1:]}." for text in found]


def mixed(runs: Sequence[Run]) -> list[str]:
    """Why these scores should not be put together: protocols, sources, versions, commits."""
    scored = _scored(runs)
    rules = [(run.name, score.protocol, score.protocol_hash) for run, score in scored]
    scales = [
        text
        for protocol, env in dict.fromkeys((score.protocol, run.env) for run, score in scored)
        for text in reference_warnings(protocol or None, scale_of(env))
    ]
    found = [*protocol_warnings(rules), *dict.fromkeys(scales)]
    # Training explores and uses older weights: it is no evaluation.
    found += _different(
        "scores were taken in different ways", ((run.name, score.source) for run, score in scored)
    )
    for package, shown in _PACKAGES.items():
        if package != "ale-py" or any(run.game for run in runs):
            versions = [(run.name, v) for run in runs for v in sorted(run.versions(package))]
            found += _different(f"versions of {shown} are mixed", versions)
    return found + _different("commits are mixed", ((run.name, run.commit[:7]) for run in runs))


def protocol_warnings(rows: Iterable[Rules]) -> list[str]:
    """Warnings about scores that are compared. A row: the name of a run or an agent, the label and
    the hash of its rules (None: it has none). Names may repeat: two benches can use the same."""
    known = list(rows)
    labels = [(name, label) for name, label, _ in known]
    found = _different("protocols are mixed, and their scores do not compare", labels)
    for label, who in names_by_label(labels).items():
        rules = ((name, digest) for name, its, digest in known if its == label)
        found += _different(f"{label} stands for different rules here", rules)
        if label.endswith("*"):
            changed = f"{label} is {label.rstrip('*')} with rules changed ({listed(who)})"
            found.append(f"{changed}: compares with nothing but the same hash")
    return found


def reference_warnings(protocol: str | None, shown: Iterable[Reference]) -> list[str]:
    """Warnings about references shown with a run of `protocol`, or used to normalize its scores. A
    record has no protocol, and its name says so."""
    if protocol is None:
        return []
    other = [r for r in shown if r.protocol != kind_of(protocol)]
    agents = [r for r in other if r.agent not in (RANDOM, HUMAN, RECORD)]
    scale = [r for r in other if r.agent in (RANDOM, HUMAN)]
    texts = {
        f"references that were not measured as {protocol} do not compare with it": agents,
        f"scores of {protocol} are normalised by play that was measured otherwise": scale,
    }
    return [
        f"{text}: {_kinds(names_by_label((r.agent, r.protocol) for r in found))}"
        for text, found in texts.items()
        if found
    ]


def _scored(runs: Sequence[Run]) -> list[tuple[Run, Score]]:
    return [(run, run.score) for run in runs if run.score is not None]


def _about(text: str, names: Sequence[str], most: int = 3) -> list[str]:
    """The text with the names in place of {}, if there are any."""
    return [text.format(listed(names, most))] if names else []


def _different(text: str, rows: Iterable[tuple[str, str | None]]) -> list[str]:
    """The text with every kind and its names, if there is more than one kind."""
    kinds = names_by_label(rows)
    return [f"{text}: {_kinds(kinds)}"] if len(kinds) > 1 else []


def _kinds(kinds: dict[str, list[str]]) -> str:
    return "; ".join(f"{kind} ({listed(who)})" for kind, who in kinds.items())


def listed(who: Sequence[str], most: int = 3) -> str:
    """The first names of a list, and the number of others."""
    more = f" and {len(who) - most} more" if len(who) > most else ""
    return ", ".join(who[:most]) + more


def names_by_label(rows: Iterable[tuple[str, str | None]]) -> dict[str, list[str]]:
    """Label -> the names that have it, each once."""
    groups: dict[str, dict[str, None]] = {}
    for name, label in rows:
        if label:
            groups.setdefault(label, {})[name] = None
    return {label: list(names) for label, names in groups.items()}


def _by_env(groups: Sequence[Group], check: Callable[[Sequence[Group]], list[str]]) -> list[str]:
    """The warnings about each environment: once, and where unless they hold for all of them."""
    envs = list(dict.fromkeys(group.env for group in groups))
    found: dict[str, list[str]] = {}
    for env in envs:
        for text in check([group for group in groups if group.env == env]):
            found.setdefault(text, []).append(env)
    return [
        text if len(where) == len(envs) else f"{text}, in {listed(where)}"
        for text, where in found.items()
    ]


def _lengths(groups: Sequence[Group]) -> list[str]:
    """All runs of a group have one length: it is a setting."""
    planned = [(g.label, show_count(g.runs[0].steps) if g.runs[0].steps else "?") for g in groups]
    return _different("trained for different numbers of steps", planned)


def _unfinished(runs: Sequence[Run]) -> list[str]:
    failed = [run.name for run in runs if run.state in _FAILED]
    rest = [run for run in runs if run.state not in _FAILED]
    short = [r.name for r in rest if r.step < r.steps or r.state in ("stopped", "empty")]
    return [*_about("failed before the end: {}", failed), *_about("not finished: {}", short)]


def _few_seeds(groups: Sequence[Group]) -> list[str]:
    if sum(len(group.runs) for group in groups) == 1:
        return ["one seed: another may score otherwise; an interval over episodes does not tell"]
    counts: dict[str, int] = {}
    for group in groups:
        number = len(set(group.seeds))
        counts[group.label] = min(number, counts.get(group.label, number))
    few = {label: number for label, number in counts.items() if number < ENOUGH_SEEDS}
    if not few:
        return []
    why = ["intervals are rough"] if max(few.values()) > 1 else []
    why += ["the order may be luck"] if len(counts) > 1 else []
    shown = listed([f"{label} ({number})" for label, number in few.items()])
    if len(counts) > 1 and len(set(counts.values())) == 1:
        shown = f"{max(few.values())} each"
    reason = " and ".join(why) or "another seed may score otherwise"
    return [f"fewer than {ENOUGH_SEEDS} seeds: {shown}; {reason}"]


def _repeated_seeds(groups: Sequence[Group]) -> list[str]:
    found = []
    for group in groups:
        twice = sorted({str(seed) for seed in group.seeds if group.seeds.count(seed) > 1})
        found += [f"{group.label} has seed {', '.join(twice)} more than once"] if twice else []
    return _about("{}: such runs are not independent", found)


def _incomplete_benches(runs: Sequence[Run]) -> list[str]:
    found = []
    for folder in sorted({run.path.parent for run in runs}):
        bench = read_json(folder / "bench.json")
        cells = [c for c in bench.get("cells") or () if isinstance(c, dict)]
        names = {run.name for run in runs if run.path.parent == folder}
        missing = [c for c in cells if c.get("run") not in names or c.get("state") != "finished"]
        if missing and len(names) > 1:
            states = Counter(str(c.get("state") or "missing") for c in missing)
            counts = ", ".join(f"{number} {state}" for state, number in sorted(states.items()))
            found.append(f"the bench is not complete: of {len(cells)} runs {counts}")
    return found
