"""The settings of an environment. Data only: nothing here makes or steps one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self, TypeAlias

from pydantic import BeforeValidator, Field, StrictBool, model_validator

from ludus.contract import Frozen
from ludus.envs.atari import names
from ludus.envs.atari.protocols import AtariConfig, ProtocolName, differences, label, supplied
from ludus.envs.wrapper_config import WrapperConfig, listed
from ludus.errors import LudusError, nearest

PICTURE = ("size", "gray", "resize", "max_pool")  # flags that only change the picture
AUTO_NUM = 8  # fixed, so that a run does not depend on the machine it starts on

Whole: TypeAlias = Annotated[int, Field(strict=True)]
RewardClip: TypeAlias = Literal["none", "sign", "clamp", "soft_asymmetric"]
# bounds: low becomes 0, high 1. bytes: uint8 / 255, others unscaled. none: all unscaled.
IntegerScale: TypeAlias = Literal["bounds", "bytes", "none"]


def _word_for_none(value: Any) -> Any:
    return "none" if value is None else value


def _changed(table: Frozen, name: str) -> bool:
    """Whether a value differs from its default."""
    return bool(getattr(table, name) != type(table).model_fields[name].default)


def _unused(key: str, value: Any, why: str, fix: str) -> LudusError:
    """The error for a setting that nothing reads."""
    shown = f"{value:g}" if isinstance(value, float) else value
    what = f"env.{key}={shown} has no effect here"
    return LudusError("E104", what, where=f"env.{key}", why=why, fix=fix)


class NormalizeConfig(Frozen):
    """Running normalisation. The statistics live with the networks, hence in checkpoints."""

    obs: StrictBool = False
    reward: StrictBool = False
    clip: float = Field(default=10.0, gt=0)
    gamma: float = Field(default=0.99, ge=0, le=1)  # of the return whose deviation scales rewards

    @model_validator(mode="after")
    def _nothing_without_effect(self) -> Self:
        if not (self.obs or self.reward) and _changed(self, "clip"):
            fix = "env.normalize.obs=true   or   env.normalize.reward=true"
            raise _unused("normalize.clip", self.clip, "nothing is normalised", fix)
        if not self.reward and _changed(self, "gamma"):
            why, fix = "rewards are not normalised", "env.normalize.reward=true"
            raise _unused("normalize.gamma", self.gamma, why, fix)
        return self


class EnvConfig(Frozen):
    """Which environment, how many copies of it, and what the learner sees."""

    # a gymnasium id, the name of an Atari game, module:Class, module:function or module:Id-v0
    id: str = Field(min_length=1)
    num: Annotated[Whole, Field(ge=1)] | Literal["auto"] = 1  # environments
    args: dict[str, Any] = Field(default_factory=dict)  # for the environment's constructor
    # the first is the innermost
    wrappers: Annotated[tuple[WrapperConfig, ...], BeforeValidator(listed)] = ()
    protocol: ProtocolName | None = None  # of Atari games; None: saber
    atari: AtariConfig | None = None  # flags of Atari games; the protocol sets those left out
    stack: Whole = Field(default=1, ge=1)  # frames the network sees
    max_episode_steps: Annotated[Whole, Field(ge=1)] | None = None  # None: as registered
    max_stuck: Annotated[Whole, Field(ge=1)] | None = None  # steps without reward, then truncate
    reward_scale: float | Literal["running_max"] = 1.0  # before the clip
    reward_clip: Annotated[RewardClip, BeforeValidator(_word_for_none)] = "none"
    reward_clamp: float = Field(default=1.0, gt=0)  # the bound of reward_clip=clamp
    image_layout: Literal["auto", "chw", "hwc"] = "auto"
    # scaling of integer observations; older runs use bytes
    integer_scale: Annotated[IntegerScale, BeforeValidator(_word_for_none)] = "bounds"
    normalize: NormalizeConfig = NormalizeConfig()
    workers: Whole = Field(default=0, ge=0, le=4096)  # processes; 0 steps everything in this one
    # groups of environments that can be in flight at once; auto: 2 for native Atari, else 1
    groups: Annotated[Whole, Field(ge=1)] | Literal["auto"] = "auto"
    # emulator threads of a group, for native Atari; auto: the cores this process may use
    threads: Annotated[Whole, Field(ge=1, le=4096)] | Literal["auto"] = "auto"
    # limit of one step or reset in seconds: then it is reported as stalled, or its worker fails
    timeout: float = Field(default=60.0, gt=0)
    # if an environment raises: stop the run, or rebuild it and cut its episode; auto: stop, but
    # replace the actor if it is a process
    on_error: Literal["auto", "stop", "restart"] = "auto"
    # environments shown in a window: none, the first, or all side by side
    render: Annotated[Literal["none", "one", "all"], BeforeValidator(_word_for_none)] = "none"
    native: StrictBool = True  # use an equivalent vectorised implementation if there is one

    @property
    def num_envs(self) -> int:
        return AUTO_NUM if self.num == "auto" else self.num

    @property
    def group_count(self) -> int:
        if self.groups == "auto":
            return 2 if self.native_atari and self.num_envs >= 2 else 1
        return self.groups

    @property
    def native_atari(self) -> bool:
        """Whether the emulators run in ale-py's vector environment, which supports less."""
        flags = self.atari
        return self.plain and flags is not None and (flags.obs, flags.resize) == ("pixels", "area")

    @property
    def plain(self) -> bool:
        """Whether a vectorised implementation may replace the environments."""
        return self.native and self.unseen and not (self.args or self.wrappers or self.workers)

    @property
    def rebuilds(self) -> bool:
        """Whether an environment that fails is rebuilt."""
        return self.on_error == "restart"

    @property
    def unseen(self) -> bool:
        """Whether nothing is rendered. Vectorised implementations cannot render."""
        return self.render == "none"

    def shows(self, env: int) -> bool:
        return self.render == "all" or (self.render == "one" and env == 0)

    @property
    def ends_at_life_loss(self) -> bool:
        return self.atari is not None and self.atari.life_loss == "episodic"

    @property
    def score_facts(self) -> dict[str, str]:
        """The facts reported with every score: protocol and protocol_hash of an Atari game."""
        if self.protocol is None or self.atari is None:
            return {}
        return label(self.protocol, self.atari, self.max_stuck, self._extra_rules)

    @property
    def differences(self) -> list[str]:
        """The reasons for a star after the protocol."""
        if self.protocol is None or self.atari is None:
            return []
        return differences(self.protocol, self.atari, self.max_stuck, self._extra_rules)

    @property
    def _extra_rules(self) -> dict[str, Any]:
        """Rules outside the flags. Without any, a game keeps the hash of its protocol."""
        extra: dict[str, Any] = {
            "max_episode_steps": self.max_episode_steps,
            "args": {k: v for k, v in self.args.items() if k != "render_mode"},
            "wrappers": [wrapper.model_dump() for wrapper in self.wrappers],
        }
        return {name: value for name, value in extra.items() if value}

    @model_validator(mode="before")
    @classmethod
    def _protocol_decides(cls, given: Any) -> Any:
        """Use one spelling for each game, and fill in settings from its protocol."""
        if not isinstance(given, Mapping):
            return given
        if names.game_of(given.get("id")) is None:
            # Resolved here, so that older runs, which recorded 1, can be resumed.
            return {**given, "groups": 1} if given.get("groups", "auto") == "auto" else given
        open_ends = supplied(given)
        atari = {"atari": open_ends["atari"]} if open_ends else {}
        known = {k: v for k, v in given.items() if k != "protocol" or v is not None}
        return {**open_ends, **known, **atari, "id": names.canonical(given["id"])}

    @model_validator(mode="after")
    def _protocols_are_for_atari(self) -> Self:
        if names.game_of(self.id) is not None or (self.protocol is None and self.atari is None):
            return self
        name = "env.protocol" if self.protocol is not None else "env.atari"
        game = names.old_game(self.id)
        if game is not None:
            raise LudusError(
                "E104",
                f"{name} is not for {self.id}",
                where=name,
                why="that old id has a frame skip and a stickiness of its own",
                fix=f"env.id={names.ale_id(game)}",
            )
        shared, close = names.needs_others(self.id), ""
        if names.looks_like_atari(self.id) and not shared:
            close = nearest(self.id, list(map(names.ale_id, names.GAMES)))
        raise LudusError(
            "E104",
            f"{name} is for Atari games only; {self.id} is none{close}",
            where=name,
            why=names.SHARED if shared else "",
            fix="leave it out, or name a game:  ludus list envs",
        )

    @model_validator(mode="after")
    def _groups_have_envs(self) -> Self:
        if self.groups != "auto" and self.groups > self.num_envs:
            raise LudusError(
                "E104",
                f"env.groups={self.groups} is more than env.num={self.num}",
                where="env.groups",
                why="each group needs at least one environment",
                fix=f"env.groups={self.num_envs}   or   env.num={self.groups}",
            )
        return self

    @model_validator(mode="after")
    def _one_way_to_render(self) -> Self:
        if not self.unseen and "render_mode" in self.args:
            raise LudusError(
                "E104",
                f"env.render={self.render} and env.args.render_mode exclude each other",
                where="env.render",
                why="what the window shows is made with render_mode=rgb_array",
                fix="leave env.args.render_mode out",
            )
        return self

    @model_validator(mode="after")
    def _nothing_without_effect(self) -> Self:
        if self.reward_clip != "clamp" and _changed(self, "reward_clamp"):
            why = f"it is the bound of another clip than env.reward_clip={self.reward_clip}"
            raise _unused("reward_clamp", self.reward_clamp, why, "env.reward_clip=clamp")
        if not self.native_atari and _changed(self, "threads"):
            why = (
                "only Atari games stepped natively have threads (pixels, resize=area, no env.args, "
                "env.wrappers, env.workers or env.render)"
            )
            raise _unused("threads", self.threads, why, "leave it out, or use  env.workers")
        if self.native_atari and self.on_error == "restart":
            why = "emulators of the native vector environment cannot be made again one by one"
            raise _unused("on_error", self.on_error, why, "env.native=false   or leave it out")
        if self.atari is not None and self.atari.obs == "ram":
            fix = "leave it out, or  env.atari.obs=pixels"
            for name in (name for name in PICTURE if _changed(self.atari, name)):
                value = getattr(self.atari, name)
                raise _unused(f"atari.{name}", value, "env.atari.obs=ram has no picture", fix)
        return self


__all__ = ["AUTO_NUM", "AtariConfig", "EnvConfig", "NormalizeConfig", "WrapperConfig"]
