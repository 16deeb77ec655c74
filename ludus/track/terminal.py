"""The display of a training run: a live panel on a terminal, time-stamped lines elsewhere.

It shows Snapshots; the run computes their numbers.
"""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TextIO

from ludus.errors import printable
from ludus.process.limits import memory
from ludus.units import show_bytes, show_count, show_seconds

if TYPE_CHECKING:
    from rich.text import Text

_PART_NAMES = {"env": "environment", "act": "acting", "learn": "learner", "other": "bookkeeping"}
_BEGINS = 0.005  # smaller shares are shown as 0%; too early to name a bottleneck
_CUT = 0.05  # show the count if checkpoints cut more than this share of episodes
_BLOCKS = "▁▂▃▄▅▆▇█"


@dataclass(frozen=True)
class Header:
    """The facts that do not change during a run."""

    env: str
    algo: str
    seed: int
    run: str
    preset: str = ""

    def __str__(self) -> str:
        words = (self.env, self.algo, self.preset, f"seed {self.seed}", f"run {self.run}")
        return " · ".join(word for word in words if word)


@dataclass(frozen=True)
class Snapshot:
    """The state of a run at one moment. None or empty values are unknown and not shown."""

    step: int
    steps: int  # the step at which the run ends
    updates: int = 0
    seconds: float = 0.0  # age of the run
    score: float | None = None  # mean raw score of the last `window` whole episodes
    window: int = 100
    episodes: int = 0
    best: float | None = None
    history: Sequence[float] = ()  # scores, oldest first
    evaluation: str = ""  # "+18.9 ± 0.7 (30 episodes)"
    steps_per_second: float = 0.0
    updates_per_second: float = 0.0
    replay_ratio: float | None = None
    replay_target: float | None = None
    replay_fill: float | None = None  # 0..1
    split: Mapping[str, float] = field(default_factory=dict)  # env, act, learn, other: shares
    gpu_idle: float | None = None  # share of this session's time
    metrics: Mapping[str, float] = field(default_factory=dict)  # loss, grad_norm, epsilon, lr
    checkpoint_seconds: float | None = None  # since the last one
    faults: int = 0
    actors: Mapping[str, float] = field(default_factory=dict)  # alive, policy_lag, score_3 ...
    learner_bound: bool | None = None  # chunks are dropped; None: learner and actors take turns
    waiting: str = ""  # the phase before learning starts; shown instead of the ETA
    cut: int = 0  # episodes that checkpoints have ended

    @property
    def fraction(self) -> float:
        return min(1.0, self.step / self.steps) if self.steps > 0 else 1.0

    @property
    def eta(self) -> float | None:
        """Remaining seconds at the current speed."""
        if self.waiting or self.steps_per_second <= 0:
            return None
        return max(0, self.steps - self.step) / self.steps_per_second

    @property
    def bottleneck(self) -> str:
        """The part that takes most of the time. If actors and learner run in parallel, it is the
        busier of the two, since the other waits for it; actors that drop chunks never wait."""
        own = {name: self.split.get(name, 0.0) for name in ("env", "act", "learn")}
        if self.step == 0 or max(own.values()) < _BEGINS:
            return ""
        if self.learner_bound:
            return f"{_PART_NAMES['learn']}, which drops chunks"
        parts = dict(self.split)
        if self.learner_bound is False:
            learns = own["learn"] >= own["env"] + own["act"]
            parts = {name: own[name] for name in (("learn",) if learns else ("env", "act"))}
        part = max(parts, key=lambda name: parts[name])
        return _PART_NAMES.get(part, part)


def spark(values: Sequence[float], width: int = 16) -> str:
    """Draw the last `width` values as block characters."""
    shown = [v for v in values if math.isfinite(v)][-width:]
    if len(shown) < 2:
        return ""
    low, high = min(shown), max(shown)
    scale = (len(_BLOCKS) - 1) / (high - low) if high > low else 0.0
    return "".join(_BLOCKS[round((v - low) * scale)] for v in shown)


def progress_bar(fraction: float, width: int = 18) -> str:
    done = round(fraction * width)
    return f"[{'#' * done}{'-' * (width - done)}] {100 * fraction:.0f}%"


