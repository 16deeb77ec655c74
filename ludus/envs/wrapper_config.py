"""Wrappers in a configuration. Data only; ludus.envs.wrappers applies them."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import Field, model_validator

from ludus.contract import Frozen
from ludus.errors import LudusError
from ludus.secret_masking import masked

WHERE = "env.wrappers"
EXAMPLE = "Repeat"


class WrapperConfig(Frozen):
    """One gymnasium wrapper: ours, one of gymnasium.wrappers by its class name, or module:Class."""

    name: str = Field(min_length=1)
    options: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _only_its_two_keys(cls, given: Any) -> Any:
        if not isinstance(given, Mapping):
            return given
        name, options = str(given.get("name", EXAMPLE)), given.get("options", {})
        if not isinstance(options, Mapping):
            raise LudusError(
                "E102",
                f"options of wrapper {name} is a table, not {masked(options)!r}",
                where=WHERE,
                why="a wrapper's arguments are given by their names",
                fix=written(name, {"NAME": options}),
            )
        unknown = [key for key in given if key not in cls.model_fields]
        if unknown:
            raise _unknown_key(str(unknown[0]), given, name, options)
        return given


def _unknown_key(
    key: str, given: Mapping[str, Any], name: str, options: Mapping[str, Any]
) -> LudusError:
    value, meant = given[key], dict(options)
    close = difflib.get_close_matches(key, ["name", "options"], n=1, cutoff=0.7)
    if close == ["name"] and isinstance(value, str):
        name, hint = value, " (did you mean  name ?)"
    elif isinstance(value, Mapping):
        meant, hint = {**options, **value}, " (did you mean  options ?)"
    else:
        meant, hint = {**options, key: value}, f" of wrapper {name}"
    return LudusError(
        "E101",
        f"unknown key  {key}{hint}",
        where=WHERE,
        why="a wrapper has the keys name and options; its own arguments stand in options",
        fix=written(name, meant),
    )


def listed(given: Any) -> Any:
    """Return a list of tables; refuse anything else and show the right form."""
    table = given if isinstance(given, Mapping) else {"name": given}
    if isinstance(given, str | Mapping) or not isinstance(given, Sequence):
        what = f"env.wrappers is a list of tables, not {masked(given)!r}"
    else:
        wrong = [w for w in given if not isinstance(w, Mapping | WrapperConfig)]
        if not wrong:
            return given
        what, table = f"{masked(wrong[0])!r} is no table", {"name": wrong[0]}
    name = table.get("name")
    raise LudusError(
        "E102",
        f"{what}; each wrapper is one, with its name",
        where=WHERE,
        why="there may be several, applied in their order, each with options of its own",
        fix=written(name if isinstance(name, str) else EXAMPLE, table.get("options") or {}),
    )


def written(name: str, options: Any = None) -> str:
    """One wrapper as a setting to type, with secrets masked."""
    table = {"name": name, **({"options": options} if options else {})}
    return f"{WHERE}=[{_flow(masked(table))}]"


def _flow(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{k}: {_flow(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_flow, value)) + "]"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return f"'{value}'" if isinstance(value, str) and ":" in value else str(value)
