"""Play whole episodes with a policy that does not learn. Every episode's score is kept."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from ludus.contract import Algorithm
from ludus.envs.adapter import Envs
from ludus.envs.config import EnvConfig
from ludus.envs.make import make_envs
from ludus.errors import LudusError, nearest
from ludus.run.collector import Collector, never
from ludus.seeding import env_seed

RENDER = ("none", "one", "all")


class AbandonedError(Exception):
    """Told to stop before the last episode was over; for whoever told it."""


@dataclass(frozen=True)
class EvalResult:
    """Scores in a fixed order: episode i of slot j, slot by slot."""

    scores: list[float]
    lengths: list[int]
    seeds: list[int]  # of the slot each episode was played in
    step: int = 0
    checkpoint: str = ""
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def mean(self) -> float:
        return statistics.fmean(self.scores)

    @property
    def std(self) -> float:
        return statistics.stdev(self.scores) if len(self.scores) > 1 else 0.0

    @property
    def median(self) -> float:
        return statistics.median(self.scores)

    def mean_ci(self, z: float = 1.96) -> tuple[float, float, float]:
        """Mean and a normal 95 % interval of it."""
        half = z * self.std / len(self.scores) ** 0.5
        return self.mean, self.mean - half, self.mean + half

    def as_dict(self) -> dict[str, Any]:
        return {
            "mean": self.mean,
            "std": self.std,
            "median": self.median,
            "min": min(self.scores),
            "max": max(self.scores),
            "episodes": len(self.scores),
            "step": self.step,
            "checkpoint": self.checkpoint,
            "scores": self.scores,
            "lengths": self.lengths,
            "seeds": self.seeds,
            **self.settings,
        }


def check_epsilon(algorithm: Algorithm, epsilon: float) -> None:
    """A share of random actions, asked of an algorithm that has none, would do nothing."""
    if epsilon > 0 and "epsilon" not in algorithm.plan.schedules:
        raise LudusError(
            "E104",
            f"epsilon {epsilon:g}, but the algorithm takes no random actions of that kind",
            where="--epsilon, or eval.epsilon",
            why="it has no schedule called epsilon: its policy explores by itself",
            fix="leave epsilon out;  ludus eval RUN --sample  samples the policy",
        )


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
    quiet: bool = True,
    stopping: Callable[[], bool] = never,
) -> EvalResult:
    """`episodes` whole episodes, each slot the same number (the first to finish are short ones).

    AbandonedError once `stopping`, asked after every row, says so.
    """
    slots = min(episodes, 10)
    quota = -(-episodes // slots)
    facts = env.score_facts
    played = _as_played(env, slots, render)
    envs = make_envs(played, seed=seed, role="eval", repair_scores=True, quiet=quiet)
    device = next(net.parameters()).device
    try:
        collector = _collector(algorithm, envs, seed, device, sample)
        names = (*algorithm.plan.schedules, "warming")
        values = {name: torch.zeros((), device=device) for name in names}
        if "epsilon" in values:
            values["epsilon"].fill_(epsilon)
        found: list[list[tuple[float, int]]] = [[] for _ in range(slots)]
        while any(len(f) < quota for f in found):
            got = collector.collect(net, 8, values, stopping)
            if got is None:
                raise AbandonedError
            for ended in got.episodes:
                found[ended.slot].append((ended.score, ended.length))
    finally:
        envs.close()
    # Slot by slot; the surplus of the last round is dropped from the highest slots.
    rounds = [found[j][i] for i in range(quota) for j in range(slots)][:episodes]
    seeds = [env_seed(seed, "eval", j, 0) for _ in range(quota) for j in range(slots)][:episodes]
    return EvalResult(
        [s for s, _ in rounds],
        [n for _, n in rounds],
        seeds,
        settings={"epsilon": epsilon, "sample": sample, "seed": seed, "env": env.id} | facts,
    )


def _collector(
    algorithm: Algorithm, envs: Envs, seed: int, device: torch.device, sample: bool
) -> Collector:
    made = Collector(algorithm, envs, seed=seed, index=1_000_000, device=device)
    made.ctx.evaluating = not sample
    made.ctx.actor = 0  # the index is for the seeds; its slots are all there are
    made.priorities = None  # nobody replays these rows
    made.barrier(0)
    return made


def _as_played(env: EnvConfig, slots: int, render: str) -> EnvConfig:
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
