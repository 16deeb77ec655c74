"""Atari protocols: the rules under which a score counts, as named and hashed sets of flags.

A result whose flags differ from its protocol has a star in its label and its own hash, so that it
is not mistaken for a comparable one. Data only: does not load an emulator.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Field, StrictBool

from ludus.contract import Frozen
from ludus.envs.atari.names import game_of

Whole: TypeAlias = Annotated[int, Field(strict=True)]
ProtocolName: TypeAlias = Literal["saber", "machado", "dqn-2015", "dopamine", "r2d2"]
DEFAULT_PROTOCOL: ProtocolName = "saber"

FRAMES_PER_SECOND = 60
MINUTE = 60 * FRAMES_PER_SECOND  # in frames
HALF_HOUR, HUNDRED_HOURS = 30 * MINUTE, 100 * 60 * MINUTE
# ale-py keeps the frames of an episode plus one in 32 bits.
LONGEST = 2**30
# The emulator's screen; no side of an observation is larger.
SCREEN = (210, 160)


class AtariConfig(Frozen):
    """The flags of a game. As a setting, those left out come from env.protocol."""

    skip: Whole = Field(default=4, ge=1)  # frames an action is held
    max_pool: StrictBool = True  # the brighter of the last two frames, pixel by pixel
    size: Whole = Field(default=84, ge=8, le=min(SCREEN))  # pixels a side, after resizing
    gray: StrictBool = True
    sticky: float = Field(default=0.25, ge=0, lt=1)  # repeat the previous action, per frame
    full_actions: StrictBool = True  # all 18, or the least that the game needs
    noops: Whole = Field(default=0, ge=0, le=10_000)  # at most so many frames before the first row
    fire: StrictBool = False  # press FIRE after a reset, where the game has it
    life_loss: Literal["ignore", "soft", "episodic"] = "ignore"
    max_frames: Whole = Field(default=HUNDRED_HOURS, ge=1, le=LONGEST)  # then truncate
    obs: Literal["pixels", "ram"] = "pixels"
    resize: Literal["area", "linear", "nearest"] = "area"
    obscure: float = Field(default=0.0, ge=0, le=1)  # probability that an observation is blank


@dataclass(frozen=True)
class Protocol:
    flags: AtariConfig
    source: str
    stack: int = 4
    stuck_frames: int | None = None  # without reward, then truncate


PROTOCOLS: dict[str, Protocol] = {
    "saber": Protocol(
        AtariConfig(),
        "Toromanoff et al. 2019: all actions, sticky, no life signal, 100 hours, 5 minutes stuck",
        stuck_frames=5 * MINUTE,
    ),
    "machado": Protocol(
        AtariConfig(skip=5, max_frames=5 * MINUTE),
        "Machado et al. 2018: all actions, sticky, no life signal, 5 frames a step, 5 minutes",
    ),
    "dqn-2015": Protocol(
        AtariConfig(
            sticky=0.0, full_actions=False, noops=30, life_loss="soft", max_frames=5 * MINUTE
        ),
        "Mnih et al. 2015: minimal actions, up to 30 no-ops, life loss is terminal, 5 minutes",
    ),
    "dopamine": Protocol(
        AtariConfig(full_actions=False, max_frames=HALF_HOUR),
        "Castro et al. 2018: minimal actions, sticky, no life signal, 30 minutes",
    ),
    "r2d2": Protocol(
        AtariConfig(sticky=0.0, noops=30, max_frames=HALF_HOUR),
        "Kapturowski et al. 2019: all actions, up to 30 no-ops, no life signal, 30 minutes",
    ),
}


def supplied(env: Mapping[str, Any]) -> dict[str, Any]:
    """The protocol's settings for an `env` table of chosen settings."""
    if game_of(env.get("id")) is None:
        return {}
    name = env.get("protocol") or DEFAULT_PROTOCOL
    protocol = PROTOCOLS.get(name) if isinstance(name, str) else None
    own = _table(env.get("atari"))
    if protocol is None or own is None:  # validation of that setting reports it
        return {}
    flags = {**protocol.flags.model_dump(), **own}
    never_stuck = "max_stuck" in env and env["max_stuck"] is None
    if name == "saber" and never_stuck and "max_frames" not in own:
        flags["max_frames"] = HALF_HOUR  # a stuck game must end
    return {
        "protocol": name,
        "stack": protocol.stack if flags["obs"] == "pixels" else 1,
        "max_stuck": _steps(protocol.stuck_frames, flags["skip"]),
        "atari": flags,
    }


def _table(given: Any) -> dict[str, Any] | None:
    """The chosen flags; None if it is not a table."""
    if isinstance(given, AtariConfig):
        return given.model_dump()
    if given is None:
        return {}
    return dict(given) if isinstance(given, Mapping) else None


def _steps(frames: int | None, skip: Any) -> int | None:
    """Agent steps of a number of frames; an invalid skip is refused elsewhere."""
    per_step = skip if isinstance(skip, int) and skip > 0 else 1
    return None if frames is None else max(1, frames // per_step)


def label(
    name: str, flags: AtariConfig, max_stuck: int | None, extra: Mapping[str, Any]
) -> dict[str, str]:
    """`protocol` (with a star where a rule differs) and `protocol_hash`, of the rules a game runs
    with. `extra`: rules that no protocol has (a mode, a wrapper). The frame stack is left out: it
    is memory of the agent, not a rule of the game."""
    rules = {**flags.model_dump(), "max_stuck": max_stuck, **extra}
    text = json.dumps(rules, sort_keys=True, default=str)
    digest = hashlib.sha256(text.encode()).hexdigest()[:12]
    star = "*" if differences(name, flags, max_stuck, extra) else ""
    return {"protocol": f"{name}{star}", "protocol_hash": digest}


def differences(
    name: str, flags: AtariConfig, max_stuck: int | None, extra: Mapping[str, Any]
) -> list[str]:
    """Each rule that differs from the protocol, as the star of a label marks."""
    protocol = PROTOCOLS[name]
    stuck = _steps(protocol.stuck_frames, protocol.flags.skip)
    meant = {**protocol.flags.model_dump(), "max_stuck": stuck}
    given = {**flags.model_dump(), "max_stuck": max_stuck}
    found = []
    for rule in (rule for rule in meant if given[rule] != meant[rule]):
        now, usual = _shown(rule, given[rule]), _shown(rule, meant[rule])
        found.append(f"{now} instead of {usual.removeprefix(f'{rule} ').removesuffix(' actions')}")
    return [*found, *(f"{rule} {value}" for rule, value in extra.items())]


def _shown(rule: str, value: Any) -> str:
    if rule == "full_actions":
        return "18 actions" if value else "minimal actions"
    return f"{rule} {value:g}" if isinstance(value, float) else f"{rule} {str(value).lower()}"
