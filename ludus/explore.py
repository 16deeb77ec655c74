"""Exploration strategies for discrete actions: epsilon-greedy and its variants."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from pydantic import Field
from torch import Tensor

from ludus.contract import Frozen
from ludus.schedules import Schedule
from ludus.types import Ctx


def random_actions(q: Tensor, rng: torch.Generator, mask: Tensor | None = None) -> Tensor:
    """Sample uniformly from the allowed actions; q [B,A] only gives the shape."""
    return _random(q.shape[-1], q.shape[:-1], rng, mask)


def _random(actions: int, shape: torch.Size, rng: torch.Generator, mask: Tensor | None) -> Tensor:
    if mask is None:
        return torch.randint(actions, shape, generator=rng, device=rng.device)
    return torch.multinomial(mask.float(), 1, generator=rng)[..., 0]


def epsilon_greedy(
    q: Tensor, epsilon: Tensor, rng: torch.Generator, mask: Tensor | None = None
) -> Tensor:
    """argmax q [B,A] with probability 1 - epsilon (0-d or [B]), else uniform."""
    greedy = q.argmax(-1)  # [B]
    explore = torch.rand(greedy.shape, generator=rng, device=q.device) < epsilon
    return torch.where(explore, random_actions(q, rng, mask), greedy)


def lazy_epsilon_greedy(
    q: Callable[[], Tensor],
    like: Tensor,
    epsilon: Tensor,
    ctx: Ctx,
    mask: Tensor | None = None,
) -> Tensor:
    """As `epsilon_greedy` for the [B] environments of `like`, with the same draws. On a CPU it
    calls `q` only if some action is greedy; `q` may draw nothing."""
    explore = torch.rand(like.shape, generator=ctx.rng, device=like.device) < epsilon
    if like.is_cpu and b"\x00" not in explore.numpy().tobytes():  # all(), at a third of its cost
        return _random(ctx.spec.num_actions, like.shape, ctx.rng, mask)
    values = q()
    return torch.where(explore, random_actions(values, ctx.rng, mask), values.argmax(-1))


class Ladder(Frozen):
    """Horgan et al. 2018, section 4.1: environment i of N has epsilon base^(1 + alpha i / (N - 1)).

    N counts the environments of all actors; the paper's actors have one each. One alone has `base`.
    """

    base: float = Field(default=0.4, gt=0, le=1)
    alpha: float = Field(default=7.0, ge=0)

    def epsilon(self, env: int, num_envs: int) -> float:
        return float(self.base ** (1 + self.alpha * env / max(1, num_envs - 1)))


class Rungs(NamedTuple):
    """Share of random actions of each environment [B], and any other state."""

    epsilon: Tensor
    rest: Any


def rungs(ladder: Ladder, n: int, ctx: Ctx, rest: Any = ()) -> Rungs:
    """Return the rungs of n environments from ctx.env on. Captured acting reads this tensor."""
    first, num_envs = ctx.actor * ctx.num_envs + ctx.env, ctx.actors * ctx.num_envs
    epsilon = [ladder.epsilon(first + i, num_envs) for i in range(n)]
    return Rungs(torch.tensor(epsilon, device=ctx.rng.device), rest)


def sampled_finals(
    n: int, values: Sequence[float], weights: Sequence[float], rng: torch.Generator
) -> Tensor:
    """One of `values` for each of n environments, in proportion to `weights` [n].

    Mnih et al. 2016, section 5.1: every actor-learner has its own final exploration rate.
    """
    chosen = torch.multinomial(torch.tensor(weights), n, replacement=True, generator=rng)
    return torch.tensor(values)[chosen]


def own_epsilon(shared: Tensor, ramp: Schedule, final: Tensor) -> Tensor:
    """The rate [n] of environments that anneal over the span of `ramp`, each to its own `final`;
    `shared` (0-d) is where the ramp is now."""
    left = (shared - ramp.end) / (ramp.start - ramp.end)
    return final + (ramp.start - final) * left.clamp(0, 1)


class Persistent(NamedTuple):
    """How many more steps the exploratory action of each environment lasts, and which [B]."""

    left: Tensor
    action: Tensor


def persistent_start(n: int, device: torch.device | str = "cpu") -> Persistent:
    none = torch.zeros(n, dtype=torch.int64, device=device)
    return Persistent(none, none.clone())  # separate tensors: each is updated in place


def persistent_greedy(
    q: Tensor,
    epsilon: Tensor,
    state: Persistent,
    first: Tensor,
    zeta: float,
    rng: torch.Generator,
    mask: Tensor | None = None,
) -> tuple[Tensor, Persistent]:
    """epsilon-z-greedy (Dabney et al. 2021, alg. 1): an exploratory action lasts n steps,
    P(n) ~ n^-zeta. Repeated actions reach states that single random steps do not (MountainCar).

    The repetition ends at an episode's first step, and when the action is masked.
    """
    left = torch.where(first, 0, state.left)
    if mask is not None:
        left = torch.where(mask.gather(-1, state.action[:, None])[:, 0], left, 0)
    greedy = q.argmax(-1)
    start = torch.rand(greedy.shape, generator=rng, device=q.device) < epsilon
    fresh = start & (left <= 0)
    action = torch.where(fresh, random_actions(q, rng, mask), state.action)
    weights = _duration_weights(zeta, rng.device)
    steps = 1 + torch.multinomial(weights, len(greedy), replacement=True, generator=rng)
    left = torch.where(fresh, steps, left)
    chosen = torch.where(left > 0, action, greedy)
    return chosen, Persistent((left - 1).clamp(min=0), action)


@functools.lru_cache(maxsize=8)
def _duration_weights(zeta: float, device: torch.device, longest: int = 1000) -> Tensor:
    return torch.arange(1, longest + 1, device=device).double().pow(-zeta)
