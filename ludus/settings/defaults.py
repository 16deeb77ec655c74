"""Defaults that depend on other settings: flags of an Atari protocol, episodes of evaluations.

They override the defaults of the models; presets and users override them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ludus.envs.atari.protocols import AtariConfig, supplied
from ludus.errors import LudusError
from ludus.settings.errors import not_a_table
from ludus.settings.layers import Layered, Rank, leaves

EPISODES = ("eval", "episodes")
EVAL_EPISODES = 10  # where `every` is set and `episodes` is not
_OFF = {"every": "null", "live": "off"}


def lay_protocol(layers: Layered) -> None:
    """Add the protocol's flags below the choices of presets and users, with its name as the source.

    It may be called again: earlier flags count as defaults.
    """
    env = layers.tree.get("env")
    if not isinstance(env, Mapping):
        return
    flags = env.get("atari")
    if flags is not None and not isinstance(flags, Mapping):
        # Check now: short names and frames= use this table.
        raise not_a_table(("env", "atari"), flags, AtariConfig, layers)
    chosen = _chosen(layers, env, ("env",))
    open_ends = supplied({**chosen, "id": env.get("id")})
    if not open_ends:
        return
    source = f"protocol {open_ends['protocol']}"
    for key, value in leaves({"env": open_ends}):
        if layers.rank(key) <= Rank.DEFAULT:
            layers.put(key, value, Rank.DEFAULT, source)


def _chosen(layers: Layered, table: Mapping[str, Any], at: tuple[str, ...]) -> dict[str, Any]:
    """Return the part of a table that is not default."""
    return {
        name: _chosen(layers, value, (*at, name)) if isinstance(value, Mapping) and value else value
        for name, value in table.items()
        if layers.rank((*at, name)) > Rank.DEFAULT
    }


def lay_episodes(layers: Layered) -> None:
    """Set `eval.episodes` if `eval.every` or `eval.live` requests evaluations. Raise E104 if the
    same source, or a stronger one, sets `eval.episodes=0`."""
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
