"""How a run's settings differ from its preset. Imports the algorithm's classes, and so torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ludus.errors import LudusError
from ludus.secret_masking import masked
from ludus.stats.groups import flat

Differences = list[tuple[str, str, str]]  # key, in the preset, in the run
_OWN = ("algo.name", "env.id", "run.seed", "run.imports")  # what a run is, not how it differs


Known = dict[tuple[str, str, str], dict[str, Any] | None]  # what presets say, once worked out


def differences(
    tree: dict[str, Any], preset: str | None, known: Known | None = None
) -> Differences | None:
    """None where it cannot be said: an algorithm that is not installed, a preset that is gone."""
    found = dict(flat(masked(tree)))
    key = (str(found.get("algo.name")), str(found.get("env.id")), preset or "none")
    known = {} if known is None else known
    if key not in known:
        known[key] = _preset(*key)
    base = known[key]
    if base is None:
        return None
    rows = []
    for name in sorted({*found, *base}):
        before, now = _shown(base.get(name)), _shown(found.get(name))
        if name not in _OWN and before != now:
            rows.append((name, before, now))
    return rows


def _preset(algo: str, env: str, preset: str) -> dict[str, Any] | None:
    from ludus.settings.resolve import Request, resolve

    try:
        return resolve(Request(algo, env, preset=preset, environ={})).config.flat()
    except (LudusError, ImportError):
        return None


def stored_differences(
    path: Path, tree: dict[str, Any], preset: str | None, known: Known
) -> Differences | None:
    """The same, of a run's directory: without its own modules, which a report does not import."""
    from ludus.settings.yaml import read_file

    if (found := differences(tree, preset, known)) is not None:
        return found
    try:  # second best: what was typed, without what it replaced
        typed = read_file(path / "config.user.yaml").tree
    except LudusError:
        return None
    return [(key, "", _shown(value)) for key, value in flat(masked(typed)) if key not in _OWN]


def _shown(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:g}" if isinstance(value, float) else str(value)
