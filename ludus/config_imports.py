"""Modules a run was started with (--import): kept as `run.imports`, imported again when the run's
own config.yaml is loaded, so that nobody has to name them twice. Imports nothing by itself.

Never from the state.json of a checkpoint: a lone checkpoint may come from a stranger, and importing
a module runs it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ludus import config_yaml, registry


def imports_in(tree: Mapping[str, Any]) -> list[str]:
    """`run.imports` of a tree; nothing where it is malformed, which validation will say."""
    table = tree.get("run")
    names = table.get("imports") if isinstance(table, Mapping) else None
    return [x for x in names if isinstance(x, str)] if isinstance(names, list | tuple) else []


def import_stored(config: Path, instead: Sequence[str] = ()) -> None:
    """Import what a run's config.yaml names, or `instead` (a module may have moved since)."""
    if instead:
        registry.import_modules(list(instead))
    elif config.is_file():
        names = imports_in(config_yaml.read_file(config).tree)
        registry.import_modules(names, where=f"run.imports of {config}")
