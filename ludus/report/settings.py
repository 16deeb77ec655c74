"""How a run's settings differ from its preset. Needs the algorithm's classes, and so torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ludus.errors import LudusError
from ludus.report.groups import flat

Differences = list[tuple[str, str, str]]  # key, in the preset, in the run
_OWN = ("algo.name", "env.id", "run.seed", "run.imports")  # what a run is, not how it differs


def differences(tree: dict[str, Any], preset: str | None) -> Differences | None:
    """None where it cannot be said: an algorithm that is not installed, a preset that is gone."""
    from ludus.config import Request, resolve

    found = dict(flat(tree))
    algo, env = found.get("algo.name"), found.get("env.id")
    try:
        wanted = Request(str(algo), str(env), preset=preset or "none", environ={})
        base = resolve(wanted).config.flat()
    except (LudusError, ImportError):
        return None
    rows = []
    for key in sorted({*found, *base}):
        before, now = _shown(base.get(key)), _shown(found.get(key))
        if key not in _OWN and before != now:
            rows.append((key, before, now))
    return rows


def stored_differences(path: Path, tree: dict[str, Any], preset: str | None) -> Differences | None:
    """The same, of a run's directory: without its own modules, which a report does not import."""
    found = differences(tree, preset)
    return found if found is not None else _typed(path)


def _typed(path: Path) -> Differences | None:
    """Second best: what was typed, without what it replaced."""
    from ludus.config_yaml import read_file

    try:
        tree = read_file(path / "config.user.yaml").tree
    except LudusError:
        return None
    return [(key, "", _shown(value)) for key, value in flat(tree) if key not in _OWN]


def _shown(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:g}" if isinstance(value, float) else str(value)
