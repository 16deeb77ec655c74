"""Presets: tuned numbers per algorithm and family of environments, as data with their sources.

One file <algorithm>.yaml each: a list of {name, match: [globs], source, config}. The first whose
globs fit the environment is taken by itself; `--preset NAME` picks one, `--preset none` none.
`base: dqn/cartpole` starts from another algorithm's preset; `config` then holds the differences.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from ludus.errors import LudusError, nearest
from ludus.registry import Entry, entries, find
from ludus.settings import yaml as config_yaml
from ludus.settings.layers import Layered

_HERE = Path(__file__).parent


@dataclass(frozen=True)
class Preset:
    name: str
    algo: str
    match: tuple[str, ...]
    source: str  # where the numbers come from
    config: Mapping[str, Any]

    def fits(self, env_id: str) -> bool:
        return any(fnmatchcase(env_id, glob) for glob in self.match)


def presets_of(entry: Entry) -> list[Preset]:
    """An algorithm's presets in the order of its file; none if it has no file."""
    path = _path(entry)
    return [_preset(row, entry.name, path, ()) for row in _rows(path)] if path.is_file() else []


def _path(entry: Entry) -> Path:
    return Path(entry.presets) if entry.presets else _HERE / f"{entry.name}.yaml"


def _rows(path: Path) -> list[Any]:
    rows = config_yaml.read_file(path, follow=True).tree.get("presets")
    if not isinstance(rows, list):
        raise _broken(path, "it has no list called presets")
    return rows


def _preset(row: Any, algo: str, path: Path, above: tuple[str, ...]) -> Preset:
    wanted = {"name", "match", "source", "config"}
    if not isinstance(row, dict) or set(row) - {"base"} != wanted:
        raise _broken(path, f"each preset has exactly the keys {', '.join(sorted(wanted))}")
    if not isinstance(row["match"], list) or not isinstance(row["config"], dict):
        raise _broken(path, "match is a list of globs, config is a table")
    config, source = row["config"], str(row["source"])
    if "base" in row:
        below = _base(str(row["base"]), path, above)
        layers = Layered()
        layers.lay(below.config, 0, "")
        layers.lay(config, 1, "")
        # Its own words first: a list shows no more than the first sentence.
        config, source = layers.tree, f"{source.rstrip()} From {row['base']}: {below.source}"
    return Preset(str(row["name"]), algo, tuple(row["match"]), source, config)


def _base(text: str, path: Path, above: tuple[str, ...]) -> Preset:
    if text in above:
        raise _broken(path, f"the presets {', '.join(above)} start from each other")
    algo, _, name = text.partition("/")
    there = _path(find(algo))
    for row in _rows(there) if there.is_file() else []:
        if isinstance(row, dict) and row.get("name") == name:
            return _preset(row, algo, there, (*above, text))
    raise _broken(path, f"there is no preset {text} to start from")


def _broken(path: Path, why: str) -> LudusError:
    return LudusError(
        "E105",
        f"the preset file {path.name} is malformed: {why}",
        where=str(path),
        fix="compare it with another file of that folder",
    )


def all_presets() -> list[Preset]:
    return [preset for entry in entries() for preset in presets_of(entry)]


def pick(entry: Entry, env_id: str, wanted: str | None) -> Preset | None:
    """The preset asked for, or the first that fits; None when nothing does."""
    if wanted == "none":
        return None
    known = presets_of(entry)
    if wanted is None:
        return next((preset for preset in known if preset.fits(env_id)), None)
    for preset in known:
        if preset.name == wanted:
            if not preset.fits(env_id):
                raise LudusError(
                    "E107",
                    f"preset {wanted} is for {', '.join(preset.match)}, not {env_id}",
                    why="its numbers were tuned elsewhere",
                    fix="--preset none, and copy the values you want into a file for -c",
                )
            return preset
    names = [preset.name for preset in known]
    raise LudusError(
        "E107",
        f"{entry.name} has no preset {wanted}{nearest(wanted, names)}",
        why=f"it has: {', '.join(names) or 'none'}",
        fix="ludus list presets",
    )
