"""Everything on the page, put together from runs: what the template gets, and what the script gets.

Only data; how it looks is page/'s business.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ludus import __version__
from ludus.reporting import run_parts
from ludus.reporting.cautions import cautions
from ludus.reporting.charts import Chart, Line, short
from ludus.reporting.comparing import NAMES, compare
from ludus.reporting.curves import evaluation_chart, learning_chart
from ludus.reporting.groups import COLOURS, Group, colours, group_runs
from ludus.reporting.reading import RunData
from ludus.reporting.scores import GroupScore, best_score, games, group_scores, run_score
from ludus.reporting.settings import Differences
from ludus.reporting.sizes import DETAILS, Sizes, sizes
from ludus.stats.references import reference_curves
from ludus.track.run_dir.status import LIVE
from ludus.units import show_count, show_seconds

SPEEDS = 12  # runs up to which each has a line in the table of speeds


def page_data(
    runs: Sequence[RunData],
    out: Path,
    *,
    title: str | None = None,
    embed_videos: bool = False,
    changed: Mapping[str, Differences | None] | None = None,
) -> dict[str, Any]:
    """`changed`: differences from the preset by the path of a run."""
    groups = group_runs(runs)
    colour_of = colours(groups)
    scores = group_scores(groups)
    comparison, shown_games = compare(scores, colour_of), games(scores)
    views = 2 if any(len(run.during) > 1 for run in runs) else 1
    room = sizes(len(runs), len(groups), views)
    learning = _learning(groups, colour_of, room)
    details = _details(groups, colour_of, room) if len(runs) <= DETAILS else []
    for told in details:
        told["changed"] = (changed or {}).get(str(told["run"].path))
        told["videos"] = run_parts.shown_videos(told["run"], out, embed=embed_videos)
        told["link"] = run_parts.run_link(told["run"], out)
    charts = [*learning, *(c for d in details for c in d["charts"])]
    charts += [comparison.profile] if comparison and comparison.profile else []
    return {
        "title": title or _title(runs, groups),
        "version": __version__,
        "written": time.strftime("%Y-%m-%d %H:%M"),
        "live": _live(runs, out),
        "runs": _in_order(groups),
        "groups": groups,
        "summary": _summary(runs, groups),
        "colour_of": colour_of,
        "colours": COLOURS,
        "cautions": cautions(groups, scores, comparison, shown_games),
        "headline": _headline(runs, scores),
        "intervals": _intervals(scores),
        "forests": _forests(scores, colour_of),
        "learning": learning,
        "games": shown_games,
        "comparison": comparison,
        "estimates": NAMES,
        "speeds": _speeds(groups),
        "protocols": _protocols(scores),
        "best": [(run, e) for run in runs if (e := best_score(run)) is not None],
        "details": details,
        "data": {
            "charts": {chart.key: chart.data for chart in charts},
            "scores": _score_rows(runs),
        },
    }


def _live(runs: Sequence[RunData], out: Path) -> str:
    """While training: whether the page is the run's own and will be rewritten; else empty."""
    if not any(run.state in LIVE for run in runs):
        return ""
    own = len(runs) == 1 and out.resolve() == runs[0].path / "report.html"
    return "rewritten" if own else "kept"


def _in_order(groups: Sequence[Group]) -> list[RunData]:
    return [run for group in groups for run in group.runs]


def _title(runs: Sequence[RunData], groups: Sequence[Group]) -> str:
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


def _summary(runs: Sequence[RunData], groups: Sequence[Group]) -> list[tuple[str, str]]:
    """Counts under the title: (number, noun)."""

    def count(number: int, noun: str) -> tuple[str, str]:
        return f"{number:,}", noun if number == 1 else f"{noun}s"

    steps, frames = sum(r.step for r in runs), sum(r.step * r.skip for r in runs)
    more = f" ({show_count(frames)} frames)" if frames > steps else ""
    length = [
        (show_count(steps), f"agent steps{more}"),
        (show_seconds(sum(r.seconds for r in runs)), "of training"),
    ]
    if len(runs) == 1:
        speed = run_parts.speed(runs)["steps"]
        return [(f"seed {runs[0].seed}", "one run"), *length, (speed, "steps a second")]
    seeds = sorted({len(set(g.seeds)) for g in groups})
    told = f"{seeds[0]}" if len(seeds) == 1 else f"{seeds[0]}–{seeds[-1]}"
    algos, labels = {g.algo for g in groups}, {g.label for g in groups}
    return [
        count(len(runs), "run"),
        count(len(algos), "algorithm"),
        *([count(len(labels), "setting")] if len(labels) > len(algos) else []),
        count(len({r.env for r in runs}), "environment"),
        (told, "seed each" if told == "1" else "seeds each"),
        *length,
    ]


def _headline(runs: Sequence[RunData], scores: Sequence[GroupScore]) -> dict[str, Any] | None:
    """One run, or one group of seeds, has one number to show large."""
    if len(scores) != 1:
        return None
    score = scores[0]
    windows = [run.windows[-1].mean for run in runs if run.windows]
    done, asked = sum(r.step for r in runs), sum(r.steps for r in runs)
    return {
        "score": score,
        "training": sum(windows) / len(windows) if windows else None,
        "episodes": sum(s.episodes for s in score.runs),
        "share": min(100, round(100 * done / max(1, asked))),
        "state": ", ".join(sorted({run.state for run in runs})),
    }


