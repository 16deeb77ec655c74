"""Defaults that depend on other settings: the flags of an Atari protocol, episodes of evaluations.

They lie between the defaults of the models and the choices of presets and users.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ludus.envs.atari.protocols import AtariConfig, supplied
from ludus.errors import LudusError
from ludus.settings.errors import not_a_table
from ludus.settings.layers import DEFAULT, Layered, leaves
from ludus.settings.sections import EVAL_EPISODES

EPISODES = ("eval", "episodes")
_OFF = {"every": "null", "live": "off"}


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


def lay_episodes(layers: Layered) -> None:
    """Put episodes in where `eval.every` or `eval.live` asks for evaluations. `eval.episodes=0` in
    the same place, or in a later one, contradicts that and is refused."""
    table = layers.tree.get("eval")
    if not isinstance(table, dict) or table.get("episodes", 0) not in (0, "0"):
        return
    asked = [name for name in ("every", "live") if table.get(name)]
    if not asked:
        return
    by, ranks = ("eval", asked[0]), [layers.rank(("eval", name)) for name in asked]
    if layers.rank(EPISODES) >= max(ranks):
        raise LudusError(
            "E104",
            f"eval.episodes=0 with eval.{asked[0]}={table[asked[0]]}",
            where=layers.source(EPISODES),
            why="an evaluation without episodes has no score",
            fix=f"eval.episodes={EVAL_EPISODES}, or none at all: eval.{asked[0]}={_OFF[asked[0]]}",
        )
    layers.put(EPISODES, EVAL_EPISODES, layers.rank(by), ".".join(by))