def _number(value: float) -> str:
    return f"{value:.4g}"


def _progress(snap: Snapshot) -> str:
    return f"{show_count(snap.step)} / {show_count(snap.steps)} steps"


def _eta(snap: Snapshot) -> str:
    if snap.waiting:
        return snap.waiting
    return f"ETA {show_seconds(snap.eta)}" if snap.eta is not None else "ETA -"


def _score(snap: Snapshot) -> list[str]:
    words = []
    if snap.score is None:
        words.append("no whole episode lately" if snap.episodes else "no whole episode yet")
    else:
        words.append(f"train({min(snap.window, snap.episodes)}) {snap.score:+.4g}")
    words += [f"best {snap.best:+.4g}"] if snap.best is not None else []
    words += [f"eval {snap.evaluation}"] if snap.evaluation else []
    words.append(f"episodes {show_count(snap.episodes)}")
    many = snap.cut > _CUT * (snap.cut + snap.episodes)
    return [*words, f"{show_count(snap.cut)} cut by checkpoints"] if many else words


def _speed(snap: Snapshot) -> list[str]:
    words = [f"{show_count(snap.steps_per_second)} steps/s"]
    words.append(f"{show_count(snap.updates_per_second)} updates/s")
    if snap.replay_ratio is not None:
        target = f" (target {_number(snap.replay_target)})" if snap.replay_target else ""
        words.append(f"replay ratio {_number(snap.replay_ratio)}{target}")
    return words


def _split(snap: Snapshot) -> str:
    shares = {name: f"{100 * share:.0f}%" for name, share in snap.split.items()}
    if not snap.bottleneck:
        return ""
    text = " · ".join(f"{name} {share}" for name, share in shares.items())
    if snap.learner_bound is not None:  # shares of different processes need not add up to 100%
        env, act, learn = (shares.get(name, "0%") for name in ("env", "act", "learn"))
        text = f"each actor: env {env} · act {act} · learner: {learn}"
    text += "" if snap.gpu_idle is None else f" · GPU idle {100 * snap.gpu_idle:.0f}%"
    return f"{text} -> bottleneck: {snap.bottleneck}"


def _health(snap: Snapshot) -> list[str]:
    import psutil

    used, total = psutil.Process().memory_info().rss, memory().total
    words = [f"RAM {show_bytes(used)} of {show_bytes(total)}"]
    words += [f"replay {100 * snap.replay_fill:.0f}% full"] if snap.replay_fill is not None else []
    if snap.checkpoint_seconds is not None:
        words.append(f"checkpoint {show_seconds(snap.checkpoint_seconds)} ago")
    return [*words, f"faults {snap.faults}"] if snap.faults else words


_FLEET = {
    "learners": "{:.0f} learners", "alive": "{:.0f} alive", "policy_lag": "lag {:.1f} updates",
    "waiting_chunks": "queue {:.0f}", "dropped_chunks": "dropped {:.0f}",
    "restarts": "restarts {:.0f}",
}  # fmt: skip


def _actors(snap: Snapshot) -> list[str]:
    """Health of the fleet, then the score of each actor, and its epsilon if it has its own."""
    actors = snap.actors
    words = [shape.format(actors[name]) for name, shape in _FLEET.items() if name in actors]
    for name, score in actors.items():
        kind, _, number = name.partition("_")
        if kind == "score":
            epsilon = actors.get(f"epsilon_{number}")
            explores = "" if epsilon is None else f" (eps {epsilon:.2g})"
            words.append(f"{number}: {score:+.4g}{explores}")
    return words


def panel_lines(header: Header, snap: Snapshot, *, unicode: bool = True) -> list[tuple[str, str]]:
    """Return the panel as (label, text) lines."""
    score = [*_score(snap), spark(snap.history) if unicode else ""]
    metrics = "  ".join(f"{k} {_number(v)}" for k, v in snap.metrics.items())
    actors = [("actors", "   ".join(_actors(snap)))] if snap.actors else []
    return [
        ("", str(header)),
        ("", f"{_eta(snap)}  {progress_bar(snap.fraction)}  {_progress(snap)}"),
        ("score", "   ".join(word for word in score if word)),
        ("speed", "   ".join(_speed(snap))),
        ("time", _split(snap) or show_seconds(snap.seconds)),
        ("health", "   ".join(_health(snap))),
        *actors,
        ("learn", metrics or "collecting"),
        ("", "Ctrl-C: save and stop · again: quit now"),
    ]


