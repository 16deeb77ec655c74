"""The Algorithm protocol and the Plan that describes its data. An algorithm never sees a process,
a logger or a replay object, and the code that runs it does not know which algorithm it is."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Protocol, TypeAlias

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn

from ludus.errors import LudusError
from ludus.feeds import check_feeds
from ludus.schedules import Schedule, Share, ramp
from ludus.types import Ctx, EnvSpec, Loss, Step


class Frozen(BaseModel):
    """Base of all settings: immutable, and unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)


class Sampler(Frozen):
    """Base of all samplers."""

    # Whether items are ranked by `Algorithm.features`, which the Learner computes of each sample.
    needs_features: ClassVar[bool] = False


class Uniform(Sampler):
    """Every valid item equally likely, with replacement."""

    kind: Literal["uniform"] = "uniform"


class Prioritized(Sampler):
    """Schaul et al. 2016, proportional: P(i) = p_i^alpha / sum, w = (N P)^-beta / max w."""

    kind: Literal["prioritized"] = "prioritized"
    alpha: float = Field(default=0.6, ge=0, le=1)
    beta: Share = ramp("0.4->1")
    epsilon: float = Field(default=1e-6, ge=0)  # added to every priority
    normalize: Literal["batch", "buffer", "none"] = "batch"  # where the largest weight becomes 1
    # The priority of a new item: the largest so far, or the loss that its actor computed.
    initial: Literal["largest", "actor"] = "largest"

    @property
    def needs_least(self) -> bool:
        """Whether weights are divided by that of the buffer's least priority."""
        return self.normalize == "buffer"


class Fifo(Sampler):
    """Each unroll or episode once, in the order of arrival."""

    kind: Literal["fifo"] = "fifo"


Replay: TypeAlias = Annotated[Uniform | Prioritized, Field(discriminator="kind")]


@dataclass(frozen=True)
class NStep:
    """View: single transitions with n-step rewards, discounted by gamma."""

    n: int = 1
    gamma: float = 0.99


@dataclass(frozen=True)
class Unroll:
    """View: `length` consecutive rows as collected; they may span several episodes."""

    length: int


@dataclass(frozen=True)
class Sequence:
    """View: `burn_in + length` rows within one episode, started every `period` rows of it.

    The first `burn_in` rows only restore the recurrent state: nothing is learned from them. A
    sequence that starts with its episode needs none, since its state is known: every row trains.
    """

    length: int
    period: int
    burn_in: int = 0


@dataclass(frozen=True)
class Episode:
    """View: `per_env` whole episodes of every environment, padded to the longest. The same number
    from each, because the first k to finish would be mostly short ones.

    An episode that reaches `max_length` rows is truncated there for the learner.
    """

    per_env: int = 1
    max_length: int | None = None


View: TypeAlias = NStep | Unroll | Sequence | Episode


@dataclass(frozen=True)
class Feed:
    """One part of every sample: a store of its own that gets all collected rows. `share` of the
    items come from it, exactly so over many samples."""

    name: str
    view: View
    sampler: Uniform | Prioritized | Fifo
    capacity: int = 0
    share: float = 1.0


