"""Parts of the page about a single run: small charts, time split, events, manifest, videos."""

from __future__ import annotations

import base64
import contextlib
import re
import urllib.parse
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from ludus.reporting.charts import Chart, Line, draw, thin
from ludus.secret_masking import masked_command
from ludus.stats.run_files import number, table
from ludus.stats.runs import Run
from ludus.track.atomic_files import read_bytes
from ludus.units import show_bytes, show_count, show_seconds

EMBED = 8_000_000  # bytes of a video that may be embedded
METRICS = (  # metric, title, whether it counts steps that are to be shown as frames
    ("learner/loss", "loss", False),
    ("learner/lr", "learning rate", False),
    ("learner/updates_per_second", "updates per second", False),
    ("performance/steps_per_second", "frames per second", True),
    ("actors/waiting_chunks", "queue depth (chunks)", False),
    ("replay/size", "replay size (items)", False),
    ("replay/waiting_samples", "samples ahead of the learner", False),
    ("replay/role_bytes", "memory of replay roles (bytes)", False),
    ("actors/policy_lag", "policy lag (updates)", False),
    ("learner/policy_lag", "age of learned items (updates)", False),
    ("learner/grad_norm", "gradient norm", False),
    ("learner/q", "mean Q", False),
    ("learner/entropy", "entropy (nats)", False),
    ("learner/value_loss", "value loss", False),
    ("learner/approx_kl", "KL of an update (nats)", False),
    ("learner/rho", "importance ratio ρ", False),
    ("agent/epsilon", "exploration ε", False),
    ("replay/samples_per_step", "samples per step", False),
    ("performance/length", "episode length (steps)", False),
)
SPLIT = ("env", "act", "learn", "other")
# Colours of the timeline's marks; other events are routine.
_KINDS = {
    "start": "began", "resume": "began", "end": "began", "failed": "fault", "fault": "fault",
    "actor": "fault", "replay": "fault", "environment": "fault", "stalled": "fault",
    "checkpoint missed": "fault",
    "crash": "fault", "warning": "warning", "rescue": "fault", "disk full": "fault",
    "disk written again": "routine", "checkpoint": "routine", "best": "routine",
    "evaluation": "routine",
}  # fmt: skip


class Mark(NamedTuple):
    at: float  # percent of the time
    kind: str  # began | fault | warning | routine
    text: str


class Timeline(NamedTuple):
    marks: list[Mark]
    begin: str
    end: str
    events: list[dict[str, str]]  # those that are no routine
    left_out: int


class Shown(NamedTuple):
    """A video for the template: a data URL, or the path of the file relative to the report."""

    name: str
    address: str  # empty: it is not below the report's folder
    is_image: bool
    size: str


def small_charts(run: Run, prefix: str, colour: int, points: int) -> list[Chart]:
    rows = thin(run.metrics, points)
    found = []
    for place, (name, title, frames) in enumerate(METRICS):
        factor = run.frame_skip if frames else 1
        both = [r for r in rows if _is_number(r.get("step")) and _is_number(r.get(name))]
        good = [(float(row["step"]), factor * float(row[name])) for row in both]
        line = Line(title, colour, [x for x, _ in good], [y for _, y in good])
        chart = draw(f"{prefix}m{place}", title, [line], small=True, skip=run.frame_skip)
        found += [chart] if chart else []
    return found


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def absent(run: Run) -> str:
    """Why charts that a reader may expect are missing."""
    last = run.metrics[-1] if run.metrics else {}
    missing = []
    if "actors/policy_lag" not in last:
        missing.append("queue depth and policy lag: none, because acting and learning take turns")
    if "replay/size" not in last:
        missing.append("replay size: none, because rows are used once")
    return "; ".join(missing)


def speed(runs: Sequence[Run]) -> dict[str, Any]:
    """Rates over all runs from their start, and the time split of their last sessions."""
    last = [run.metrics[-1] for run in runs if run.metrics]
    seconds = sum(run.seconds for run in runs)

    def total(name: str) -> float:
        return sum(float(row[name]) for row in last if _is_number(row.get(name)))

    def rate(number: float) -> str:
        return show_count(round(number / seconds, 1)) if seconds else "–"

    split = {part: total(f"time/{part}") for part in SPLIT}
    whole = sum(split.values())
    steps = [(number(run.metrics[-1].get("step")) or 0, run) for run in runs if run.metrics]
    return {
        "wall": show_seconds(seconds),
        "steps": rate(total("step")),
        "frames": rate(sum(step * run.frame_skip for step, run in steps)),
        "updates": rate(total("updates")),
        "split": [(part, round(100 * share / (whole or 1), 1)) for part, share in split.items()],
        "known": whole > 0,
        "gpu_idle": _mean_share(last, "time/gpu_idle"),
        "replay_wait": _mean_share(last, "time/replay_wait"),
    }


def _mean_share(last: list[dict[str, Any]], name: str) -> str:
    """The mean share of the runs that have it: GPUs that were idle, learners that waited for a
    replay role; "" if none has."""
    found = [row[name] for row in last if name in row]
    known = [float(share) for share in found if _is_number(share)]
    if not known:
        return "not available" if found else ""
    return f"{100 * sum(known) / len(known):.0f}%"


