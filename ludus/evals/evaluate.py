"""Play complete episodes with a policy that does not learn, and keep every score."""

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
from ludus.envs.backends.serial import set_heartbeat
from ludus.envs.config import EnvConfig
from ludus.envs.make import make_envs
from ludus.errors import LudusError, nearest, printable
from ludus.evals.result import EvalResult
from ludus.evals.rules import NUM_ENVS, check_epsilon
from ludus.process.watchdog import Pulse
from ludus.types import EpisodeEnd, Rows
from ludus.units import show_count, show_seconds

__all__ = ["AbandonedError", "EpisodeRecorder", "EvalResult", "check_epsilon", "evaluate_policy"]
RENDER = ("none", "one", "all")
PROGRESS_SECONDS = 10.0  # between lines of progress


class AbandonedError(Exception):
    """`stopping` returned true before the last episode was over."""


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
    num_envs: int = NUM_ENVS,
    quiet: bool = True,
    progress: Progress | None = None,
    stopping: Callable[[], bool] = never,
    heartbeat: Callable[[], None] | None = None,
    pulse: Pulse | None = None,
) -> EvalResult:
    """Play `episodes` complete episodes, the same number in each environment (taking the first to
    finish would prefer short ones).

    Without `progress`, and unless `quiet`, progress is printed to standard error. AbandonedError
    once `stopping`, called after every row, returns true. `heartbeat`: see `set_heartbeat`;
    `pulse`: see the watchdog.
    """
    num_envs = min(episodes, num_envs)
    # An episode that an error cuts has no score, so the error ends the evaluation.
    played = eval_env(env, num_envs, render).model_copy(update={"on_error": "stop"})
    envs = make_envs(
        played, seed=seed, role="eval", repair_scores=True, reseed=True, quiet=quiet, pulse=pulse
    )
    device = next(net.parameters()).device
    quota, record, steps = -(-episodes // num_envs), EpisodeRecorder(num_envs, marks_of(env)), 0
    progress = progress or Progress(episodes, _silence if quiet else _to_stderr)
    try:
        collector = eval_collector(algorithm, envs, seed, device, sample)
        values = eval_values(algorithm, epsilon, device)
        set_heartbeat(envs.backend, heartbeat)
        while record.fewest < quota:
            got = collector.collect(net, 8, values, stopping)
            if got is None:
                raise AbandonedError
            record.add(got)
            steps += int(got.chunk.rows.mask.sum())
            progress.report(record.count(quota), steps, record.lengths)
    finally:
        envs.close()
    rules = {"epsilon": epsilon, "sample": sample, "seed": seed, "env": env.id} | env.score_facts
    return record.result(episodes, envs.episode_seed, rules)


def marks_of(env: EnvConfig) -> dict[str, int]:
    """Agent steps after which the score of an Atari game is noted."""
    if env.atari is None:
        return {}
    return {"5min": 5 * MINUTE // env.atari.skip, "30min": 30 * MINUTE // env.atari.skip}


class EpisodeRecorder:
    """The complete episodes of each environment, with their scores at the marks."""

    def __init__(self, num_envs: int, marks: Mapping[str, int]) -> None:
        self.marks = dict(marks)
        self.found: list[list[tuple[EpisodeEnd, dict[str, float]]]] = [[] for _ in range(num_envs)]
        self._score, self._steps = np.zeros(num_envs), np.zeros(num_envs, np.int64)
        self._at = {name: np.zeros(num_envs) for name in marks}
        self._ended: list[list[dict[str, float]]] = [[] for _ in range(num_envs)]

    @property
    def fewest(self) -> int:
        return min(len(found) for found in self.found)

    def count(self, quota: int) -> int:
        """Episodes so far, at most `quota` per environment."""
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
            at = self._ended[ended.env].pop(0) if self.marks else {}
            self.found[ended.env].append((ended, at))

    def result(
        self, episodes: int, seed_of: Callable[[int, int], int], settings: dict[str, Any]
    ) -> EvalResult:
        """Round by round; the surplus of the last round is dropped from the last environments."""
        num_envs = len(self.found)
        rounds = range(-(-episodes // num_envs))
        played_in = [(j, n) for n in rounds for j in range(num_envs)][:episodes]
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
                self._ended[j].append({name: float(at[j]) for name, at in self._at.items()})
                self._score[j] = self._steps[j] = 0


class Progress:
    """Reports progress every few seconds: a hundred long games take a while."""

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
        self.every = PROGRESS_SECONDS if every is None else every
        self._began = time.monotonic()
        self._next = self._began + (self.every if first is None else first)

    def report(self, done: int, steps: int, lengths: Sequence[int]) -> None:
        """`lengths`: of the episodes that ended; `steps`: of all."""
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + self.every
        seconds, played = now - self._began, min(done, self.episodes)
        words = [f"{played} of {self.episodes} episodes", f"{show_count(steps)} steps"]
        words.append(f"{show_count(steps / max(seconds, 1e-9))} steps/s")
        rest = seconds_left(self.episodes, seconds=seconds, steps=steps, lengths=lengths)
        if rest is not None and played < self.episodes:
            words.append(f"about {show_seconds(rest)} to go")
        self.say(f"{self.title}: {', '.join(words)}")


def seconds_left(
    episodes: int, *, seconds: float, steps: int, lengths: Sequence[int]
) -> float | None:
    """Estimated from the lengths of the episodes that ended; None if that is impossible."""
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
    """Schedule values during an evaluation: zero, except for the given epsilon."""
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
    made.ctx.actor = 0  # the index only decides the seeds
    made.priorities = None  # these rows are never replayed
    made.barrier(0)
    return made


def eval_env(env: EnvConfig, num_envs: int, render: str) -> EnvConfig:
    """The environment of training with complete games: a lost life is a signal for learners only.

    The policy sees rewards as in training; scores are sums of raw rewards. `render` replaces
    env.render, which is for training.
    """
    if render not in RENDER:
        raise LudusError(
            "E103",
            f"render {render} is not one of: {', '.join(RENDER)}{nearest(render, RENDER)}",
            where="--render",
            fix="--render one",
        )
    change: dict[str, Any] = {"num": num_envs, "groups": 1, "workers": min(env.workers, num_envs)}
    change["render"] = render
    if env.atari is not None:
        change["atari"] = env.atari.model_copy(update={"life_loss": "ignore"})
    return env.model_copy(update=change)