def plain_lines(snap: Snapshot) -> list[str]:
    """Return one line on acting, one on learning and, for several actors, one on the actors."""
    done = f"{_progress(snap)} ({100 * snap.fraction:.0f}%)"
    acting = [done, f"{show_count(snap.steps_per_second)} steps/s", *_score(snap), _eta(snap)]
    learning = [f"{show_count(snap.updates)} updates", *_speed(snap)[1:]]
    learning += [f"{name} {_number(value)}" for name, value in snap.metrics.items()]
    learning += [_split(snap)] if snap.split else []
    lines = [f"actor    {' · '.join(acting)}", f"learner  {' · '.join(w for w in learning if w)}"]
    return [*lines, f"actors   {' · '.join(_actors(snap))}"] if snap.actors else lines


class Silent:
    """Shows messages only. Other displays also show Snapshots: call `due()` first, which is cheaper
    than building one."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stdout

    def due(self) -> bool:
        return False

    def update(self, snap: Snapshot) -> None:
        """Do nothing."""

    def message(self, text: str) -> None:
        try:
            stamp = time.strftime("%Y-%m-%d %H:%M:%S")
            lines = printable(text).splitlines()
            self._stream.writelines(f"{stamp} {line}\n" for line in lines)
            self._stream.flush()
        except (OSError, ValueError):  # the reader of the output is gone; the run continues
            return

    def progress(self, text: str) -> None:
        """Do nothing. Other displays show the text as a message."""

    def close(self) -> None:
        """Do nothing."""


class Plain(Silent):
    """Prints time-stamped lines: first soon after the start, then every `every` seconds."""

    def __init__(self, every: float = 30.0, stream: TextIO | None = None) -> None:
        super().__init__(stream)
        self._every = every
        self._next = time.monotonic() + min(every, 5.0)

    def due(self) -> bool:
        return time.monotonic() >= self._next

    def update(self, snap: Snapshot) -> None:
        self._next = time.monotonic() + self._every
        for line in plain_lines(snap):
            self.message(line)

    def progress(self, text: str) -> None:
        self.message(text)


class Panel(Plain):
    """A panel that redraws in place; messages scroll above it."""

    def __init__(self, header: Header, *, color: bool = True, stream: TextIO | None = None) -> None:
        from rich.console import Console
        from rich.live import Live

        super().__init__(0.5, stream)
        self._header, self._next = header, 0.0
        self._console = Console(file=stream, no_color=not color, highlight=False)
        self._unicode = "utf" in (self._console.encoding or "").lower()
        self._live = Live(console=self._console, auto_refresh=False, transient=False)
        self._live.start()

    def update(self, snap: Snapshot) -> None:
        self._next = time.monotonic() + self._every
        self._live.update(self._draw(snap), refresh=True)

    def message(self, text: str) -> None:
        self._console.print(printable(text), markup=False)

    def close(self) -> None:
        self._live.stop()

    def _draw(self, snap: Snapshot) -> Text:
        from rich.text import Text

        text = Text(no_wrap=True, overflow="ellipsis")
        for label, line in panel_lines(self._header, snap, unicode=self._unicode):
            text.append(f"{label:8s}" if label else "", style="bold cyan")
            text.append(f"{printable(line)}\n")
        text.right_crop(1)
        return text


def make_display(
    header: Header,
    mode: Literal["auto", "plain", "off"] = "auto",
    *,
    every: float = 30.0,
    quiet: bool = False,
    color: bool = True,
    stream: TextIO | None = None,
) -> Silent:
    """Make a panel on a terminal, else time-stamped lines; `quiet` and "off": messages only."""
    out = stream or sys.stdout
    if quiet or mode == "off":
        return Silent(out)
    if mode == "plain" or not out.isatty() or os.environ.get("TERM") == "dumb":
        return Plain(every, out)
    return Panel(header, color=color and not os.environ.get("NO_COLOR"), stream=out)
