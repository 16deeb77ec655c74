"""The settings of an environment. Data only: nothing here makes or steps one."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self, TypeAlias

from pydantic import BeforeValidator, Field, StrictBool, model_validator

from ludus.contract import Frozen

AUTO_NUM = 8  # fixed, so that a run does not depend on the machine it starts on

Whole: TypeAlias = Annotated[int, Field(strict=True)]
RewardClip: TypeAlias = Literal["none", "sign", "clamp", "soft_asymmetric"]


def _word_for_none(value: Any) -> Any:
    return "none" if value is None else value


def _changed(table: Frozen, name: str) -> bool:
    """A value of one's own; the default, even when written out, is nobody's wish."""
    return bool(getattr(table, name) != type(table).model_fields[name].default)


class WrapperConfig(Frozen):
    """One gymnasium wrapper: ours, one of gymnasium.wrappers by its class name, or module:Class."""

    name: str = Field(min_length=1)
    options: dict[str, Any] = Field(default_factory=dict)


class NormalizeConfig(Frozen):
    """Running normalisation. The statistics live with the networks, hence in checkpoints."""

    obs: StrictBool = False
    reward: StrictBool = False
    clip: float = Field(default=10.0, gt=0)
    gamma: float = Field(default=0.99, ge=0, le=1)  # of the return whose deviation scales rewards

    @model_validator(mode="after")
    def _nothing_without_effect(self) -> Self:
        if not (self.obs or self.reward) and _changed(self, "clip"):
            raise ValueError(
                f"normalize.clip={self.clip:g} has no effect while nothing is normalised: set  "
                "env.normalize.obs=true  or  env.normalize.reward=true"
            )
        if not self.reward and _changed(self, "gamma"):
            raise ValueError(
                f"normalize.gamma={self.gamma:g} has no effect while rewards are not normalised: "
                "set  env.normalize.reward=true"
            )
        return self


class EnvConfig(Frozen):
    """Which environment, how many copies of it, and what the learner gets to see."""

    id: str = Field(min_length=1)  # a gymnasium id, module:Class, module:function or module:Id-v0
    num: Annotated[Whole, Field(ge=1)] | Literal["auto"] = 1  # slots
    args: dict[str, Any] = Field(default_factory=dict)  # for the environment's constructor
    wrappers: tuple[WrapperConfig, ...] = ()  # the first is the innermost
    stack: Whole = Field(default=1, ge=1)  # frames the network sees
    max_episode_steps: Annotated[Whole, Field(ge=1)] | None = None  # None: as registered
    max_stuck: Annotated[Whole, Field(ge=1)] | None = None  # steps without reward, then truncate
    reward_scale: float | Literal["running_max"] = 1.0  # before the clip
    reward_clip: Annotated[RewardClip, BeforeValidator(_word_for_none)] = "none"
    reward_clamp: float = Field(default=1.0, gt=0)  # the bound of reward_clip=clamp
    image_layout: Literal["auto", "chw", "hwc"] = "auto"
    normalize: NormalizeConfig = NormalizeConfig()
    workers: Whole = Field(default=0, ge=0)  # processes; 0 steps everything in this one
    groups: Whole = Field(default=1, ge=1)  # sets of slots that can be in flight at once
    timeout: float = Field(default=60.0, gt=0)  # seconds a worker may take over one step or reset
    native: StrictBool = True  # use a vectorised implementation where an equal one exists

    @property
    def slots(self) -> int:
        return AUTO_NUM if self.num == "auto" else self.num

    @model_validator(mode="after")
    def _groups_have_slots(self) -> Self:
        if self.groups > self.slots:
            raise ValueError(f"groups={self.groups} needs at least as many slots, num={self.num}")
        return self

    @model_validator(mode="after")
    def _nothing_without_effect(self) -> Self:
        if self.reward_clip != "clamp" and _changed(self, "reward_clamp"):
            raise ValueError(
                f"reward_clamp={self.reward_clamp:g} has no effect while "
                f"reward_clip={self.reward_clip}: set  env.reward_clip=clamp"
            )
        if not self.workers and _changed(self, "timeout"):
            raise ValueError(
                f"timeout={self.timeout:g} has no effect without worker processes, which alone "
                "can be waited for: set  env.workers"
            )
        return self


__all__ = ["AUTO_NUM", "EnvConfig", "NormalizeConfig", "WrapperConfig"]
