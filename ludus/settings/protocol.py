"""What an Atari protocol puts into the settings: between the defaults and anybody's own choice."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ludus.envs.atari.protocols import AtariConfig, supplied
from ludus.settings.errors import not_a_table
from ludus.settings.layers import DEFAULT, Layered, leaves


def lay_protocol(layers: Layered) -> None:
    """Lay the protocol's flags under what presets and users chose, with its name as their source.

    May be called again: what it laid before counts as nobody's choice.
    """
    env = layers.tree.get("env")
    if not isinstance(env, Mapping):
        return
    flags = env.get("atari")
    if flags is not None and not isinstance(flags, Mapping):
        # At once: short names and frames= are looked up in that table.
        raise not_a_table(("env", "atari"), flags, AtariConfig, layers)
    chosen = _chosen(layers, env, ("env",))
    open_ends = supplied({**chosen, "id": env.get("id")})
    if not open_ends:
        return
    source = f"protocol {open_ends['protocol']}"
    for key, value in leaves({"env": open_ends}):
        if layers.rank(key) <= DEFAULT:
            layers.put(key, value, DEFAULT, source)


def _chosen(layers: Layered, table: Mapping[str, Any], at: tuple[str, ...]) -> dict[str, Any]:
    """The part of a table that somebody set."""
    found: dict[str, Any] = {}
    for name, value in table.items():
        key = (*at, name)
        if layers.rank(key) <= DEFAULT:
            continue
        found[name] = _chosen(layers, value, key) if isinstance(value, Mapping) and value else value
    return found
