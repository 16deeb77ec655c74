"""Play whole episodes with a policy that does not learn. Every episode's score is kept."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ludus.collect.collector import Collected, Collector, never
from ludus.contract import Algorithm
from ludus.envs.adapter import Envs
from ludus.envs.atari.protocols import MINUTE
from ludus.envs.backends.serial import hear_signs
from ludus.envs.config import EnvConfig
from ludus.envs.make import make_envs
from ludus.errors import LudusError, nearest, printable
from ludus.evals.result import EvalResult
from ludus.evals.rules import SLOTS, check_epsilon
from ludus.process.watchdog import Pulse
from ludus.types import EpisodeEnd, Rows
from ludus.units import show_count, show_seconds

__all__ = ["AbandonedError", "EvalResult", "Tally", "check_epsilon", "evaluate_policy"]
RENDER = ("none", "one", "all")
TELL_SECONDS = 10.0  # between lines of progress


class AbandonedError(Exception):
    """Told to stop before the last episode was over; for whoever told it."""


def evaluate_policy(
    algorithm: Algorithm,
    net: nn.ModuleDict,
    env: EnvConfig,
    *,
    episodes: int,
    seed: int,
    epsilon: float = 0.0,
    sample: bool = False,
    render: str = "none",
    slots: int = SLOTS,
    quiet: bool = True,
    progress: Progress | None = None,
    stopping: Callable[[], bool] = never,
    sign: Callable[[], None] | None = None,
    pulse: Pulse | None = None,
) -> EvalResult:
    """`episodes` whole episodes, each slot the same number (the first to finish are short ones).

    Without a `progress` of its own, one that is not `quiet` tells it on standard error.
    AbandonedError once `stopping`, asked after every row, says so. `sign`: see `hear_signs`;
    `pulse`: see the watchdog.
    """
    slots = min(episodes, slots)
    # An episode that an error cuts is no score: whoever evaluates hears of it.
    played = as_played(env, slots, render).model_copy(update={"on_error": "stop"})
    envs = make_envs(
        played, seed=seed, role="eval", repair_scores=True, reseed=True, quiet=quiet, pulse=pulse
    )
    device = next(net.parameters()).device
    quota, tally, steps = -(-episodes // slots), Tally(slots, marks_of(env)), 0
    progress = progress or Progress(episodes, _silence if quiet else _to_stderr)
    try:
        collector = eval_collector(algorithm, envs, seed, device, sample)
        values = eval_values(algorithm, epsilon, device)
        hear_signs(envs.backend, sign)
        while tally.fewest < quota:
            got = collector.collect(net, 8, values, stopping)
            if got is None:
                raise AbandonedError
            tally.add(got)
            steps += int(got.chunk.rows.mask.sum())
            progress.tell(tally.count(quota), steps, tally.lengths)
    finally:
        envs.close()
    rules = {"epsilon": epsilon, "sample": sample, "seed": seed, "env": env.id} | env.score_facts
    return tally.result(episodes, envs.episode_seed, rules)


def marks_of(env: EnvConfig) -> dict[str, int]:
    """Agent steps after which the score of an Atari game is noted."""
    if env.atari is None:
        return {}
    return {"5min": 5 * MINUTE // env.atari.skip, "30min": 30 * MINUTE // env.atari.skip}


class Tally:
    """The whole episodes of each slot, with the scores they had reached at the marks."""

    def __init__(self, slots: int, marks: Mapping[str, int]) -> None:
        self.marks = dict(marks)
        self.found: list[list[tuple[EpisodeEnd, dict[str, float]]]] = [[] for _ in range(slots)]
        self._score, self._steps = np.zeros(slots), np.zeros(slots, np.int64)
        self._at = {name: np.zeros(slots) for name in marks}
        self._whole: list[list[dict[str, float]]] = [[] for _ in range(slots)]

    @property
    def fewest(self) -> int:
        return min(len(found) for found in self.found)

    def count(self, quota: int) -> int:
        """Episodes so far, of each slot no more than its share."""
        return sum(min(quota, len(found)) for found in self.found)

    @property
    def lengths(self) -> list[int]:
        return [ended.length for found in self.found for ended, _ in found]

    def add(self, got: Collected) -> None:
        if self.marks:
            self._follow(got.chunk.rows)
        for ended in got.episodes:
            if not ended.whole:  # cut, so it has no score
                continue
            at = self._whole[ended.slot].pop(0) if self.marks else {}
            self.found[ended.slot].append((ended, at))

    def result(
        self, episodes: int, seed_of: Callable[[int, int], int], settings: dict[str, Any]
    ) -> EvalResult:
        """Round by round; the surplus of the last round is dropped from the highest slots."""
        slots = len(self.found)
        rounds = range(-(-episodes // slots))
        played_in = [(j, n) for n in rounds for j in range(slots)][:episodes]
        found = [self.found[j][n] for j, n in played_in]
        return EvalResult(
            [ended.score for ended, _ in found],
            [ended.length for ended, _ in found],
            [seed_of(j, n) for j, n in played_in],
            settings=settings,
            ends=[ended.end for ended, _ in found],
            marks={name: [at[name] for _, at in found] for name in self.marks},
        )

    def _follow(self, rows: Rows) -> None:
        reward, real, last = (x.numpy() for x in (rows.raw_reward, rows.mask, rows.last))  # [T,B]
        for t in range(len(reward)):
            self._score += np.where(real[t], reward[t], 0.0)
            self._steps += real[t]
            for name, steps in self.marks.items():
                early = real[t] & (self._steps <= steps)
                self._at[name][early] = self._score[early]
            for j in np.flatnonzero(last[t]):
                self._whole[j].append({name: float(at[j]) for name, at in self._at.items()})
                self._score[j] = self._steps[j] = 0


class Progress:
    """A line now and then, for whoever waits: a hundred long games take a while."""

    def __init__(
        self,
        episodes: int,
        say: Callable[[str], None],
        title: str = "evaluation",
        *,
        every: float | None = None,
        first: float | None = None,
    ) -> None:
        self.episodes, self.say, self.title = episodes, say, title
        self.every = TELL_SECONDS if every is None else every
        self._began = time.monotonic()
        self._next = self._began + (self.every if first is None else first)

    def tell(self, done: int, steps: int, lengths: Sequence[int]) -> None:
        """`lengths` of the episodes that ended, `steps` of all."""
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + self.every
        seconds, played = now - self._began, min(done, self.episodes)
        words = [f"{played} of {self.episodes} episodes", f"{show_count(steps)} steps"]
        words.append(f"{show_count(steps / max(seconds, 1e-9))} steps/s")
        rest = left(self.episodes, seconds=seconds, steps=steps, lengths=lengths)
        if rest is not None and played < self.episodes:
            words.append(f"about {show_seconds(rest)} to go")
        self.say(f"{self.title}: {', '.join(words)}")


def left(episodes: int, *, seconds: float, steps: int, lengths: Sequence[int]) -> float | None:
    """Seconds to go, if the others are as long as those that ended; None where that cannot be."""
    if not lengths or not steps:
        return None
    due = episodes * sum(lengths) / len(lengths) - steps
    return due * seconds / steps if due > 0 else None


def _to_stderr(text: str) -> None:
    print(printable(text), file=sys.stderr, flush=True)


def _silence(text: str) -> None:
    return None


def eval_values(
    algorithm: Algorithm, epsilon: float, device: torch.device | str = "cpu"
) -> dict[str, Tensor]:
    """What schedules say while nobody learns: nothing but the epsilon asked for."""
    names = (*algorithm.plan.schedules, "warming")
    values = {name: torch.zeros((), device=device) for name in names}
    if "epsilon" in values:
        values["epsilon"].fill_(epsilon)
    return values


def eval_collector(
    algorithm: Algorithm, envs: Envs, seed: int, device: torch.device, sample: bool
) -> Collector:
    made = Collector(algorithm, envs, seed=seed, index=1_000_000, device=device)
    made.ctx.evaluating = not sample
    made.ctx.actor = 0  # the index is for the seeds; its slots are all there are
    made.priorities = None  # nobody replays these rows
    made.barrier(0)
    return made


def as_played(env: EnvConfig, slots: int, render: str) -> EnvConfig:
    """The environment of training, but whole games: a lost life is a signal for learners only.

    Rewards stay as the policy was trained to see them, should it look at them; scores are sums of
    the game's own. Who watched the training (env.render) need not be watching now.
    """
    if render not in RENDER:
        raise LudusError(
            "E103",
            f"render {render} is not one of: {', '.join(RENDER)}{nearest(render, RENDER)}",
            where="--render",
            fix="--render one",
        )
    change: dict[str, Any] = {"num": slots, "groups": 1, "workers": min(env.workers, slots)}
    change["render"] = render
    if env.atari is not None:
        change["atari"] = env.atari.model_copy(update={"life_loss": "ignore"})
    return env.model_copy(update=change)
