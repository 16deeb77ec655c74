"""Which runs are seeds of one experiment: those that share every setting that decides anything.

Comparisons and reports group by it. Knows settings, no scores.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ludus.envs import DRIVING

# What may differ between seeds of one experiment: names, places, what is written or watched, and
# how the machine is used. A new setting decides something until it is named here.
BESIDE = frozenset(
    (
        "algo.name", "env.id",  # told apart before
        *(f"env.{name}" for name in DRIVING),
        "run.seed", "run.imports", "run.device", "run.threads", "run.capture", "run.compile",
        "run.replay_on", "run.checkpoint_every", "run.checkpoint_time", "run.keep",
        "run.exact", "run.save_replay", "run.time", "run.nan_limit",
        "actor.device", "actor.hang_seconds", "actor.restarts", "actor.restart_minutes",
        "eval.every", "eval.episodes", "eval.live", "eval.device", "eval.best_window",
        "log",
    )
)  # fmt: skip
_SHOWN = 3  # settings in a label
_LONG = 32  # letters of a value


def flat(tree: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted keys of a tree of tables; nothing of what is no table."""
    for name, value in tree.items() if isinstance(tree, dict) else ():
        if isinstance(value, dict) and value:
            yield from flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def deciding(tree: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a run, by dotted key, that tell one experiment from another."""
    parts = {name: part for name, part in tree.items() if name not in BESIDE}
    return {key: value for key, value in flat(parts) if key not in BESIDE}


def variants(algo: str, tables: Sequence[Mapping[str, Any]]) -> list[tuple[str, list[int]]]:
    """The places of equal tables, and a label of their own that says what differs."""
    keys = dict.fromkeys(key for table in tables for key in table)  # in the order of the files
    odd = [key for key in keys if len({_value(table, key) for table in tables} - {None}) > 1]
    places: dict[tuple[str | None, ...], list[int]] = {}
    for place, table in enumerate(tables):
        places.setdefault(tuple(_value(table, key) for key in odd), []).append(place)
    labels = [_label(algo, odd, tables[found[0]]) for found in places.values()]
    return [
        (label if labels.count(label) == 1 else f"{label} #{number}", found)
        for number, (label, found) in enumerate(zip(labels, places.values(), strict=True), 1)
    ]


def _value(table: Mapping[str, Any], key: str) -> str | None:
    """None where a file knows nothing of the setting: there was none yet when its run began, which
    sets nothing apart. Where `env.normalize` is null, `env.normalize.obs` is known to be off."""
    if key in table:
        return repr(table[key])
    parts = key.split(".")
    above = any(".".join(parts[:length]) in table for length in range(1, len(parts)))
    below = any(other.startswith(f"{key}.") for other in table)
    return "another kind" if above or below else None


def _label(algo: str, odd: Sequence[str], table: Mapping[str, Any]) -> str:
    shown = [f"{_name(key)}={_word(table.get(key))}" for key in odd[:_SHOWN]]
    more = [f"(+{len(odd) - _SHOWN})"] if len(odd) > _SHOWN else []
    return " ".join([algo, *shown, *more])


def _name(key: str) -> str:
    """Without the section, where everybody knows it."""
    section, _, rest = key.partition(".")
    return rest if section in ("algo", "env", "run") and rest else key


def _word(value: Any) -> str:
    text = "null" if value is None else str(value).replace(" ", "")
    text = text.replace("e-0", "e-") if isinstance(value, float) else text  # as people type it
    return text if len(text) <= _LONG else f"{text[: _LONG - 1]}…"
