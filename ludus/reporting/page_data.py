"""The data of the page: values for the template, and JSON for the script.

The files in page/ decide how it looks.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ludus import __version__
from ludus.reporting import run_parts
from ludus.reporting.charts import Chart, Line, short
from ludus.reporting.curves import (
    COLOURS,
    evaluation_chart,
    group_colours,
    learning_chart,
    profile_chart,
)
from ludus.reporting.settings import Differences
from ludus.reporting.sizes import DETAILS, Sizes, sizes
from ludus.stats.compare import STATISTICS, aggregate, games
from ludus.stats.groups import Group, group_runs
from ludus.stats.references import reference_curves
from ludus.stats.runs import Run
from ludus.stats.warnings import report_warnings
from ludus.track.run_dir.status import LIVE
from ludus.units import show_count, show_seconds

SPEEDS = 12  # runs up to which each has a line in the table of speeds


def page_data(
    runs: Sequence[Run],
    out: Path,
    *,
    title: str | None = None,
    embed_videos: bool = False,
    changed: Mapping[str, Differences | None] | None = None,
) -> dict[str, Any]:
    """`changed`: differences from the preset by the path of a run."""
    groups = group_runs(runs)
    colours = group_colours(groups)
    scored = [group for group in groups if group.scored]
    labels = sorted({group.label for group in scored}, key=lambda name: (colours[name], name))
    aggregates = aggregate(scored, labels)
    profile = profile_chart(aggregates.tables, colours) if aggregates else None
    room = sizes(len(runs), len(groups), 2 if any(len(run.during) > 1 for run in runs) else 1)
    learning = _learning(groups, colours, room)
    details = _details(groups, colours, room) if len(runs) <= DETAILS else []
    for detail in details:
        run = detail["run"]
        detail["videos"] = run_parts.shown_videos(run, out, embed=embed_videos)
        detail["link"] = run_parts.run_link(run, out)
        detail["changed"] = (changed or {}).get(str(run.path))
    own = [chart for detail in details for chart in detail["charts"]]
    charts = [*learning, *own, *([profile] if profile else [])]
    return {
        "title": title or _title(runs, groups),
        "version": __version__,
        "written": time.strftime("%Y-%m-%d %H:%M"),
        "live": _live(runs, out),
        "runs": _in_order(groups),
        "groups": groups,
        "summary": _summary(runs, groups),
        "colour_of": colours,
        "colours": COLOURS,
        "warnings": report_warnings(groups, aggregates),
        "headline": _headline(runs, scored),
        "intervals": _intervals(scored),
        "forests": _forests(scored, colours),
        "learning": learning,
        "games": games(scored),
        "aggregates": aggregates,
        "profile": profile,
        "estimates": list(STATISTICS),
        "speeds": _speeds(groups),
        "protocols": _protocols(scored),
        "best": [(run, e) for run in runs if (e := run.best_evaluation) is not None],
        "details": details,
        "data": {"charts": {c.key: c.data for c in charts}, "scores": _score_rows(runs)},
    }


def _live(runs: Sequence[Run], out: Path) -> str:
    """While training: whether the page is the run's own and will be rewritten; else empty."""
    if not any(run.state in LIVE for run in runs):
        return ""
    own = len(runs) == 1 and out.resolve() == runs[0].path / "report.html"
    return "rewritten" if own else "kept"


def _in_order(groups: Sequence[Group]) -> list[Run]:
    return [run for group in groups for run in group.runs]


def _title(runs: Sequence[Run], groups: Sequence[Group]) -> str:
    labels: dict[str, set[str]] = {}
    for group in groups:
        labels.setdefault(group.algo, set()).add(group.label)
    algos = [
        algo if len(mine) == 1 else f"{algo} with {len(mine)} settings"
        for algo, mine in sorted(labels.items())
    ]
    envs = sorted({r.env for r in runs})
    what = ", ".join(algos) if len(algos) <= 3 else f"{len(algos)} algorithms"
    where = " and ".join(envs) if len(envs) <= 2 else f"{len(envs)} environments"
    return f"{what} on {where}"


def _summary(runs: Sequence[Run], groups: Sequence[Group]) -> list[tuple[str, str]]:
    """Counts under the title: (number, noun)."""

    def count(number: int, noun: str) -> tuple[str, str]:
        return f"{number:,}", noun if number == 1 else f"{noun}s"

    steps, frames = sum(r.step for r in runs), sum(r.step * r.frame_skip for r in runs)
    more = f" ({show_count(frames)} frames)" if frames > steps else ""
    length = [
        (show_count(steps), f"agent steps{more}"),
        (show_seconds(sum(r.seconds for r in runs)), "of training"),
    ]
    if len(runs) == 1:
        speed = run_parts.speed(runs)["steps"]
        return [(f"seed {runs[0].seed}", "one run"), *length, (speed, "steps a second")]
    seeds = sorted({len(set(g.seeds)) for g in groups})
    each = f"{seeds[0]}" if len(seeds) == 1 else f"{seeds[0]}–{seeds[-1]}"
    algos, labels = {g.algo for g in groups}, {g.label for g in groups}
    return [
        count(len(runs), "run"),
        count(len(algos), "algorithm"),
        *([count(len(labels), "setting")] if len(labels) > len(algos) else []),
        count(len({r.env for r in runs}), "environment"),
        (each, "seed each" if each == "1" else "seeds each"),
        *length,
    ]


