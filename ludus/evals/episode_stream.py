"""An agent at play as a stream of moments: picture, score so far, and the network's value.

Uses the adapter and the collector of an evaluation with one environment, so that memory, previous
actions, limits and seeds are the same. Draws and writes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import nn

from ludus.collect.policy_runner import HostRunner
from ludus.envs.backends.serial import Serial
from ludus.envs.make import make_envs
from ludus.evals.agent import Agent
from ludus.evals.evaluate import eval_collector, eval_env, eval_values
from ludus.evals.rules import Rules
from ludus.nets.heads import HeadOut
from ludus.nets.normalize import normalizer_of
from ludus.nets.policies import ValueHead
from ludus.types import EpisodeEnd, Step

Array: TypeAlias = np.ndarray[Any, Any]


class Moment(NamedTuple):
    """A picture and the state of the episode when it was taken."""

    picture: Array  # [height, width, 3] uint8
    score: float  # so far
    value: float | None  # expected return: discounted, of rewards as the agent gets them
    step: int  # agent steps so far
    ended: EpisodeEnd | None = None  # set at the last picture of an episode


class EpisodeStream:
    """Close it after use. Episode n has the seed `seed_of(n)`, as in an evaluation."""

    def __init__(self, agent: Agent, rules: Rules, seed: int) -> None:
        env = eval_env(rules.env, 1, "none").model_copy(update={"workers": 0})
        self.envs = make_envs(
            env, seed=seed, role="eval", repair_scores=True, reseed=True, pictures=1
        )
        backend = self.envs.backend
        assert isinstance(backend, Serial)
        self.backend, self.net = backend, agent.net
        self.title = f"{env.id} · {agent.cfg.algo_name} · step {agent.step}"
        device = torch.device("cpu")
        self.collector = eval_collector(agent.algorithm, self.envs, seed, device, rules.sample)
        assert isinstance(self.collector.runner, HostRunner)
        self.runner = self.collector.runner
        self.values = eval_values(agent.algorithm, rules.epsilon)
        self.reader = ValueReader(agent.net)

    @property
    def pace(self) -> float:
        """Pictures a second."""
        return self.backend.pace(0)

    def seed_of(self, episode: int) -> int:
        return self.envs.episode_seed(0, episode)

    def moments(self) -> Iterator[Moment]:
        """Endless. An episode of n steps has n + 1 pictures."""
        score, step, over = 0.0, 0, False
        while True:
            picture = None if over else self.backend.picture(0)
            value = self.reader.before(self.runner.steps[0])
            got = self.collector.collect(self.net, 1, self.values)
            assert got is not None  # it has no `stopping`
            if picture is None:  # the row of the reset
                score, step, over = 0.0, 0, False
                continue
            yield Moment(picture, score, self.reader.take(value), step)
            score, step = score + float(got.chunk.rows.raw_reward[0, 0]), step + 1
            for ended in got.episodes:
                over = True
                yield Moment(self.backend.picture(0), ended.score, None, ended.length, ended)

    def close(self) -> None:
        self.reader.close()
        self.envs.close()


class ValueReader:
    """Reads the value while the network acts, by hooks: the value head's output, or the best Q.

    A network that computes no value to act (PPO) is called separately; its `values` may be None.
    """

    def __init__(self, net: nn.ModuleDict) -> None:
        self._net = net
        self._seen: float | None = None
        online = net["online"] if "online" in net else net
        self._hooks = [part.register_forward_hook(self._look) for part in online.modules()]
        self._ask: Any = getattr(online, "values", None)

    def _look(self, part: nn.Module, given: Any, answer: Any) -> None:
        if isinstance(answer, HeadOut):
            self._seen = float(answer.q.max(-1).values.flatten()[0])
        elif isinstance(part, ValueHead):
            self._seen = float(answer.flatten()[0])

    @torch.no_grad()
    def before(self, step: Step) -> float | None:
        """The value of a separate critic for the observation of the next action."""
        if self._ask is None:
            return None
        normalizer = normalizer_of(self._net)
        obs = step.obs if normalizer is None else normalizer.obs(step.obs)
        value = self._ask(obs)
        self._seen = None
        return None if value is None else float(value.flatten()[0])

    def take(self, otherwise: float | None) -> float | None:
        """The value read by the hooks since `before`, else `otherwise`."""
        seen, self._seen = self._seen, None
        return otherwise if seen is None else seen

    def close(self) -> None:
        for hook in self._hooks:
            hook.remove()
