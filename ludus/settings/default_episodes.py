"""Evaluations that were asked for without saying how many episodes they have."""

from __future__ import annotations

from ludus.errors import LudusError
from ludus.settings.layers import Layered
from ludus.settings.sections import EVAL_EPISODES

EPISODES = ("eval", "episodes")
_OFF = {"every": "null", "live": "off"}


def lay_episodes(layers: Layered) -> None:
    """`eval.every` and `eval.live` want episodes: some are put in, under their name. Who says none
    in the same place, or in a later one, contradicts that and is refused."""
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