def timeline(run: Run, most: int, lines: int) -> Timeline | None:
    """`most`: marks of a kind; `lines`: events below it."""
    stamped = [(t, e) for e in run.events if (t := _time(e)) is not None]
    if not stamped:
        return None
    begin, end = stamped[0][0], stamped[-1][0]
    span = max(1.0, (end - begin).total_seconds())
    marks, events = [], []
    for moment, event in stamped:
        kind = _KINDS.get(str(event.get("kind")), "routine")
        text = f"{event.get('kind')} at step {show_count(number(event.get('step')) or 0)}"
        note = _note(event)
        at = round(100 * (moment - begin).total_seconds() / span, 2)
        time = f"{moment:%Y-%m-%d %H:%M:%S}"
        marks.append(Mark(at, kind, f"{time}  {text}{note and ': ' + note}"))
        if kind != "routine":
            events.append({"time": time, "kind": kind, "what": text, "note": note})
    routine = [m for m in marks if m.kind == "routine"]
    others = [m for m in marks if m.kind != "routine"]
    return Timeline(
        [*thin(routine, most), *others[-most:]],
        f"{begin:%Y-%m-%d %H:%M:%S}",
        f"{end:%Y-%m-%d %H:%M:%S}",
        events[:5] + events[5:][-lines:],
        max(0, len(events) - 5 - lines),
    )


def _time(event: dict[str, Any]) -> datetime | None:
    try:
        return datetime.strptime(str(event.get("time")), "%Y-%m-%dT%H:%M:%S%z")
    except ValueError:
        return None


def _note(event: dict[str, Any]) -> str:
    for name in ("error", "what", "reason"):
        if event.get(name):
            return str(event[name]).splitlines()[0][:300]
    return ""


def manifest_facts(run: Run) -> list[tuple[str, str]]:
    """Code, machine and command of the run, without host names: people pass reports on."""
    manifest = run.manifest
    machine, git, versions = (table(manifest, name) for name in ("machine", "git", "versions"))
    compute = table(run.status, "compute")
    commit = f"{str(git.get('commit'))[:12]}{' with changes' if git.get('dirty') else ''}"
    named = machine.get("gpus")
    gpus = ", ".join(map(str, named)) if isinstance(named, list) and named else "none"
    sessions = manifest.get("sessions")
    rows = [
        ("command", _command(manifest.get("command"))),
        ("state", f"{run.state}, {run.step:,} of {run.steps:,} steps"),
        ("preset", run.preset or "none"),
        ("settings", str(manifest.get("config_sha256") or "")[:12]),
        ("commit", commit if git else ""),
        ("versions", ", ".join(f"{k} {v}" for k, v in versions.items())),
        ("python", str(manifest.get("python") or "")),
        ("machine", f"{machine.get('cpu')}, {machine.get('cores')} cores" if machine else ""),
        ("memory", show_bytes(number(machine.get("memory_bytes")) or 0.0) if machine else ""),
        ("GPUs", gpus if machine else ""),
        ("compute", ", ".join(f"{k} {_word(v)}" for k, v in compute.items() if v != "")),
        ("sessions", str(len(sessions)) if isinstance(sessions, list) else ""),
        ("tag", str(table(run.config, "log").get("tag") or "")),
    ]
    return [(name, text) for name, text in rows if text]


def _word(value: Any) -> str:
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else str(value)


def _command(words: Any) -> str:
    """As typed, without paths of the program and of other files: they may name a user."""
    given = masked_command([str(w) for w in words]) if isinstance(words, list) else []
    if given and given[0].endswith((".py", "/ludus")):
        name = "ludus" if "ludus" in given[0] else Path(given[0]).name
        given = [name, *given[1:]]
    return " ".join(re.sub(r"(^|=)(?:/|~|[A-Z]:\\).*[/\\]", r"\1.../", word) for word in given)


def shown_videos(run: Run, out: Path, *, embed: bool, most: int = 12) -> list[Shown]:
    found = []
    for video in run.videos[:most]:
        with contextlib.suppress(OSError):  # deleted since the run was read
            address = _relative_url(video.path, out)
            if embed and video.size <= EMBED:
                data = base64.b64encode(read_bytes(video.path, EMBED)).decode("ascii")
                address = f"data:{video.media_type};base64,{data}"
            image = video.media_type.startswith("image/")
            found.append(Shown(video.path.name, address, image, show_bytes(video.size)))
    return found


def run_link(run: Run, out: Path) -> str:
    """The relative path of the run's own report, if that is another file."""
    own = run.path / "report.html"
    return _relative_url(own, out) if own.is_file() and own.resolve() != out.resolve() else ""


def _relative_url(path: Path, out: Path) -> str:
    """The address of a file below the folder of the report. Empty for any other file: the path
    would show folders of this machine and break with the first copy."""
    there, home = path.resolve(), out.parent.resolve()
    if not there.is_relative_to(home):
        return ""
    return urllib.parse.quote(there.relative_to(home).as_posix())
