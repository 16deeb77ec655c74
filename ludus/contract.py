"""The Algorithm protocol. An algorithm never sees a process, a logger or a replay object, and the
code that runs it does not know which algorithm it is.

Its data are described by a Plan (ludus/plan/), whose parts are exported here, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from ludus.plan.plan import Feed, Plan
from ludus.plan.samplers import Fifo, Frozen, Prioritized, Replay, Sampler, Uniform
from ludus.plan.views import Episode, NStep, Sequence, Unroll, View
from ludus.schedules import Schedule, Share, Values, ramp
from ludus.types import ActorState, Ctx, EnvSpec, Loss, Step, lasting_state, stored_state

__all__ = [
    "ActorState",
    "Algorithm",
    "Defaults",
    "Episode",
    "Feed",
    "Fifo",
    "Frozen",
    "NStep",
    "Plan",
    "Prioritized",
    "Replay",
    "Sampler",
    "Schedule",
    "Sequence",
    "Share",
    "Uniform",
    "Unroll",
    "Values",
    "View",
    "lasting_state",
    "overrides",
    "ramp",
    "stored_state",
]


class Algorithm(Protocol):
    """An algorithm: picklable, without mutable state. docs/contract.md describes each method;
    `Defaults` implements the optional ones."""

    plan: Plan

    def build(self, spec: EnvSpec) -> nn.ModuleDict: ...

    def optimizer(self, net: nn.ModuleDict) -> torch.optim.Optimizer: ...

    def begin(self, n: int, ctx: Ctx) -> Any: ...

    def env_info(self, env: int, state: Any, ctx: Ctx) -> Mapping[str, float]: ...

    def act(
        self, net: nn.ModuleDict, step: Step, state: Any, ctx: Ctx
    ) -> tuple[Tensor, dict[str, Tensor], Any]: ...

    def after_step(
        self, net: nn.ModuleDict, step: Step, action: Tensor, next: Step, state: Any, ctx: Ctx
    ) -> tuple[dict[str, Tensor], Any]: ...

    def prepare(self, net: nn.ModuleDict, batch: Any, ctx: Ctx) -> Any: ...

    def loss(self, net: nn.ModuleDict, batch: Any, ctx: Ctx) -> Loss: ...

    def features(self, net: nn.ModuleDict, batch: Any, ctx: Ctx) -> Tensor | None: ...

    def after_sample(self, net: nn.ModuleDict, batch: Any, ctx: Ctx) -> None: ...

    def after_update(self, net: nn.ModuleDict, updates: int) -> None: ...

    def after_steps(self, net: nn.ModuleDict, before: int, steps: int) -> None: ...

    def sampled_hparams(self, n: int, ctx: Ctx) -> Mapping[str, Any]: ...


class Defaults:
    """Optional hooks that do nothing. Variants are values in a config, not subclasses."""

    def begin(self, n: int, ctx: Ctx) -> Any:
        return ()

    def env_info(self, env: int, state: Any, ctx: Ctx) -> Mapping[str, float]:
        """Return numbers about environment `env`, counted over all actors; recorded with its
        episodes. `state`: this environment's actor state, leaves without the axis [n]."""
        return {}

    def after_step(
        self, net: nn.ModuleDict, step: Step, action: Tensor, next: Step, state: Any, ctx: Ctx
    ) -> tuple[dict[str, Tensor], Any]:
        """Called when the environments have answered, if an algorithm overrides it: more extras of
        the same row, such as an intrinsic reward of `next.obs`, and the new actor state."""
        return {}, state

    def prepare(self, net: nn.ModuleDict, batch: Any, ctx: Ctx) -> Any:
        """Compute advantages or intrinsic rewards, once per sample and without gradients."""
        return batch

    def features(self, net: nn.ModuleDict, batch: Any, ctx: Ctx) -> Tensor | None:
        """Return [B, F], by which a sampler with `needs_features` ranks the items of a sample."""
        return None

    def after_sample(self, net: nn.ModuleDict, batch: Any, ctx: Ctx) -> None:
        """Called once per sample, after its last epoch."""

    def after_update(self, net: nn.ModuleDict, updates: int) -> None:
        """Called after every optimizer step, for example to copy target networks."""

    def after_steps(self, net: nn.ModuleDict, before: int, steps: int) -> None:
        """Called between updates, when the run has gone from `before` to `steps` agent steps, for
        example to copy target networks."""

    def sampled_hparams(self, n: int, ctx: Ctx) -> Mapping[str, Any]:
        """Hyperparameters sampled once for the n environments of actor `ctx.actor`; recorded in
        manifest.json."""
        return {}


def overrides(algorithm: Algorithm, hook: str) -> bool:
    """Whether an algorithm has its own version of an optional hook. The others cost nothing."""
    default = getattr(Defaults, hook)
    return getattr(type(algorithm), hook, default) is not default
