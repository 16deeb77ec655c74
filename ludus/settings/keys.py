"""Read typed settings, and find those that their keys mean: full names, short names, aliases."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import BaseModel

from ludus.envs.atari.names import game_of, old_game
from ludus.envs.atari.protocols import AtariConfig
from ludus.errors import LudusError
from ludus.secret_masking import masked_setting
from ludus.settings.errors import unknown_key
from ludus.settings.layers import Layered, fitting
from ludus.settings.yaml import Key, parse_value
from ludus.units import parse_count

SECTIONS = ("algo", "env", "run", "actor", "ray", "log", "eval")
# Sections are searched for a short name in this order; `run` always wins.
_ORDER = ("run", "algo", "env", "actor", "log", "eval", "ray")
_ALIASES = {"buffer": "capacity", "learning_rate": "lr", "envs": "num", "num_envs": "num"}


def check_one_length(typed: Iterable[tuple[str, Any]], source: str) -> None:
    """Raise E104 if one source sets both frames and steps."""
    given = {key.removeprefix("run."): value for key, value in typed}
    if "frames" in given and "steps" in given:
        frames, steps = (f"{name}={given[name]}" for name in ("frames", "steps"))
        raise LudusError(
            "E104",
            f"both {frames} and {steps} were given",
            where=source,
            why="both are the length of the run, in emulator frames or in agent steps",
            fix="keep one of them",
        )


def split_override(text: str) -> tuple[str, Any]:
    """`algo.lr=1e-3` -> ("algo.lr", 0.001)."""
    key, sign, value = text.partition("=")
    key = key.strip().removeprefix("--")
    if not sign or not key:
        raise LudusError(
            "E102",
            f"{masked_setting(text)!r} is not a setting",
            where="command line",
            why="settings are typed as key=value",
            fix="for example  steps=200k",
        )
    if re.fullmatch(r"[\d.][\d.eE+-]*-", value):
        raise LudusError(
            "E102",
            f"{masked_setting(text)} is cut short",
            where="command line",
            why="the shell read  >  as a redirection to a file",
            fix=f"quote the schedule:  '{masked_setting(text)}>0'",
        )
    return key, read_value(key, value, "command line")


def read_value(key: str, text: str, where: str) -> Any:
    """Parse a typed value. Keep the sign of `steps=+100k`, which YAML would drop."""
    if key.rpartition(".")[2] == "steps" and text.strip().startswith("+"):
        return text.strip()
    return parse_value(text, key, where)


class KeyFinder:
    """Finds settings by short names, which depend on the model of the algorithm."""

    def __init__(self, models: Mapping[str, type[BaseModel]], layers: Layered) -> None:
        self.models, self.layers = models, layers

    def find(self, text: str, value: Any, source: str, env_id: str) -> tuple[Key, Any]:
        """Return the full key and the value, which changes only for frames=."""
        parts = tuple(text.split("."))
        if len(parts) > 1:
            if parts[0] not in SECTIONS:
                inner = self._direct(parts[0])
                if len(inner) != 1:
                    raise unknown_key((parts[0],), list(SECTIONS), source)
                parts = (inner[0], *parts)
            return parts, value
        if text == "frames":
            return ("run", "steps"), self._steps(value, source, env_id)
        if text in ("algo", "env") and not isinstance(value, Mapping):
            return (text, "name" if text == "algo" else "id"), value
        if text in SECTIONS:
            return (text,), value
        return self._short(text, source, env_id), value

    def _direct(self, name: str) -> list[str]:
        """Return the sections that have the key; `algo` hides `eval`, as for `epsilon`."""
        found = [s for s in _ORDER if name in self.models[s].model_fields]
        return [s for s in found if s != "eval" or "algo" not in found]

    def _short(self, name: str, source: str, env_id: str) -> Key:
        for candidate in dict.fromkeys((name, name.replace("-", "_"), _ALIASES.get(name, name))):
            sections = self._direct(candidate)
            if sections and (len(sections) == 1 or sections[0] == "run"):
                return (sections[0], candidate)
            if sections:
                raise self._ambiguous(name, [f"{s}.{candidate}" for s in sections], source)
            section, _, rest = candidate.partition("_")  # log_every is log.every
            if section in SECTIONS and rest in self.models[section].model_fields:
                return (section, rest)
        deep = self._deep(name)
        if len(deep) == 1:
            return deep[0]
        if deep:
            raise self._ambiguous(name, [".".join(key) for key in deep], source)
        if old_game(env_id) is not None and name in AtariConfig.model_fields:
            return ("env", "atari", name)  # validation refuses it and names the right game
        known = [f for s in _ORDER for f in self.models[s].model_fields]
        known += AtariConfig.model_fields if game_of(env_id) is not None else ()
        raise unknown_key((name,), known, source)

    def _deep(self, name: str) -> list[Key]:
        """Find nested keys, such as `alpha` for algo.replay.alpha, in the kinds chosen so far."""
        found: list[Key] = []

        def search(model: type[BaseModel], tree: Mapping[str, Any], at: Key) -> None:
            for key, info in model.model_fields.items():
                below = tree.get(key)
                if not isinstance(below, Mapping):  # an optional table that is switched off
                    continue
                for choice in fitting(info.annotation, below):
                    if name in choice.model_fields:
                        found.append((*at, key, name))
                    search(choice, below, (*at, key))

        for section in _ORDER:
            search(self.models[section], self.layers.tree[section], (section,))
        return found

    def _ambiguous(self, name: str, keys: list[str], source: str) -> LudusError:
        return LudusError(
            "E108",
            f"{name} may mean {' or '.join(keys)}",
            where=source,
            why="a short name must be unique",
            fix=f"{keys[0]}=...",
        )

    def _steps(self, value: Any, source: str, env_id: str) -> int:
        """Convert emulator frames, which papers count on Atari, to agent steps."""
        flags = self.layers.tree["env"].get("atari")
        skip = flags.get("skip") if isinstance(flags, Mapping) else None
        if not isinstance(skip, int) or skip < 1:
            raise LudusError(
                "E104",
                f"frames= is for Atari games; {env_id} has one frame a step",
                where=source,
                fix=f"steps={value}",
            )
        try:
            frames = parse_count(value)
        except (ValueError, TypeError) as error:
            raise LudusError(
                "E102", f"frames = {value!r}: {error}", where=source, fix="frames=200M"
            ) from None
        return frames // skip
