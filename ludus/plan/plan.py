"""The Plan of an algorithm, which refuses data that no store can give."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

from ludus.errors import LudusError
from ludus.plan.feeds import check_feeds
from ludus.plan.samplers import Fifo, Prioritized, Uniform
from ludus.plan.views import Episode, NStep, Sequence, Unroll, View
from ludus.schedules import Schedule


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

    @cached_property
    def actor_priorities(self) -> bool:
        """Whether collectors compute the first priority of every row (Horgan et al. 2018)."""
        return any(isinstance(s, Prioritized) and s.initial == "actor" for s in self.samplers)

    @cached_property
    def samplers(self) -> tuple[Uniform | Prioritized | Fifo, ...]:
        """The samplers of all feeds."""
        return tuple(feed.sampler for feed in self.feeds)

    @cached_property
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