@dataclass(frozen=True)
class Plan:
    """The data an algorithm learns from. All durations are agent steps unless named otherwise."""

    # With several `feeds` these two, and `capacity`, are those of the feed that paces learning.
    view: View = None  # type: ignore[assignment]
    sampler: Uniform | Prioritized | Fifo = None  # type: ignore[assignment]
    # Items per sample: transitions, sequences, unrolls. 0: one of every environment (whole
    # episodes: always `per_env` of every environment).
    batch: int = 0
    chunk: int = 0  # rows each environment collects between updates (0: enough for one update)
    capacity: int = 0  # rows kept in replay, or waiting in a queue (0: any number)
    replay_ratio: float = 1.0  # samples per inserted step; a queue uses each row once
    warmup: int = 0  # steps inserted before the first update
    epochs: int = 1
    minibatches: int = 1  # per epoch
    # A minibatch is rows [N, ...] in any order, or whole environments (unrolls) [T, b, ...].
    minibatch_over: Literal["rows", "envs"] = "rows"
    reduce: Literal["mean", "sum"] = "mean"
    clip: Literal["none", "global", "group", "layer"] = "none"
    clip_norm: float = 0.0
    # A parameter group `name` steps only in the updates k, 2k, ...; the others in every one.
    periods: Mapping[str, int] = field(default_factory=dict)
    corrects_lag: bool = False  # the loss corrects for rows collected with older weights (V-trace)
    hogwild: bool = False  # several workers may update shared weights at once (run.fleet=hogwild)
    # Annealed on agent steps and passed as ctx.values, which always include `warming` (1 during
    # warm-up, else 0).
    schedules: Mapping[str, Schedule] = field(default_factory=dict)
    # The parts of a sample. `view`, `sampler` and `capacity` are the short form of a single one.
    feeds: tuple[Feed, ...] = ()

    def __post_init__(self) -> None:
        if len(self.feeds) < 2 and self.view is not None:  # `replace` may have changed the view
            name = self.feeds[0].name if self.feeds else "all"
            feed = Feed(name, self.view, self.sampler, self.capacity)
            object.__setattr__(self, "feeds", (feed,))
        else:
            self._take_feeds()
        for feed in self.feeds:
            self._check(feed.view, feed.sampler)

    def _take_feeds(self) -> None:
        """Refuse feeds that do not make one batch, and set `view`, `sampler` and `capacity`."""
        check_feeds(self.feeds)
        queues = [feed for feed in self.feeds if isinstance(feed.sampler, Fifo)]
        pace = (queues or list(self.feeds))[0]
        for name in ("view", "sampler", "capacity"):
            if getattr(self, name) not in (None, 0, getattr(pace, name)):
                raise _contradiction(
                    f"{name}= and feeds=",
                    f"every feed has its own {name}",
                    f"{name}= left out, or one feed",
                )
            object.__setattr__(self, name, getattr(pace, name))

    def _check(self, view: View, sampler: Uniform | Prioritized | Fifo) -> None:
        again = self.epochs > 1 or self.minibatches > 1
        if again and isinstance(sampler, Prioritized):
            raise _contradiction(
                "priorities with several epochs or minibatches",
                "importance weights and new priorities apply to a sample that is used once",
                "epochs=1 and minibatches=1, or another sampler",
            )
        if again and isinstance(view, NStep):
            raise _contradiction(
                "single transitions with several epochs or minibatches",
                "a sample of transitions is one minibatch already",
                "epochs=1 and minibatches=1, and a higher replay_ratio or a smaller batch",
            )
        if self.actor_priorities and not isinstance(view, NStep):
            raise _contradiction(
                f"the view {type(view).__name__} with first priorities from the actors",
                "collectors compute priorities of single transitions only",
                "replay.initial=largest",
            )
        if any(k < 1 for k in self.periods.values()):
            raise _contradiction(
                f"periods={dict(self.periods)}", "a group steps every k-th update", "k=1 or more"
            )
        if not isinstance(sampler, _SERVED[type(view)]):
            able = " or ".join(kind.__name__ for kind in _SERVED[type(view)])
            raise _contradiction(
                f"the view {type(view).__name__} with the sampler {type(sampler).__name__}",
                "no store supports this combination",
                f"sampler={able}",
            )

    @property
    def actor_priorities(self) -> bool:
        """Whether collectors compute the first priority of every row (Horgan et al. 2018)."""
        return any(isinstance(s, Prioritized) and s.initial == "actor" for s in self.samplers)

    @property
    def samplers(self) -> tuple[Uniform | Prioritized | Fifo, ...]:
        """The samplers of all feeds."""
        return tuple(feed.sampler for feed in self.feeds)

    @property
    def needs_features(self) -> bool:
        """Whether a feed ranks its items by `Algorithm.features`."""
        return any(sampler.needs_features for sampler in self.samplers)

    def of_feed(self, feed: Feed) -> Plan:
        """Return the plan of one of several feeds, with the largest part of a batch it may give."""
        more = len(self.feeds) > 2  # the remainders of others may add up to one item
        batch = min(self.batch, math.ceil(self.batch * feed.share) + more)
        return replace(
            self,
            view=feed.view,
            sampler=feed.sampler,
            capacity=feed.capacity,
            batch=batch,
            feeds=(),
        )

    def for_envs(self, num_envs: int) -> Plan:
        """Return the plan with `batch` and `chunk` filled in for `num_envs` environments."""
        each = self.view.per_env if isinstance(self.view, Episode) else 1
        batch = self.batch or num_envs * each
        chunk = self.chunk or max(1, round(batch / self.replay_ratio / num_envs))
        rows = batch * self.view.length if isinstance(self.view, Unroll) else None
        if rows is not None and self.minibatches > rows:
            raise _contradiction(
                f"{self.minibatches} minibatches of {rows} rows ({batch} unrolls)",
                "some minibatches would be empty",
                f"minibatches={rows} or fewer, longer unrolls, or a higher env.num",
            )
        if self.minibatch_over == "envs" and self.minibatches > batch:
            raise _contradiction(
                f"{self.minibatches} minibatches over {batch} environments or unrolls",
                "some minibatches would be empty",
                f"minibatches={batch} or fewer, or a higher env.num",
            )
        return replace(self, batch=batch, chunk=chunk)


# The samplers that stores support, by view; see replay/store.py.
_SERVED: dict[type, tuple[type, ...]] = {
    NStep: (Uniform, Prioritized),
    Sequence: (Uniform, Prioritized),
    Unroll: (Fifo, Uniform),
    Episode: (Fifo,),
}


def _contradiction(what: str, why: str, fix: str) -> LudusError:
    return LudusError("E104", what, where="the algorithm's plan", why=why, fix=fix)


class ActorState(NamedTuple):
    """The actor state of n environments by where it goes; leaves [n, ...]. An algorithm without
    `private` and `lasting` may use its `stored` state alone."""

    stored: Any = ()  # starts every chunk and every replayed sequence: an LSTM's state
    private: Any = ()  # never leaves the collector: an episodic memory
    lasting: Any = ()  # survives episodes, barriers and checkpoints: the counts of a bandit


def stored_state(state: Any) -> Any:
    """The part that travels with chunks."""
    return state.stored if isinstance(state, ActorState) else state


def lasting_state(state: Any) -> Any:
    """The part that a checkpoint keeps."""
    return state.lasting if isinstance(state, ActorState) else ()


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


class Values:
    """ctx.values: every schedule of the plan, and `warming` (1 until the warm-up is over), as 0-d
    tensors that are updated in place."""

    def __init__(self, plan: Plan, horizon: int, device: torch.device | str = "cpu") -> None:
        self.plan, self.horizon = plan, horizon
        self.tensors: dict[str, Tensor] = {
            name: torch.zeros((), device=device) for name in (*plan.schedules, "warming")
        }
        self.numbers: dict[str, float] = dict.fromkeys(self.tensors, 0.0)  # the same, on the host

    def at(self, step: int) -> dict[str, Tensor]:
        for name, schedule in self.plan.schedules.items():
            self._put(name, schedule.at(step, self.horizon))
        self._put("warming", float(step < self.plan.warmup))
        return self.tensors

    def _put(self, name: str, value: float) -> None:
        if self.numbers[name] != value:
            self.numbers[name] = value
            self.tensors[name].fill_(value)
