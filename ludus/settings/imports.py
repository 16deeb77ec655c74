"""Import the modules of a run (--import), stored as `run.imports`. trust.py decides whether
modules that a file names may be imported.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ludus import registry


def imports_in(tree: Mapping[str, Any]) -> list[str]:
    """Return `run.imports` of a tree; empty if it is malformed, which validation reports."""
    table = tree.get("run")
    names = table.get("imports") if isinstance(table, Mapping) else None
    listed = list(names) if isinstance(names, list | tuple) else []
    return listed if all(isinstance(name, str) for name in listed) else []


def import_asked(typed: Sequence[tuple[str, Any]], files: Sequence[Mapping[str, Any]]) -> list[str]:
    """Import all modules that files and the command line name, in order, and return their names.

    Call it before looking up any name, because the modules register algorithms and parts.
    """
    trees = [*files, *({"run": value} for key, value in typed if key == "run")]
    trees += [{"run": {"imports": v}} for k, v in typed if k in ("imports", "run.imports")]
    names = list(dict.fromkeys(name for tree in trees for name in imports_in(tree)))
    registry.import_modules(names)
    return names


def import_again(names: Sequence[str]) -> None:
    """Import the modules in a child process of the run, whose settings were checked already."""
    registry.import_modules(list(names))