def _headline(runs: Sequence[Run], groups: Sequence[Group]) -> dict[str, Any] | None:
    """The large number, if there is but one run or one group of seeds."""
    if len(groups) != 1:
        return None
    windows = [run.windows[-1].mean for run in runs if run.windows]
    done, asked = sum(r.step for r in runs), sum(r.steps for r in runs)
    return {
        "group": groups[0],
        "training": sum(windows) / len(windows) if windows else None,
        "episodes": sum(run.score.episodes for run in groups[0].scored if run.score),
        "share": min(100, round(100 * done / max(1, asked))),
        "state": ", ".join(sorted({run.state for run in runs})),
    }


def _forests(groups: Sequence[Group], colours: dict[str, int]) -> list[dict[str, Any]]:
    """Per environment: each group's mean, interval and seeds on one common axis, in percent."""
    found = []
    for env in sorted({group.env for group in groups}):
        rows = [group for group in groups if group.env == env]
        shown = [v for group in rows for v in (*(group.interval or ()), *group.scores)]
        low, high = min(shown), max(shown)
        span = (high - low) or abs(high) or 1.0
        low, high = low - 0.04 * span, high + 0.04 * span

        def at(value: float, low: float = low, high: float = high) -> float:
            return round(100 * (value - low) / (high - low), 2)

        shown_rows = [
            {
                "group": group,
                "colour": colours[group.label],
                "mean": at(group.mean),
                "bar": _bar(group, at),
                "seeds": [
                    (at(r.score.mean), r.seed, r.score.mean) for r in group.scored if r.score
                ],
            }
            for group in sorted(rows, key=lambda group: -group.mean)
        ]
        found.append({"env": env, "rows": shown_rows})
    return found


def _bar(group: Group, at: Callable[[float], float]) -> tuple[float, float] | None:
    """Left end and width of an interval over seeds."""
    if group.interval is None:
        return None
    low, high = map(at, group.interval)
    return low, round(high - low, 2)


def _learning(groups: Sequence[Group], colours: dict[str, int], room: Sizes) -> list[Chart]:
    found = []
    for number, env in enumerate(sorted({g.env for g in groups})):
        members = [g for g in groups if g.env == env]
        references = _references(members)
        found.append(learning_chart(f"env{number}", env, members, colours, references, room))
        if sum(len(g.runs) for g in members) > 1:  # a lone run has them as dots
            found.append(evaluation_chart(f"eval{number}", env, members, colours, room))
    return [chart for chart in found if chart is not None]


def _references(groups: Sequence[Group], most: int = 3) -> list[Line]:
    """Published curves of the same game and kind of protocol, up to the length of the runs."""
    runs = [run for group in groups for run in group.runs]
    protocols, skip = {run.protocol for run in runs}, runs[0].frame_skip
    if len(protocols) != 1 or not (protocol := protocols.pop()):
        return []
    far = max(run.step for run in runs) * skip
    found = []
    for curve in reference_curves(runs[0].env, protocol):
        inside = [p for p in curve.points if p.frames <= 1.25 * far] or curve.points[:1]
        if inside[0].frames > 4 * max(1, far):
            continue
        x, y = [p.frames / skip for p in inside], [p.mean for p in inside]
        facts = {"sd": [p.std for p in inside]}
        found.append(Line(curve.agent, 0, x, y, "reference", facts=facts, note=curve.note))
    words = {word for run in runs for word in run.algo.split("-")}

    def rank(line: Line) -> tuple[bool, float]:  # of the same algorithm first, then the best
        return not any(word in line.name.lower() for word in words), -max(line.y)

    return sorted(found, key=rank)[:most]


def _speeds(groups: Sequence[Group]) -> list[tuple[str, dict[str, Any]]]:
    """Of each run; of each group where there are many."""
    runs = _in_order(groups)
    if len(runs) <= SPEEDS:
        return [(run.name, run_parts.speed([run])) for run in runs]
    return [(f"{g.env} · {g.label}, {len(g.runs)} runs", run_parts.speed(g.runs)) for g in groups]


def _protocols(groups: Sequence[Group]) -> dict[str, Any]:
    scores = [run.score for group in groups for run in group.scored if run.score]
    rules = Counter(
        (score.protocol or "the environment's own rules", score.protocol_hash) for score in scores
    )
    return {
        "rules": [(name, digest, count) for (name, digest), count in rules.items()],
        "sources": sorted({score.source for score in scores}),
    }


def _intervals(groups: Sequence[Group]) -> list[str]:
    """The names of the intervals on the page; groups of one run show none next to others."""
    shown = [g for g in groups if g.interval or (g.interval_over and len(groups) == 1)]
    return sorted({group.interval_name for group in shown})


def _details(groups: Sequence[Group], colours: dict[str, int], room: Sizes) -> list[dict[str, Any]]:
    """The section of each run, without what depends on the place of the report."""
    labelled = [(group.label, run) for group in groups for run in group.runs]
    return [
        {
            "run": run,
            "label": label,
            "colour": colours[label],
            "score": run.score,
            "charts": run_parts.small_charts(run, f"r{number}", colours[label], room.small),
            "lengths": list(dict.fromkeys(name for e in run.after for name in e.by_length)),
            "absent": run_parts.absent(run),
            "timeline": run_parts.timeline(run, room.marks, room.events),
            "facts": run_parts.manifest_facts(run),
            "videos_left": max(0, len(run.videos) - 12),
        }
        for number, (label, run) in enumerate(labelled)
    ]


def _score_rows(runs: Sequence[Run]) -> list[list[Any]]:
    found = []
    for run in runs:
        score = run.score
        values = (score.mean, score.std, score.episodes, score.step, score.source) if score else ()
        numbers = [short(v) if isinstance(v, float) else v for v in values] or [None] * 5
        protocol = [score.protocol, score.protocol_hash] if score else ["", ""]
        found.append([run.name, run.env, run.algo, run.seed, *numbers, *protocol, run.state])
    return found
