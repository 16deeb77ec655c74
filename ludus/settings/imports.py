"""Modules a run is started with (--import), kept as `run.imports`. Whether those that a file names
are imported again is decided in trust.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ludus import registry


def imports_in(tree: Mapping[str, Any]) -> list[str]:
    """`run.imports` of a tree; nothing where it is malformed, which validation will say."""
    table = tree.get("run")
    names = table.get("imports") if isinstance(table, Mapping) else None
    listed = list(names) if isinstance(names, list | tuple) else []
    return listed if all(isinstance(name, str) for name in listed) else []


def import_asked(typed: Sequence[tuple[str, Any]], files: Sequence[Mapping[str, Any]]) -> list[str]:
    """What files and command line name, all of it, in order: a later list adds to the earlier.

    It decides which algorithms and parts exist, so it comes before any name is looked up.
    """
    trees = [*files, *({"run": value} for key, value in typed if key == "run")]
    trees += [{"run": {"imports": v}} for k, v in typed if k in ("imports", "run.imports")]
    names = list(dict.fromkeys(name for tree in trees for name in imports_in(tree)))
    registry.import_modules(names)
    return names


def import_again(names: Sequence[str]) -> None:
    """In another process of the same run, whose settings have been checked."""
    registry.import_modules(list(names))