def _forests(scores: Sequence[GroupScore], colour_of: dict[str, int]) -> list[dict[str, Any]]:
    """Per environment: each group's mean, interval and seeds on one common axis, in percent."""
    found = []
    for env in sorted({s.group.env for s in scores}):
        rows = [s for s in scores if s.group.env == env]
        seen = [v for s in rows for v in (s.low, s.high, *(r.mean for r in s.runs))]
        ends = [v for v in seen if v is not None]
        low, high = min(ends), max(ends)
        span = (high - low) or abs(high) or 1.0
        low, high = low - 0.04 * span, high + 0.04 * span

        def at(value: float, low: float = low, high: float = high) -> float:
            return round(100 * (value - low) / (high - low), 2)

        found.append(
            {
                "env": env,
                "rows": [
                    {
                        "score": s,
                        "colour": colour_of[s.group.label],
                        "mean": at(s.mean),
                        "bar": _bar(s, at),
                        "seeds": [(at(r.mean), r.run.seed, r.mean) for r in s.runs],
                    }
                    for s in sorted(rows, key=lambda s: -s.mean)
                ],
            }
        )
    return found


def _bar(score: GroupScore, at: Callable[[float], float]) -> tuple[float, float] | None:
    """Left end and width of an interval over seeds."""
    if score.low is None or score.high is None:
        return None
    return at(score.low), round(at(score.high) - at(score.low), 2)


def _learning(groups: Sequence[Group], colour_of: dict[str, int], room: Sizes) -> list[Chart]:
    found = []
    for number, env in enumerate(sorted({g.env for g in groups})):
        members = [g for g in groups if g.env == env]
        behind = _references(members)
        chart = learning_chart(f"env{number}", env, members, colour_of, behind, room)
        found += [chart] if chart else []
        if sum(len(g.runs) for g in members) > 1:  # a lone run has them as dots
            chart = evaluation_chart(f"eval{number}", env, members, colour_of, room)
            found += [chart] if chart else []
    return found


def _references(groups: Sequence[Group], most: int = 3) -> list[Line]:
    """Published curves of the same game and kind of protocol, as far as one's own run went."""
    runs = [run for group in groups for run in group.runs]
    protocols, skip = {run.protocol for run in runs}, runs[0].skip
    if len(protocols) != 1 or not (protocol := protocols.pop()):
        return []
    far = max(run.step for run in runs) * skip
    found = []
    for curve in reference_curves(runs[0].env, protocol):
        inside = [p for p in curve.points if p.frames <= 1.25 * far] or curve.points[:1]
        if inside[0].frames > 4 * max(1, far):
            continue
        found.append(
            Line(
                curve.agent,
                0,
                [p.frames / skip for p in inside],
                [p.mean for p in inside],
                "reference",
                facts={"sd": [p.std for p in inside]},
                note=curve.note,
            )
        )
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


def _protocols(scores: Sequence[GroupScore]) -> dict[str, Any]:
    rules: dict[tuple[str, str], int] = {}
    for score in (run for group in scores for run in group.runs):
        key = (score.protocol or "the environment's own rules", score.protocol_hash)
        rules[key] = rules.get(key, 0) + 1
    return {
        "rules": [(name, digest, count) for (name, digest), count in rules.items()],
        "sources": sorted({s.source for score in scores for s in score.runs}),
    }


def _intervals(scores: Sequence[GroupScore]) -> list[str]:
    """What those on the page are of and over. Of several lone runs none is shown."""
    shown = [s for s in scores if s.low is not None or (s.over and len(scores) == 1)]
    return sorted({s.interval_of for s in shown})


def _details(
    groups: Sequence[Group], colour_of: dict[str, int], room: Sizes
) -> list[dict[str, Any]]:
    """What each run has for itself, without what lies around it."""
    labelled = [(group.label, run) for group in groups for run in group.runs]
    return [
        {
            "run": run,
            "label": label,
            "colour": colour_of[label],
            "score": run_score(run),
            "charts": run_parts.small_charts(run, f"r{number}", colour_of[label], room.small),
            "lengths": list(dict.fromkeys(name for e in run.after for name in e.by_length)),
            "absent": run_parts.absent(run),
            "timeline": run_parts.timeline(run, room.marks, room.events),
            "facts": run_parts.manifest_facts(run),
            "videos_left": max(0, len(run.videos) - 12),
        }
        for number, (label, run) in enumerate(labelled)
    ]


def _score_rows(runs: Sequence[RunData]) -> list[list[Any]]:
    found = []
    for run in runs:
        score = run_score(run)
        told = (score.mean, score.std, score.episodes, score.step, score.source) if score else ()
        numbers = [short(v) if isinstance(v, float) else v for v in told] or [None] * 5
        protocol = [score.protocol, score.protocol_hash] if score else ["", ""]
        found.append([run.name, run.env, run.algo, run.seed, *numbers, *protocol, run.state])
    return found
