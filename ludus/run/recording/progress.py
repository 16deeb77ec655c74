"""Progress of a run: warm-up, replay refill, or learning at the measured speed. There is no
estimate before the first update, because collecting alone is much faster."""

from __future__ import annotations

import math
from typing import Any

from ludus.run.compatibility import FEW_CUT
from ludus.run.loop import Loop
from ludus.run.replay_state import ReplayFiles
from ludus.settings.resolve import Config
from ludus.track.terminal import Snapshot
from ludus.units import show_count

DAY = 86_400.0
LONG = 2 * DAY  # remaining time that triggers a warning
MEASURED = 30.0  # seconds of learning before that warning


class Progress:
    def __init__(self, cfg: Config, loop: Loop) -> None:
        self.cfg, self.loop = cfg, loop
        self.speed = (0.0, 0.0)  # steps/s, rows of a refill included; updates/s
        self.learning = False  # an update of this session is done
        self.stalled = False  # an environment does not return: no estimate
        self._updates = self._refill = self._begun = 0
        self._since = 0.0
        self._reported: set[str] = set()

    def begin(self) -> None:
        """Start to measure speed; all state is restored."""
        self._updates, self._refill = self.loop.learner.updates, self.loop.refill
        self._begun = self.loop.step
        self.loop.clock.mark(self._acted, self._updates)

    def tick(self) -> None:
        """Call every iteration. The speed of learning is measured from the first update on."""
        loop = self.loop
        if not self.learning and loop.learner.updates > self._updates:
            self.learning, self._since = True, loop.clock.session_seconds
            loop.clock.forget()
            loop.clock.mark(self._acted, loop.learner.updates)

    def measure(self) -> tuple[float, float]:
        clock = self.loop.clock
        found = clock.mark(self._acted, self.loop.learner.updates)
        if not self.learning or clock.session_seconds - self._since > 0.2:
            self.speed = found
        return self.speed

    def times(self) -> dict[str, float | None]:
        """Return the shares of this session's time, and that in which the learner's GPU was idle:
        None if nothing can tell, left out on a CPU."""
        gpu = self.loop.gpu
        clock, roles = self.loop.clock, self.loop.roles
        found: dict[str, float | None] = {**clock.split()}
        if roles is not None:  # a part of `learn`
            found["replay_wait"] = roles.wait_seconds / max(clock.session_seconds, 1e-9)
        return found | ({} if gpu is None else {"gpu_idle": gpu.idle})

    @property
    def waiting(self) -> str:
        """Describe the phase before learning, or the reason why it is stalled; else ""."""
        loop, warmup = self.loop, self.loop.learner.plan.warmup
        if self.stalled:
            return "stalled"
        if loop.refill:
            done = show_count(self._refill - loop.refill)
            return f"refilling replay {done} / {show_count(self._refill)} rows"
        if self.learning or loop.step >= loop.steps:
            return ""
        if loop.step < warmup:
            return f"warming up {show_count(loop.step)} / {show_count(warmup)} steps"
        return "warming up"

    def snapshot(self, replay: ReplayFiles, **more: Any) -> Snapshot:
        """Make a Snapshot for the display; `more`: fields that the loop does not know."""
        loop, scores = self.loop, self.loop.scores
        speed, shown = self.measure(), replay.shown()
        return Snapshot(
            step=loop.step,
            steps=loop.steps,
            updates=loop.learner.updates,
            seconds=loop.clock.seconds,
            score=scores.mean,
            window=scores.window,
            episodes=scores.episodes,
            best=scores.best,
            cut=scores.cut,
            steps_per_second=speed[0],
            updates_per_second=speed[1],
            replay_ratio=shown[0],
            replay_target=shown[1],
            replay_fill=shown[2],
            split={} if self.stalled else loop.clock.split(),
            faults=loop.learner.skipped,
            actors=loop.actor_metrics(),
            learner_bound=loop.fleet.learner_bound,
            waiting=self.waiting,
            gpu_idle=self.loop.gpu.idle if self.loop.gpu else None,
            **more,
        )

    def takes_long(self) -> str:
        """Return a warning, once, when more than two days are left."""
        loop, pace = self.loop, self.speed[0]
        if not self.learning or loop.clock.session_seconds - self._since < MEASURED or pace <= 0:
            return ""
        left = (loop.steps - loop.step) / pace
        if left <= LONG:
            return ""
        reached = show_count(float(f"{loop.step + pace * LONG:.2g}"))
        return self._once(
            f"at {show_count(pace)} steps/s this run takes {left / DAY:.0f} more days; in two it "
            f"comes to step {reached}: steps={reached}, a smaller algo.replay_ratio or a GPU"
        )

    def cuts_many(self) -> str:
        """Return a message, once, when checkpoints cut more than a few episodes."""
        loop, scores, share = self.loop, self.loop.scores, self.loop.scores.cut_share
        ending = loop.step >= loop.steps or loop.stop_reason is not None
        if ending or scores.cut + scores.episodes < 20 or share <= FEW_CUT:
            return ""
        wider, seconds = share / FEW_CUT, loop.checkpoint_time.seconds
        if self._mostly_by_time and seconds is not None:
            way = f"checkpoint_time={_typed(seconds * wider)} cuts fewer, run.exact=off"
        else:
            steps = float(f"{(loop.checkpoint_every.period or 1) * wider:.2g}")
            way = f"checkpoint_every={show_count(steps)} cuts fewer, run.exact=off"
        return self._once(
            f"checkpoints have cut {scores.cut} of {scores.cut + scores.episodes} episodes "
            f"({share:.0%}), which count for no score; {way} none"
        )

    @property
    def interval_is_default(self) -> bool:
        """Whether most checkpoints of this session followed the default interval: cut episodes
        are then worth a note, not a warning."""
        return self.cfg.run.checkpoint_every is None and not self._mostly_by_time

    @property
    def _mostly_by_time(self) -> bool:
        """Whether most checkpoints of this session were due by time."""
        every = self.loop.checkpoint_every.period
        by_steps = self.loop.step // every - self._begun // every if every else 0
        return self.loop.checkpoint_time.count > by_steps

    def _once(self, text: str) -> str:
        kind = text.split()[0]
        if kind in self._reported:
            return ""
        self._reported.add(kind)
        return text

    @property
    def _acted(self) -> int:
        return self.loop.step + self._refill - self.loop.refill


def _typed(seconds: float) -> str:
    """Format a duration as typed on the command line, rounded up: 1.1s, 34m, 3.4h."""
    size, unit = next(((n, u) for n, u in ((3600, "h"), (60, "m")) if seconds >= n), (1, "s"))
    tenths = math.ceil(round(10 * seconds / size, 6))
    return f"{tenths / 10:g}{unit}"
