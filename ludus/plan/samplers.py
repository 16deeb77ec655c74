"""Samplers as settings, and the base of all settings. The stores that draw are in replay/."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field

from ludus.schedules import Share, ramp


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
